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

INSTANTIATE_TEST_SUITE_P(On, Bits, ::testing::ValuesIn(every_setting()), setting_name);
INSTANTIATE_TEST_SUITE_P(Half, Bits, ::testing::ValuesIn(half_settings()), setting_name);

}  // namespace
}  // namespace qkv::support
