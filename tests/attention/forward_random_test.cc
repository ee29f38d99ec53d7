// Random calls with every option and layout, on every target, against the double-precision reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "support/call.h"
#include "support/random_call.h"

namespace qkv::support {
namespace {

class ForwardRandom : public ::testing::TestWithParam<Dtype> {};

/// max_key may differ where two logits are equal but for rounding: then its logit is the largest all the same.
void compare_max_key(const Call& call, const Results& actual, const Results& expected) {
  const Results masked = run_all(call, {}, &reference::attention);
  for_each_index(expected.max_key.shape(), [&](const Extents& row) {
    const double key = read(actual.max_key, row);
    if (key == read(expected.max_key, row)) return;
    ASSERT_TRUE(key >= 0 && key < static_cast<double>(call.kv_len)) << to_string(row);
    const double largest = read(expected.max_logit, row);
    const double allowed =
        kLogitTolerance.coefficient * epsilon_of(call.dtype) * std::max(kLogitTolerance.size, std::abs(largest));
    const Extents chosen{row[0], row[1], row[2], static_cast<std::int64_t>(key)};
    EXPECT_NEAR(read(masked.logits, chosen), largest, allowed) << to_string(row);
  });
}

void check(std::uint64_t seed, Dtype dtype, std::int64_t most) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const Call call = draw_call(random, dtype, most);
  SCOPED_TRACE(call.describe());
  const Wanted wanted{.stage = static_cast<LogitsStage>(random.integer(0, 2)), .matrices = random.chance(0.6)};
  const Results expected = run_all(call, wanted, &reference::attention);
  for (const std::string& name : kernel_targets()) {
    SCOPED_TRACE("target " + name);
    const TargetScope scope(name);
    Wanted laid_out = wanted;
    laid_out.layout = draw_layout(random);
    const Results actual = run_all(call, laid_out);
    expect_close(actual, expected);
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
