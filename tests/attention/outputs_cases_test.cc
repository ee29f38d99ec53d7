// What a call can tell beside its result: weights, logits, lse, statistics.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "support/on_target.h"

namespace qkv::support {
namespace {

class Outputs : public OnTarget {};

TEST_P(Outputs, WeightsOfARowSumToOneLessTheSink) {
  const Tensor q = normal({2, 4, 7, 8});
  const Tensor k = normal({2, 2, 90, 8});
  const Tensor v = normal({2, 2, 90, 8});
  const Tensor sinks = tensor({4}, {-1, 0, 2.5, 8});
  for (const bool with_sinks : {false, true}) {
    AttentionOptions options{.causal = true};
    if (with_sinks) options.sinks = sinks.view();
    const Results a = run(q, k, v, options);
    for_each_index(a.lse.shape(), [&](const Extents& row) {
      double sum = with_sinks ? std::exp(read(sinks, {row[1]}) - read(a.lse, row)) : 0;
      for (std::int64_t j = 0; j < 90; ++j) {
        const double weight = read(a.weights, {row[0], row[1], row[2], j});
        EXPECT_GE(weight, 0);
        sum += weight;
      }
      EXPECT_NEAR(sum, 1, kSum * epsilon()) << to_string(row) << " sinks " << with_sinks;
    });
  }
}

TEST_P(Outputs, ASinkTakesItsShareOnce) {
  const Tensor q({1, 1, 1, 4}, dtype());
  const Tensor k({1, 1, 3, 4}, dtype());
  const Tensor v = tensor({1, 1, 3, 1}, {8});
  const Tensor sinks = tensor({1, 1}, {std::log(5)});
  const Results a = run(q, k, v, {.sinks = sinks.view()}, {.keys = {0, 2}});
  EXPECT_NEAR(read(a.out, {0, 0, 0, 0}), 3, kFewSteps * epsilon());
  EXPECT_NEAR(read(a.lse, {0, 0, 0}), std::log(8), kFewSteps * epsilon());
  EXPECT_NEAR(read(a.max_weight, {0, 0, 0}), 1.0 / 8, kOneStep * epsilon());
  EXPECT_NEAR(read(a.key_weight, {0, 0, 0}), 2.0 / 8, kOneStep * epsilon());
  EXPECT_NEAR(read(a.entropy, {0, 0, 0}), 3.0 / 8 * std::log(8), kFewSteps * epsilon()) << "over keys alone";
  EXPECT_EQ(read(a.max_logit, {0, 0, 0}), 0) << "a sink is no key";
  EXPECT_EQ(read(a.max_key, {0, 0, 0}), 0);
}

TEST_P(Outputs, ChosenHeadsAndRowsInAnyOrderWithRepeats) {
  const Tensor q = normal({2, 4, 9, 8});
  const Tensor k = normal({2, 2, 70, 8});
  const Tensor v = normal({2, 2, 70, 8});
  const AttentionOptions options{.causal = true};
  const Results all = run(q, k, v, options);
  const std::vector<std::int64_t> heads{3, 0, 3};
  const std::vector<std::int64_t> rows{8, 0, 0, 5, 8};
  Tensor out({2, 4, 9, 8}, dtype());
  Tensor weights = tensor({2, 3, 5, 70}, {kNaN});
  attention(q, k, v, out, options, {.weights = Weights{.out = weights, .heads = heads, .rows = rows}});
  EXPECT_TRUE(same_bits(out, all.out));
  for_each_index(weights.shape(), [&](const Extents& at) {
    const Extents from{at[0], heads[static_cast<std::size_t>(at[1])], rows[static_cast<std::size_t>(at[2])], at[3]};
    ASSERT_EQ(read(weights, at), read(all.weights, from)) << to_string(at);
  });
  Tensor of_rows({2, 4, 1, 70}, dtype());
  attention(q, k, v, out, options, {.weights = Weights{.out = of_rows, .rows = std::vector<std::int64_t>{6}}});
  EXPECT_TRUE(same_bits(of_rows, all.weights.view().slice(2, 6, 7)));
  Tensor nobody({2, 0, 9, 70}, dtype());
  EXPECT_NO_THROW(
      attention(q, k, v, out, options, {.weights = Weights{.out = nobody, .heads = std::vector<std::int64_t>{}}}));
}

TEST_P(Outputs, LogitsOfEachStage) {
  const Tensor q = tensor({1, 1, 2, 1}, {1, -2});
  const Tensor k = tensor({1, 1, 3, 1}, {4, -1, 8});
  const Tensor v = tensor({1, 1, 3, 1}, {0});
  const Tensor bias = tensor({2, 3}, {0.5, -kInf, 0.25, 1, 2, 3});
  const Tensor slopes = tensor({1}, {0.125});
  const AttentionOptions options{.scale = 0.5,
                                 .causal = true,
                                 .query_offset = 1,
                                 .softcap = 2,
                                 .bias = bias.view(),
                                 .alibi_slopes = slopes.view()};
  const auto cap = [](double x) { return 2 * std::tanh(x / 2); };
  const double scaled[2][3] = {{2, -0.5, 4}, {-4, 1, -8}};
  const double masked[2][3] = {{cap(2) + 0.5 - 0.125, -kInf, -kInf},
                               {cap(-4) + 1 - 0.25, cap(1) + 2 - 0.125, cap(-8) + 3}};
  for (const auto stage : {LogitsStage::kScaled, LogitsStage::kCapped, LogitsStage::kMasked}) {
    const Results a = run(q, k, v, options, {.stage = stage});
    for_each_index({2, 3}, [&](const Extents& at) {
      const double raw = scaled[at[0]][at[1]];
      double expected = masked[at[0]][at[1]];
      if (stage == LogitsStage::kScaled) expected = raw;
      if (stage == LogitsStage::kCapped) expected = cap(raw);
      const double actual = read(a.logits, {0, 0, at[0], at[1]});
      if (std::isfinite(expected)) {
        EXPECT_NEAR(actual, expected, kFewSteps * epsilon()) << to_string(at) << " stage " << static_cast<int>(stage);
      } else {
        EXPECT_EQ(actual, expected) << to_string(at);
      }
    });
    EXPECT_EQ(read(a.max_raw, {0, 0, 0}), 2) << "of the visible keys, before the cap";
    EXPECT_EQ(read(a.max_raw, {0, 0, 1}), 1);
    EXPECT_NEAR(read(a.max_logit, {0, 0, 1}), masked[1][1], kFewSteps * epsilon());
    EXPECT_EQ(read(a.max_key, {0, 0, 1}), 1);
  }
}

TEST_P(Outputs, UnmaskedLogitsShowHiddenKeysNaNToo) {
  const Tensor q = tensor({1, 1, 1, 1}, {2});
  Tensor k = tensor({1, 1, 70, 1}, {3});
  const Tensor v = tensor({1, 1, 70, 1}, {1});
  write(k, {0, 0, 69, 0}, kNaN);
  write(k, {0, 0, 68, 0}, 5);
  const Results a = run(q, k, v, {.scale = 1, .causal = true, .query_offset = 40}, {.stage = LogitsStage::kScaled});
  EXPECT_EQ(read(a.logits, {0, 0, 0, 0}), 6);
  EXPECT_EQ(read(a.logits, {0, 0, 0, 68}), 10);
  EXPECT_TRUE(std::isnan(read(a.logits, {0, 0, 0, 69})));
  EXPECT_EQ(read(a.max_raw, {0, 0, 0}), 6);
  EXPECT_NEAR(read(a.out, {0, 0, 0, 0}), 1, kFewSteps * epsilon());
}

TEST_P(Outputs, TiesNameTheLowestKey) {
  // In one vector, across vectors, words, blocks and chunks.
  for (const std::int64_t second : {1, 9, 64, 130, 512, 1030, 4096, 4200}) {
    const std::int64_t keys = second + 70;
    Tensor k({1, 1, keys, 1}, dtype());
    write(k, {0, 0, second, 0}, 3);
    write(k, {0, 0, second + 3, 0}, 3);
    write(k, {0, 0, second + 66, 0}, 3);
    const Tensor q = tensor({1, 1, 1, 1}, {1});
    EXPECT_EQ(read(run(q, k, k).max_key, {0, 0, 0}), second);
    write(k, {0, 0, 0, 0}, 3);
    EXPECT_EQ(read(run(q, k, k).max_key, {0, 0, 0}), 0);
    EXPECT_EQ(read(run(q, k, k, {.window = {.left = keys - 2}}).max_key, {0, 0, 0}), second);
    const Tensor zero({1}, dtype());
    EXPECT_EQ(read(run(q, k, k, {.bias = zero.view()}).max_key, {0, 0, 0}), 0);
  }
}

TEST_P(Outputs, EntropyOfUniformAndOneHotRows) {
  constexpr std::int64_t kKeys = 5000;
  const Tensor q = tensor({1, 1, 1, 1}, {1});
  Tensor k({1, 1, kKeys, 1}, dtype());
  const Tensor v({1, 1, kKeys, 1}, dtype());
  // As many additions as keys, each rounded.
  EXPECT_NEAR(read(run(q, k, v).entropy, {0, 0, 0}), std::log(kKeys), kKeys * epsilon());
  EXPECT_NEAR(read(run(q, k, v).max_weight, {0, 0, 0}), 1.0 / kKeys, kOneStep * epsilon());
  write(k, {0, 0, 4321, 0}, 500);
  const Results hot = run(q, k, v, {}, {.keys = {4321}});
  EXPECT_NEAR(read(hot.entropy, {0, 0, 0}), 0, kOneStep * epsilon());
  EXPECT_EQ(read(hot.max_weight, {0, 0, 0}), 1);
  EXPECT_EQ(read(hot.key_weight, {0, 0, 0}), 1);
  EXPECT_EQ(read(hot.max_key, {0, 0, 0}), 4321);
  EXPECT_NEAR(read(hot.lse, {0, 0, 0}), 500, 500 * kFewSteps * epsilon());
}

TEST_P(Outputs, WeightOnChosenKeysIsTheirSum) {
  const Tensor q = normal({1, 2, 5, 8});
  const Tensor k = normal({1, 2, 600, 8});
  const Tensor v = normal({1, 2, 600, 8});
  const std::vector<std::int64_t> keys{599, 0, 64, 63, 511, 512, 300};
  const Results a = run(q, k, v, {.causal = true}, {.keys = keys});
  for_each_index(a.key_weight.shape(), [&](const Extents& row) {
    double sum = 0;
    for (const std::int64_t key : keys) sum += read(a.weights, {row[0], row[1], row[2], key});
    EXPECT_NEAR(read(a.key_weight, row), sum, kSum * epsilon()) << to_string(row);
  });
}

TEST_P(Outputs, RowsThatSeeNothingHaveTheAgreedNumbers) {
  const Tensor x = normal({1, 2, 8, 8});
  const Results a = run(x, x, x, {.causal = true, .query_offset = -4}, {.keys = {0, 1, 2, 3, 4, 5, 6, 7}});
  for (std::int64_t i = 0; i < 4; ++i) expect_empty_row(a, {0, 1, i});
  EXPECT_EQ(read(a.max_key, {0, 1, 4}), 0);
  EXPECT_EQ(read(a.key_weight, {0, 1, 4}), 1);
}

TEST_P(Outputs, AskingForMoreChangesNoBitOfTheRest) {
  const Tensor q = normal({1, 2, 13, 8});
  const Tensor k = normal({1, 2, 600, 8});
  const Tensor v = normal({1, 2, 600, 8});
  const Tensor bias = normal({600});
  for (const bool general : {false, true}) {
    AttentionOptions options{.causal = true};
    if (general) options.bias = bias.view();
    const Results all = run(q, k, v, options);
    Tensor out({1, 2, 13, 8}, dtype());
    Tensor lse({1, 2, 13}, dtype());
    attention(q, k, v, out, options);
    EXPECT_TRUE(same_bits(out, all.out));
    attention(q, k, v, out, options, {.lse = lse.view()});
    EXPECT_TRUE(same_bits(out, all.out));
    EXPECT_TRUE(same_bits(lse, all.lse));
    Tensor entropy({1, 2, 13}, dtype());
    attention(q, k, v, out, options, {.stats = Stats{.entropy = entropy.view()}});
    EXPECT_TRUE(same_bits(out, all.out));
    EXPECT_TRUE(same_bits(entropy, all.entropy));
    Tensor logits({1, 2, 13, 600}, dtype());
    attention(q, k, v, out, options, {.logits = Logits{.out = logits, .stage = LogitsStage::kMasked}});
    EXPECT_TRUE(same_bits(out, all.out));
    EXPECT_TRUE(same_bits(logits, all.logits));
  }
}

TEST_P(Outputs, OutputsOfAnyStrides) {
  Call call;
  call.dtype = dtype();
  call.num_heads = call.num_kv_heads = 2;
  call.q_len = 7;
  call.kv_len = 70;
  call.head_dim = 8;
  call.value_dim = 9;
  call.make_operands(random_);
  call.options.causal = true;
  call.stats_keys = {3, 69};
  const Results dense = run_all(call);
  for (const Layout layout : kAllLayouts) {
    SCOPED_TRACE(static_cast<int>(layout));
    expect_same_bits(run_all(call, {.layout = layout}), dense);
  }
}

INSTANTIATE_TEST_SUITE_P(On, Outputs, ::testing::ValuesIn(every_setting()), setting_name);

}  // namespace
}  // namespace qkv::support
