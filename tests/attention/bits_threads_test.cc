// The same bits on any number of threads. A program of its own, for ThreadSanitizer.
#include <gtest/gtest.h>

#include <vector>

#include "attention/bits.h"

namespace qkv::support {
namespace {

TEST_P(Bits, ThreadsChangeNothing) {
  for_random_calls(901, 40, 400, [](Random&, Call& call) {
    std::vector<Results> results;
    for (const int threads : {1, 2, 3, 4}) {
      const ThreadScope scope(threads);
      results.push_back(run_all(call));
    }
    for (std::size_t i = 1; i < results.size(); ++i) expect_same_bits(results[i], results[0]);
  });
}

/// Of the kernels alone: the reference takes one row at a time anyway, and is slow.
class BitsOfKernels : public Bits {};

TEST_P(BitsOfKernels, ThreadsThatShareAHeadChangeNothing) {
  // One or two heads of a few rows: threads take chunks of 4096 keys.
  const TargetScope scope(GetParam().target);
  for (std::uint64_t seed = 1001; seed <= (kSanitized ? 1003U : 1010U) && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Call call = draw_call(random, GetParam().dtype, 20);
    constexpr std::int64_t kLengths[] = {4096, 4097, 5000, 8192, 9000};
    call.batch = random.integer(1, 2);
    call.num_kv_heads = 1;
    call.num_heads = random.integer(1, 3);
    call.q_len = random.integer(1, 3);
    call.kv_len = kLengths[random.integer(0, std::ssize(kLengths) - 1)];
    for (auto* term : {&call.mask, &call.bias, &call.sinks, &call.slopes, &call.kv_lens, &call.offsets}) term->reset();
    call.options.query_offset = {};
    call.make_operands(random);
    if (random.chance(0.3)) write(*call.v, {0, 0, 4000, 0}, kNaN);
    call.stats_keys = {0, 4095, 4090};
    const auto with_threads = [&](int threads) {
      const ThreadScope on(threads);
      return run_all(call, {.matrices = false});
    };
    const Results one = with_threads(1);
    for (const int threads : {2, 3, 8}) expect_same_bits(with_threads(threads), one);
  }
}

INSTANTIATE_TEST_SUITE_P(On, Bits, ::testing::ValuesIn(every_setting()), setting_name);
INSTANTIATE_TEST_SUITE_P(On, BitsOfKernels, ::testing::ValuesIn(kernel_settings()), setting_name);
INSTANTIATE_TEST_SUITE_P(Half, BitsOfKernels, ::testing::ValuesIn(half_settings()), setting_name);
INSTANTIATE_TEST_SUITE_P(Half, Bits, ::testing::ValuesIn(half_settings()), setting_name);

}  // namespace
}  // namespace qkv::support
