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

TEST_P(BackwardBits, ThreadsAddToOneElementInTurn) {
  // Few heads: threads share one, each with other keys and at other rows, whose biases may be the same number.
  const TargetScope scope(GetParam().target);
  for (const Extents& shape : {Extents{1, 1}, Extents{300, 1}, Extents{1, 600}, Extents{2, 1, 1}, Extents{}}) {
    SCOPED_TRACE(to_string(shape));
    Random random(31);
    BackwardCall call;
    call.call.dtype = GetParam().dtype;
    call.call.num_heads = call.call.num_kv_heads = 2;
    call.call.q_len = 300;
    call.call.kv_len = 600;
    call.call.head_dim = call.call.value_dim = 8;
    call.call.make_operands(random);
    call.call.bias = call.call.filled(shape, Layout::kDense, random);
    call.make_upstream(random, Layout::kDense, true, false);
    const auto with_threads = [&](int threads) {
      const ThreadScope on(threads);
      return differentiate(call);
    };
    const Gradients one = with_threads(1);
    for (int run = 0; run < (kSanitized ? 2 : 20); ++run) expect_same_bits(with_threads(2 + run % 7), one);
  }
}

INSTANTIATE_TEST_SUITE_P(On, BackwardBits, ::testing::ValuesIn(kernel_settings()), setting_name);
INSTANTIATE_TEST_SUITE_P(Half, BackwardBits, ::testing::ValuesIn(half_settings()), setting_name);

}  // namespace
}  // namespace qkv::support
