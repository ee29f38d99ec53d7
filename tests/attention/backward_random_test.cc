// Random backward calls with every option and layout, on every target, against the double-precision reference.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "support/gradients.h"
#include "support/on_target.h"

namespace qkv::support {
namespace {

class BackwardRandom : public ::testing::TestWithParam<Dtype> {};

/// Sanitizers make each call tens of times slower.
constexpr std::uint64_t kShare = kSanitized ? 4 : 1;

void check(std::uint64_t seed, Dtype dtype, std::int64_t most) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const BackwardCall drawn = draw_backward_call(random, dtype, most);
  SCOPED_TRACE(drawn.call.describe());
  const bool in_float32 = random.chance(0.3);
  const Gradients expected = differentiate(drawn, &reference::attention_backward, Layout::kDense, in_float32);
  for (const std::string& name : kernel_targets()) {
    SCOPED_TRACE("target " + name);
    const TargetScope scope(name);
    expect_close(drawn, differentiate(drawn, &attention_backward, draw_layout(random), in_float32), expected);
    if (dtype == Dtype::kFloat64) break;  // one kernel for all targets
  }
}

TEST_P(BackwardRandom, SmallCalls) {
  for (std::uint64_t seed = 1; seed <= 200 / kShare && !HasFailure(); ++seed) check(seed, GetParam(), 40);
}

TEST_P(BackwardRandom, CallsAcrossWords) {
  for (std::uint64_t seed = 1; seed <= 40 / kShare && !HasFailure(); ++seed) check(1000 + seed, GetParam(), 200);
}

TEST_P(BackwardRandom, CallsAcrossBlocks) {
  for (std::uint64_t seed = 1; seed <= 8 / kShare && !HasFailure(); ++seed) check(2000 + seed, GetParam(), 700);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, BackwardRandom,
                         ::testing::Values(Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace qkv::support
