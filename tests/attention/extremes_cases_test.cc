// Numbers at the ends of their type: where f32 alone would lose a result that fits, and what must not change elsewhere.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>

#include "support/on_target.h"

namespace qkv::support {
namespace {

class Extremes : public OnTarget {
 protected:
  double largest() const { return -lowest(); }
  double infinity() const { return std::numeric_limits<double>::infinity(); }
};

/// q = 1 and scale 1: the keys are the logits. `count` keys of `logit`, then one of 0; values 1 and 2.
TEST_P(Extremes, HugeLogitsBeforeOrdinaryOnes) {
  for (const std::int64_t count : {1, 511, 512, 513, 4096, 4100}) {
    for (const double logit : {-1e7, -1.1e8, -1830983296.0, -3e9, -1e20, -3e38}) {
      SCOPED_TRACE(std::to_string(count) + " of " + std::to_string(logit));
      const Tensor q = tensor({1, 1, 1, 1}, {1});
      Tensor k({1, 1, count + 1, 1}, dtype());
      Tensor v({1, 1, count + 1, 1}, dtype());
      for (std::int64_t j = 0; j < count; ++j) {
        write(k, {0, 0, j, 0}, logit);
        write(v, {0, 0, j, 0}, 1);
      }
      write(v, {0, 0, count, 0}, 2);
      const Results a = run(q, k, v, {.scale = 1}, {.keys = {0, count}});
      EXPECT_EQ(read(a.out, {0, 0, 0, 0}), 2);
      EXPECT_EQ(read(a.lse, {0, 0, 0}), 0);
      EXPECT_EQ(read(a.entropy, {0, 0, 0}), 0);
      EXPECT_EQ(read(a.max_weight, {0, 0, 0}), 1);
      EXPECT_EQ(read(a.max_key, {0, 0, 0}), static_cast<double>(count));
      EXPECT_EQ(read(a.key_weight, {0, 0, 0}), 1);
    }
  }
}

TEST_P(Extremes, AVisibleLogitBeyondTheLastNumberIsNotHidden) {
  if (!is_f32()) GTEST_SKIP() << "double has no wider type to go to";
  // Added to a bias of the lowest number, the products leave f32; the logits are finite all the same.
  const Tensor q = tensor({1, 1, 1, 1}, {1});
  const Tensor v = tensor({1, 1, 2, 1}, {1, 2});
  const Tensor bias = tensor({1, 2}, {lowest()});
  for (const double product : {2e31, 1e33, 1e36, 1e38}) {
    SCOPED_TRACE(product);
    const Results a = run(q, tensor({1, 1, 2, 1}, {-product, -2 * product}), v, {.scale = 1, .bias = bias.view()});
    EXPECT_EQ(read(a.max_key, {0, 0, 0}), 0);
    EXPECT_EQ(read(a.out, {0, 0, 0, 0}), 1);
  }
  // One among ordinary keys has no weight, but the same bits by every way.
  Tensor k = normal({1, 1, 20, 1});
  Tensor biases({1, 20}, dtype());
  write(k, {0, 0, 19, 0}, -8e37);
  write(biases, {0, 19}, lowest());
  expect_as_reference(q, k, normal({1, 1, 20, 70}), {.scale = 1, .bias = biases.view()});
}

TEST_P(Extremes, ADistanceBeyondTheLastNumberHidesNoKey) {
  if (!is_f32()) GTEST_SKIP() << "double has no wider type to go to";
  const Tensor bias = tensor({1, 2}, {lowest()});
  const Tensor slopes = tensor({1}, {1e33});
  const AttentionOptions options{.query_offset = 2, .bias = bias.view(), .alibi_slopes = slopes.view()};
  const Results a = run(tensor({1, 1, 1, 1}, {0}), normal({1, 1, 2, 1}), tensor({1, 1, 2, 1}, {1, 2}), options);
  EXPECT_EQ(read(a.out, {0, 0, 0, 0}), 2) << "the nearer key";
}

TEST_P(Extremes, ADistanceThatOverflowsBesideAHiddenKey) {
  // Without fused multiply-add, slope * distance is infinite where the bias is -inf: that makes NaN, at a hidden key.
  const double unit = is_f32() ? 0x1p126 : 1;
  const Tensor slopes = tensor({1}, {-unit});
  Tensor bias({1, 8}, dtype());
  for (std::int64_t j = 0; j < 7; ++j) write(bias, {0, j}, -unit * std::fabs(3.0 - static_cast<double>(j)));
  write(bias, {0, 7}, -infinity());
  const AttentionOptions options{.query_offset = 3, .bias = bias.view(), .alibi_slopes = slopes.view()};
  const Results a = run(tensor({1, 1, 1, 1}, {0}), normal({1, 1, 8, 1}), normal({1, 1, 8, 70}), options);
  EXPECT_EQ(read(a.weights, {0, 0, 0, 7}), 0);
  EXPECT_NEAR(read(a.weights, {0, 0, 0, 0}), 1.0 / 7, kFewSteps * epsilon());
}

TEST_P(Extremes, TheLargestNumberComesBackFromOneKey) {
  for (int i = 0; i < 200; ++i) {
    const Tensor q = normal({1, 1, 2, 5});
    const Tensor k = normal({1, 1, 1, 5});
    const Tensor v = tensor({1, 1, 1, 11}, {largest()});
    const Results a = run(q, k, v, {.scale = 0.1 + 0.037 * i});
    for (std::int64_t c = 0; c < 11; ++c) ASSERT_EQ(read(a.out, {0, 0, 1, c}), largest()) << i << " column " << c;
  }
}

TEST_P(Extremes, TheMeanOfTheLargestNumbersIsFinite) {
  // Double has no wider type to go to: there, a sum of more than kv_len terms must fit.
  const double size = is_f32() ? largest() : largest() / 1024;
  for (const std::int64_t keys : {2, 7, 100, 1000}) {
    const Results a = run(normal({1, 1, 9, 8}), normal({1, 1, keys, 8}), tensor({1, 1, keys, 10}, {size}));
    for (std::int64_t i = 0; i < 9; ++i) {
      EXPECT_LE(std::abs(read(a.out, {0, 0, i, 9}) / size - 1), kSum * epsilon()) << keys << " keys, row " << i;
    }
  }
}

/// One column of V that is not finite, or whose sums are not, changes no bit of any other output.
TEST_P(Extremes, AColumnThatIsNotFiniteLeavesTheOthersAlone) {
  const Tensor q = normal({1, 2, 13, 16});
  const Tensor k = normal({1, 2, 70, 16});
  for (const std::int64_t columns : {1, 3, 8, 20, 33}) {
    const Tensor clean = normal({1, 2, 70, columns});
    const Results expected = run(q, k, clean, {.causal = true});
    for (const double bad : {std::nan(""), infinity(), -infinity(), largest()}) {
      for (const std::int64_t column : {std::int64_t{0}, columns / 2, columns - 1}) {
        SCOPED_TRACE(std::to_string(bad) + " in column " + std::to_string(column) + " of " + std::to_string(columns));
        Tensor v = clean.clone();
        write(v, {0, 1, 60, column}, bad);
        write(v, {0, 1, 61, column}, bad);
        const Results a = run(q, k, v, {.causal = true});
        for_each_index(a.out.shape(), [&](const Extents& at) {
          // Row i sits at position 57 + i, so rows from 3 on see key 60.
          if (at[1] == 1 && at[2] >= 3 && at[3] == column) {
            EXPECT_EQ(std::isfinite(read(a.out, at)), std::isfinite(bad)) << to_string(at);
          } else {
            EXPECT_EQ(read(a.out, at), read(expected.out, at)) << to_string(at);
          }
        });
        EXPECT_TRUE(same_bits(a.lse, expected.lse));
        EXPECT_TRUE(same_bits(a.weights, expected.weights));
        EXPECT_TRUE(same_bits(a.entropy, expected.entropy));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(On, Extremes, ::testing::ValuesIn(every_setting()), setting_name);

}  // namespace
}  // namespace qkv::support
