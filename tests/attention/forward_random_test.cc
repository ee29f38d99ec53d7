// Random calls with every option and layout, on every target, against the double-precision reference.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "attention/check_random_call.h"

namespace qkv::support {
namespace {

class ForwardRandom : public ::testing::TestWithParam<Dtype> {};

TEST_P(ForwardRandom, SmallCalls) {
  for (std::uint64_t seed = 1; seed <= 300 && !HasFailure(); ++seed) check_random_call(seed, GetParam(), 40);
}

TEST_P(ForwardRandom, CallsAcrossWords) {
  for (std::uint64_t seed = 1001; seed <= 1060 && !HasFailure(); ++seed) check_random_call(seed, GetParam(), 200);
}

TEST_P(ForwardRandom, CallsAcrossBlocks) {
  for (std::uint64_t seed = 2001; seed <= 2012 && !HasFailure(); ++seed) check_random_call(seed, GetParam(), 700);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ForwardRandom, ::testing::Values(Dtype::kFloat32, Dtype::kFloat64),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace qkv::support
