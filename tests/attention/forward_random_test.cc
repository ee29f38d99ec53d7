// Random calls with every option and layout, on every target, against the double-precision reference.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "support/call.h"
#include "support/random_call.h"

namespace qkv::support {
namespace {

/// Terms are of size 1; a logit of head_dim products is off by a few eps times its own size, and so is a weight: the
/// exponential turns an absolute error into a relative one. Logits here reach some 30.
constexpr double kOutCoefficient = 64;
constexpr double kLogitCoefficient = 32;
/// A small weight inherits its logit's absolute error, up to 100 times a few eps, as a relative one.
constexpr double kWeightCoefficient = 256;
constexpr double kSmallWeight = 1e-6;
/// w ln w has slope ln w: up to 16 bits of weights below eps count.
constexpr double kEntropyCoefficient = 512;

class ForwardRandom : public ::testing::TestWithParam<Dtype> {};

void compare(const Results& actual, const Results& expected) {
  EXPECT_TRUE(close(actual.out, expected.out, {kOutCoefficient}));
  EXPECT_TRUE(close(actual.lse, expected.lse, {kLogitCoefficient}));
  EXPECT_TRUE(close(actual.max_raw, expected.max_raw, {kLogitCoefficient}));
  EXPECT_TRUE(close(actual.max_logit, expected.max_logit, {kLogitCoefficient}));
  EXPECT_TRUE(close(actual.max_weight, expected.max_weight, {kOutCoefficient}));
  EXPECT_TRUE(close(actual.entropy, expected.entropy, {kEntropyCoefficient}));
  EXPECT_TRUE(close(actual.key_weight, expected.key_weight, {kOutCoefficient}));
  if (actual.has_matrices) {
    EXPECT_TRUE(close(*actual.weights, *expected.weights, {kOutCoefficient}));
    EXPECT_TRUE(close(*actual.weights, *expected.weights, {kWeightCoefficient, kSmallWeight}));
    EXPECT_TRUE(close(*actual.logits, *expected.logits, {kLogitCoefficient, 4}));
  }
  EXPECT_TRUE(actual.intact()) << "something outside of an output was written";
}

/// max_key may differ where two logits are equal but for rounding: then its logit is the largest all the same.
void compare_max_key(const Call& call, const Results& actual, const Results& expected) {
  Results masked(call, Layout::kDense, true, LogitsStage::kMasked);
  reference::attention(*call.q, *call.k, *call.v, masked.out, call.full_options(), masked.outputs(call));
  for_each_index(Results::per_row(call), [&](const Extents& row) {
    const double key = read(actual.max_key, row);
    if (key == read(expected.max_key, row)) return;
    ASSERT_TRUE(key >= 0 && key < static_cast<double>(call.kv_len)) << to_string(row);
    const Extents chosen{row[0], row[1], row[2], static_cast<std::int64_t>(key)};
    EXPECT_NEAR(read(*masked.logits, chosen), read(expected.max_logit, row), 1e-5) << to_string(row);
  });
}

void check(std::uint64_t seed, Dtype dtype, std::int64_t most) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const Call call = draw_call(random, dtype, most);
  SCOPED_TRACE(call.describe());
  const bool matrices = random.chance(0.6);
  const auto stage = static_cast<LogitsStage>(random.integer(0, 2));
  Results expected(call, Layout::kDense, matrices, stage);
  reference::attention(*call.q, *call.k, *call.v, expected.out, call.full_options(), expected.outputs(call));
  for (const std::string& name : kernel_targets()) {
    SCOPED_TRACE("target " + name);
    const TargetScope scope(name);
    Results actual(call, draw_layout(random), matrices, stage);
    attention(*call.q, *call.k, *call.v, actual.out, call.full_options(), actual.outputs(call));
    compare(actual, expected);
    compare_max_key(call, actual, expected);
    if (dtype == Dtype::kFloat64) break;  // one kernel for all targets
  }
}

TEST_P(ForwardRandom, SmallCalls) {
  for (std::uint64_t seed = 1; seed <= 300 && !HasFailure(); ++seed) check(seed, GetParam(), 40);
}

TEST_P(ForwardRandom, CallsAcrossWords) {
  for (std::uint64_t seed = 1001; seed <= 1060 && !HasFailure(); ++seed) check(seed, GetParam(), 200);
}

TEST_P(ForwardRandom, CallsAcrossBlocks) {
  for (std::uint64_t seed = 2001; seed <= 2012 && !HasFailure(); ++seed) check(seed, GetParam(), 700);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ForwardRandom, ::testing::Values(Dtype::kFloat32, Dtype::kFloat64),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace qkv::support
