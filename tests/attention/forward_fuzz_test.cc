// The random calls of forward_random_test.cc for minutes, from a seed that is new every time; by hand.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

#include "attention/check_random_call.h"

namespace qkv::support {
namespace {

/// QKV_FUZZ_SEED repeats a run.
std::uint64_t first_seed() {
  const char* wanted = std::getenv("QKV_FUZZ_SEED");
  const std::uint64_t seed = wanted != nullptr ? std::stoull(wanted) : std::random_device{}();
  std::cout << "QKV_FUZZ_SEED=" << seed << '\n';
  return seed;
}

class ForwardFuzz : public ::testing::TestWithParam<Dtype> {
 protected:
  void check_many(int count, std::int64_t most) {
    const std::uint64_t first = first_seed();
    for (int i = 0; i < count && !HasFailure(); ++i) {
      check_random_call(first + static_cast<std::uint64_t>(i), GetParam(), most);
    }
  }
};

TEST_P(ForwardFuzz, SmallCalls) { check_many(10'000, 40); }
TEST_P(ForwardFuzz, CallsAcrossWords) { check_many(1'000, 200); }
TEST_P(ForwardFuzz, CallsAcrossBlocks) { check_many(100, 700); }
TEST_P(ForwardFuzz, CallsAcrossChunks) { check_many(3, 4500); }

INSTANTIATE_TEST_SUITE_P(Dtypes, ForwardFuzz,
                         ::testing::Values(Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace qkv::support
