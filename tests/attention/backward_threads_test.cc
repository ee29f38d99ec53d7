// The same gradients, bit for bit, on any number of threads and every time. A program of its own, for ThreadSanitizer.
#include <gtest/gtest.h>

#include <vector>

#include "attention/backward_bits.h"

namespace qkv::support {
namespace {

TEST_P(BackwardBits, ThreadsChangeNothing) {
  for_random_calls(901, 15, 400, [](Random&, const BackwardCall& call) {
    const auto with_threads = [&](int threads) {
      const ThreadScope scope(threads);
      return differentiate(call);
    };
    const Gradients one = with_threads(1);
    for (const int threads : {1, 2, 3, 4}) expect_same_bits(with_threads(threads), one);
  });
}

TEST_P(BackwardBits, ThirtyRunsAreOne) {
  for_random_calls(951, 1, 300, [](Random&, const BackwardCall& call) {
    const Gradients first = differentiate(call);
    for (int run = 1; run < (kSanitized ? 4 : 30); ++run) {
      const ThreadScope scope(1 + run % 2);
      expect_same_bits(differentiate(call), first);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(On, BackwardBits, ::testing::ValuesIn(kernel_settings()), setting_name);
INSTANTIATE_TEST_SUITE_P(Half, BackwardBits, ::testing::ValuesIn(half_settings()), setting_name);

}  // namespace
}  // namespace qkv::support
