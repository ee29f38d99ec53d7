// Random calls with every option and layout, on every target, against the double-precision reference.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "attention/check_random_call.h"
#include "support/on_target.h"

namespace qkv::support {
namespace {

class ForwardRandom : public ::testing::TestWithParam<Dtype> {};

/// Sanitizers make each call tens of times slower.
constexpr std::uint64_t kShare = kSanitized ? 4 : 1;

TEST_P(ForwardRandom, SmallCalls) {
  for (std::uint64_t seed = 1; seed <= 300 / kShare && !HasFailure(); ++seed) check_random_call(seed, GetParam(), 40);
}

TEST_P(ForwardRandom, CallsAcrossWords) {
  for (std::uint64_t seed = 1; seed <= 60 / kShare && !HasFailure(); ++seed) {
    check_random_call(1000 + seed, GetParam(), 200);
  }
}

TEST_P(ForwardRandom, CallsAcrossBlocks) {
  for (std::uint64_t seed = 1; seed <= 12 / kShare && !HasFailure(); ++seed) {
    check_random_call(2000 + seed, GetParam(), 700);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ForwardRandom,
                         ::testing::Values(Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace qkv::support
