// Frequencies, worked out by hand; the Python tests compare them with Hugging Face's.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <numbers>
#include <vector>

#include "qkv/position.h"

namespace qkv {
namespace {

/// A power and a few operations.
constexpr double kTolerance = 1e-14;

/// base 16 and 8 columns: 1, 1/2, 1/4, 1/8, each exact.
RopeOptions plain() { return {.base = 16}; }

std::vector<double> frequencies(const RopeScaling& scaling, std::optional<std::int64_t> seq_len = {}) {
  RopeOptions options = plain();
  options.scaling = scaling;
  options.max_position = 100;
  return Rope(8, options).frequencies(seq_len);
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], kTolerance * expected[i]) << i;
}

TEST(RopeScaling, NoneIsTheArticle) { expect_near(frequencies({}), {1, 0.5, 0.25, 0.125}); }

TEST(RopeScaling, LinearDividesAll) {
  expect_near(frequencies(LinearScaling{.factor = 4}), {0.25, 0.125, 0.0625, 0.03125});
}

TEST(RopeScaling, DynamicRaisesTheBaseOfLongSequences) {
  const DynamicScaling dynamic{.factor = 2};
  for (const std::int64_t seq_len : {1, 99, 100}) expect_near(frequencies(dynamic, seq_len), {1, 0.5, 0.25, 0.125});
  // 2 * 250 / 100 - 1 = 4, to the power of 8 / 6.
  const double base = 16 * std::pow(4.0, 8.0 / 6);
  expect_near(frequencies(dynamic, 250), {1, std::pow(base, -0.25), std::pow(base, -0.5), std::pow(base, -0.75)});
  expect_near(frequencies(dynamic), {1, 0.5, 0.25, 0.125});
}

TEST(RopeScaling, YarnRampsBetweenTwoNumbersOfTurns) {
  // Pair i makes 64 pi / (2 pi) / 2^i = 32 / 2^i turns: 32, 16, 8, 4. The ramp goes from pair 1 to pair 3.
  const auto original = static_cast<std::int64_t>(std::llround(64 * std::numbers::pi));
  const double exact = static_cast<double>(original) / (2 * std::numbers::pi);
  YarnScaling yarn{.factor = 4, .original_max_position = original, .beta_fast = exact / 2, .beta_slow = exact / 8};
  yarn.truncate = false;
  expect_near(frequencies(yarn), {1, 0.5, (0.25 + 0.25 / 4) / 2, 0.125 / 4});
  // Whole pairs: 1.5 and 2.5 become 1 and 3.
  yarn = {.factor = 4,
          .original_max_position = original,
          .beta_fast = exact / std::pow(2, 1.5),
          .beta_slow = exact / std::pow(2, 2.5)};
  expect_near(frequencies(yarn), {1, 0.5, (0.25 + 0.25 / 4) / 2, 0.125 / 4});
  yarn.truncate = false;
  expect_near(frequencies(yarn), {1, 0.5, (0.25 + 0.25 / 4) / 2, 0.125 / 4});
  yarn.beta_fast = exact / std::pow(2, 1.75);
  yarn.beta_slow = exact / std::pow(2, 2.75);
  expect_near(frequencies(yarn), {1, 0.5, 0.25 / 4 * 0.25 + 0.25 * 0.75, 0.125 / 4});
}

TEST(RopeScaling, YarnRampWithoutWidthIsAStep) {
  // A single turn for both: the ramp begins and ends at the same pair, and is a thousandth wide.
  const std::int64_t original = 201;
  const double turns = static_cast<double>(original) / (2 * std::numbers::pi) / 4;
  YarnScaling yarn{.factor = 4, .original_max_position = original, .beta_fast = turns, .beta_slow = turns};
  yarn.truncate = false;
  const std::vector<double> step = frequencies(yarn);
  EXPECT_EQ(step[1], 0.5);
  EXPECT_EQ(step[3], 0.125 / 4);
}

TEST(RopeScaling, YarnHasAnAttentionFactor) {
  const auto factor_of = [](const YarnScaling& yarn) { return Rope(8, {.scaling = yarn}).attention_factor(); };
  YarnScaling yarn{.factor = 8, .original_max_position = 64};
  EXPECT_DOUBLE_EQ(factor_of(yarn), 0.1 * std::log(8.0) + 1);
  yarn.mscale = 0.5;
  EXPECT_DOUBLE_EQ(factor_of(yarn), 0.1 * std::log(8.0) + 1);  // both or none
  yarn.mscale_all_dim = 2;
  EXPECT_DOUBLE_EQ(factor_of(yarn), (0.05 * std::log(8.0) + 1) / (0.2 * std::log(8.0) + 1));
  yarn.mscale_all_dim = 0;
  EXPECT_DOUBLE_EQ(factor_of(yarn), 0.1 * std::log(8.0) + 1);
  yarn.attention_factor = 0.75;
  EXPECT_EQ(factor_of(yarn), 0.75);
  EXPECT_EQ(factor_of({.factor = 1, .original_max_position = 64}), 1);
  EXPECT_EQ(Rope(8, {.scaling = LinearScaling{.factor = 8}}).attention_factor(), 1);
}

TEST(RopeScaling, Llama3KeepsHighAndDividesLowFrequencies) {
  // Turns within the original length are 16, 8, 4, 2 times something near 1.
  const std::int64_t original = 101;
  const double exact = static_cast<double>(original) / (2 * std::numbers::pi);
  const Llama3Scaling llama{.factor = 8,
                            .low_freq_factor = exact / 8 * 1.25,  // above that of the last pair
                            .high_freq_factor = exact * 0.45,     // below that of the second
                            .original_max_position = original};
  const double kept = (0.25 - 0.15625) / (0.45 - 0.15625);
  expect_near(frequencies(llama), {1, 0.5, (1 - kept) * 0.25 / 8 + kept * 0.25, 0.125 / 8});
}

}  // namespace
}  // namespace qkv
