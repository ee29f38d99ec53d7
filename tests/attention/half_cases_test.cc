// What 16 bits promise: storage in them, arithmetic in float32, one rounding at the end; and in bfloat16 throughout,
// weights that are rounded before they meet V.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>

#include "support/on_target.h"
#include "support/random_call.h"

namespace qkv::support {
namespace {

class HalfPrecision : public OnTarget {
 protected:
  bool is_bfloat16() const { return dtype() == Dtype::kBFloat16; }
  double smallest() const { return is_bfloat16() ? 0x1p-133 : 0x1p-24; }
};

std::unique_ptr<Guarded> converted(const std::unique_ptr<Guarded>& from, Dtype dtype) {
  if (from == nullptr) return nullptr;
  auto to = std::make_unique<Guarded>(from->view().shape(), dtype);
  copy(*from, *to);
  return to;
}

/// The call with the same numbers in float32.
Call widened(const Call& call) {
  Call wide;
  wide.dtype = Dtype::kFloat32;
  wide.batch = call.batch;
  wide.num_heads = call.num_heads;
  wide.num_kv_heads = call.num_kv_heads;
  wide.q_len = call.q_len;
  wide.kv_len = call.kv_len;
  wide.head_dim = call.head_dim;
  wide.value_dim = call.value_dim;
  wide.q = converted(call.q, Dtype::kFloat32);
  wide.k = converted(call.k, Dtype::kFloat32);
  wide.v = converted(call.v, Dtype::kFloat32);
  wide.bias = converted(call.bias, Dtype::kFloat32);
  wide.sinks = converted(call.sinks, Dtype::kFloat32);
  wide.slopes = converted(call.slopes, Dtype::kFloat32);
  if (call.mask) wide.mask = converted(call.mask, Dtype::kBool);
  if (call.kv_lens) wide.kv_lens = converted(call.kv_lens, call.kv_lens->dtype());
  if (call.offsets) wide.offsets = converted(call.offsets, call.offsets->dtype());
  wide.options = call.options;
  wide.stats_keys = call.stats_keys;
  return wide;
}

bool all_bfloat16(const Call& call) {
  return call.dtype == Dtype::kBFloat16 && call.k->dtype() == Dtype::kBFloat16 && call.v->dtype() == Dtype::kBFloat16;
}

/// Whether the target adds the products of bfloat16 in an order of its own.
bool multiplies_pairs(const Setting& setting) {
  return setting.dtype == Dtype::kBFloat16 && setting.target.ends_with("_bf16");
}

TEST_P(HalfPrecision, IsFloat32ArithmeticRoundedOnce) {
  int rounded = 0;
  for (std::uint64_t seed = 1; seed <= (kSanitized ? 30U : 120U) && !HasFailure(); ++seed) {
    Random random(seed);
    const Call call = draw_call(random, dtype(), 150);
    SCOPED_TRACE("seed " + std::to_string(seed) + " " + call.describe());
    rounded += all_bfloat16(call) ? 1 : 0;
    if (all_bfloat16(call) && multiplies_pairs(GetParam())) continue;
    const Results half = run_all(call);
    const NamedViews actual = half.views();
    const Results wide = run_all(widened(call));
    const Guarded expected_out(wide.out.view().shape(), dtype());
    copy(wide.out, expected_out);
    const NamedViews expected = wide.views();
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const bool meets_values = actual[i].name == "out" || actual[i].name == "key_weight";
      if (meets_values && all_bfloat16(call)) continue;  // the only results that rounded weights enter
      const ConstTensorView& same = actual[i].name == "out" ? ConstTensorView(expected_out) : expected[i].view;
      EXPECT_TRUE(same_bits(actual[i].view, same)) << actual[i].name;
    }
  }
  EXPECT_EQ(rounded > 0, is_bfloat16());
}

TEST_P(HalfPrecision, KeysAndValuesOf16BitsBesideAFloat32QueryAreAsIfConverted) {
  Random random(3);
  for (const bool keys : {true, false}) {
    Call call;
    call.num_heads = 4;
    call.num_kv_heads = 2;
    call.q_len = 9;
    call.kv_len = 300;
    call.head_dim = 40;
    call.value_dim = 24;
    call.make_operands(random);
    (keys ? call.k : call.v) = converted(keys ? call.k : call.v, dtype());
    expect_same_bits(run_all(call), run_all(widened(call)));
  }
}

TEST_P(HalfPrecision, LogitsBeyond65504DoNotOverflow) {
  for (const double size : {300.0, 200.0}) {
    const Tensor q = tensor({1, 1, 3, 64}, {size});
    const Tensor k = tensor({1, 1, 5, 64}, {size});
    const Tensor v = tensor({1, 1, 5, 1}, {1, 2, 3, 4, 5});
    const Results a = run(q, k, v);
    for (std::int64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(read(a.out, {0, 0, i, 0}), 3);
      EXPECT_NEAR(read(a.max_raw, {0, 0, i}), size * size * 8, size * size * 8 * 0x1p-22);
    }
  }
}

TEST_P(HalfPrecision, AHugeConstantIsItsOwnMean) {
  const double size = is_bfloat16() ? 133120 : 65504;
  const Tensor x = tensor({1, 2, 7, 32}, {size});
  for (const double scale : {0.1767766952966369, 1.0}) {
    const Results a = run(x, x, x, {.scale = scale});
    for_each_index(a.out.shape(), [&](const Extents& at) { EXPECT_EQ(read(a.out, at), size) << to_string(at); });
  }
}

TEST_P(HalfPrecision, EqualLogitsOverOnesAreExactlyOne) {
  for (const std::int64_t keys : {512, 4096, 9000}) {
    const Results a = run(tensor({1, 1, 1, 8}, {0}), tensor({1, 1, keys, 8}, {1}), tensor({1, 1, keys, 3}, {1}));
    for (std::int64_t c = 0; c < 3; ++c) EXPECT_EQ(read(a.out, {0, 0, 0, c}), 1) << keys;
  }
}

TEST_P(HalfPrecision, ConstantValuesComeBackExactlyWhateverTheWeights) {
  const Tensor q = normal({1, 2, 20, 32});
  const Tensor k = normal({1, 2, 5000, 32});
  Tensor v({1, 2, 5000, 5}, dtype());
  const double constants[] = {1, -0.1, 1e4, 3e-4, 64 * smallest()};
  for_each_index(v.shape(), [&](const Extents& at) { write(v, at, constants[at[3]]); });
  const Results a = run(q, k, v, {.causal = true});
  for_each_index(a.out.shape(),
                 [&](const Extents& at) { EXPECT_EQ(read(a.out, at), read(v, {0, 0, 0, at[3]})) << to_string(at); });
}

TEST_P(HalfPrecision, BFloat16WeightsAreRoundedAndTheSumIsOfTheSame) {
  // Weights 1 and 2^-8 (1 + 3/8): the second is stored as 2^-8 (1 + 3/8), which bfloat16 holds; then as 1/3, which
  // it rounds up to 171/512.
  for (const double small : {0x1.6p-8, 1.0 / 3}) {
    const Tensor q = tensor({1, 1, 1, 1}, {1});
    const Tensor k = tensor({1, 1, 2, 1}, {0});
    const Tensor v = tensor({1, 1, 2, 2}, {1, 0, 0, 1});
    Tensor bias({2}, Dtype::kFloat32);
    bias.as<float>()[1] = static_cast<float>(std::log(small));
    const Results a = run(q, k, v, {.bias = bias.view()});
    const double weight = is_bfloat16() ? static_cast<double>(BFloat16(small)) : small;
    const auto stored = [&](double x) {
      return is_bfloat16() ? static_cast<double>(BFloat16(x)) : static_cast<double>(Float16(x));
    };
    EXPECT_EQ(read(a.out, {0, 0, 0, 0}), stored(1 / (1 + weight)));
    EXPECT_EQ(read(a.out, {0, 0, 0, 1}), stored(weight / (1 + weight)));
    // What is said of the weights is of the exact ones.
    EXPECT_NEAR(read(a.lse, {0, 0, 0}), std::log(1 + small), 0x1p-22);
    EXPECT_NEAR(read(a.weights, {0, 0, 0, 1}), small / (1 + small), 0x1p-22);
    EXPECT_NEAR(read(a.max_weight, {0, 0, 0}), 1 / (1 + small), 0x1p-22);
  }
}

TEST_P(HalfPrecision, ASinkMeetsTheRoundedSum) {
  const Tensor q = tensor({1, 1, 1, 1}, {1});
  const Tensor k = tensor({1, 1, 2, 1}, {0});
  const Tensor v = tensor({1, 1, 2, 1}, {1});
  const Tensor sinks = tensor_of({1}, Dtype::kFloat32, {0.5});
  Tensor bias({2}, Dtype::kFloat32);
  bias.as<float>()[1] = std::log(1.0f / 3);
  const Results a = run(q, k, v, {.bias = bias.view(), .sinks = sinks.view()});
  const double weight = is_bfloat16() ? static_cast<double>(BFloat16(1.0 / 3)) : 1.0 / 3;
  const double expected = (1 + weight) / (1 + weight + std::exp(0.5));
  EXPECT_NEAR(read(a.out, {0, 0, 0, 0}), expected, epsilon() / 2 * expected);
  EXPECT_NEAR(read(a.lse, {0, 0, 0}), std::log(4.0 / 3 + std::exp(0.5)), 0x1p-22);
}

TEST_P(HalfPrecision, ResultsBeyondTheLastNumberAreInfinite) {
  if (is_bfloat16()) return;  // ends where float ends
  const Tensor v = tensor_of({1, 1, 2, 1}, Dtype::kBFloat16, {1e6});
  const Results a = run(tensor({1, 1, 1, 4}, {1}), tensor({1, 1, 2, 4}, {1}), v);
  EXPECT_EQ(read(a.out, {0, 0, 0, 0}), kInf);
}

TEST_P(HalfPrecision, SubnormalsAreNumbers) {
  const double tiny = 3 * smallest();
  const Tensor q = tensor({1, 1, 1, 4}, {tiny});
  const Tensor k = tensor({1, 1, 2, 4}, {tiny});
  const Tensor v = tensor({1, 1, 2, 1}, {tiny, 5 * smallest()});
  const Results a = run(q, k, v);
  EXPECT_EQ(read(a.out, {0, 0, 0, 0}), 4 * smallest());
}

TEST_P(HalfPrecision, ASubnormalBesideALargeNumberMakesALogit) {
  if (!is_bfloat16()) return;  // float16 has no number that large
  const Tensor large = tensor({1, 1, 1, 3}, {0x1p126, 0, 0x1p126});
  const Tensor small = tensor({1, 1, 1, 3}, {0x1p-128, 1, 0x1p-128});
  const Tensor keys = tensor({1, 1, 2, 3}, {0x1p-128, 1, 0x1p-128, 0, 1, 0});
  const Tensor large_keys = tensor({1, 1, 2, 3}, {0x1p126, 0, 0x1p126, 0, 0, 0});
  const Tensor v = tensor({1, 1, 2, 1}, {1, 0});
  const double weight = 1 / (1 + std::exp(-0.5));  // the logits are 1/4 + 1/4 and 0
  const AttentionOptions options{.scale = 1};
  EXPECT_NEAR(read(run(large, keys, v, options).out, {0, 0, 0, 0}), weight, epsilon());
  EXPECT_NEAR(read(run(small, large_keys, v, options).out, {0, 0, 0, 0}), weight, epsilon());
}

TEST_P(HalfPrecision, SmallWeightsOfTinyValuesAddUp) {
  if (!is_bfloat16()) return;
  // One key that weighs 1 and 4096 that weigh 2^-12: all of them but the first are products below 2^-126.
  const std::int64_t keys = 4097;
  Tensor k({1, 1, keys, 1}, dtype());
  Tensor v({1, 1, keys, 2}, dtype());
  for (std::int64_t j = 0; j < keys; ++j) {
    write(k, {0, 0, j, 0}, j == 0 ? 0 : -8.3125);  // -12 ln 2, about
    write(v, {0, 0, j, 0}, j == 0 ? 0 : 0x1p-118);
    write(v, {0, 0, j, 1}, 0x1p-118);
  }
  const Tensor q = tensor({1, 1, 1, 1}, {1});
  const Results a = run(q, k, v, {.scale = 1});
  const double rest = static_cast<double>(keys - 1) * std::exp(-8.3125);
  EXPECT_NEAR(read(a.out, {0, 0, 0, 0}) / 0x1p-118, rest / (1 + rest), 2 * epsilon());
  EXPECT_EQ(read(a.out, {0, 0, 0, 1}), 0x1p-118);
}

TEST_P(HalfPrecision, BiasSinksAndSlopesMayBeEither) {
  Random random(11);
  Call call;
  call.dtype = dtype();
  call.batch = 2;
  call.num_heads = 2;
  call.q_len = 12;
  call.kv_len = 100;
  call.head_dim = call.value_dim = 16;
  call.make_operands(random);
  call.bias = call.filled({12, 100}, Layout::kDense, random);
  call.sinks = call.filled({2}, Layout::kDense, random);
  call.slopes = call.filled({2, 2}, Layout::kDense, random, 0.1);
  const Results own = run_all(call);
  for (auto* term : {&call.bias, &call.sinks, &call.slopes}) *term = converted(*term, Dtype::kFloat32);
  expect_same_bits(run_all(call), own);
}

INSTANTIATE_TEST_SUITE_P(On, HalfPrecision, ::testing::ValuesIn(half_settings()), setting_name);

}  // namespace
}  // namespace qkv::support
