#ifndef QKV_TESTS_ATTENTION_CHECK_RANDOM_CALL_H_
#define QKV_TESTS_ATTENTION_CHECK_RANDOM_CALL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "support/call.h"
#include "support/random_call.h"

namespace qkv::support {

/// max_key may differ where two logits are equal but for rounding: then its logit is the largest all the same.
inline void compare_max_key(const Call& call, const Results& actual, const Results& expected) {
  const Results masked = run_all(call, {}, &reference::attention);
  for_each_index(expected.max_key.shape(), [&](const Extents& row) {
    const double key = read(actual.max_key, row);
    if (key == read(expected.max_key, row)) return;
    ASSERT_TRUE(key >= 0 && key < static_cast<double>(call.kv_len)) << to_string(row);
    const double largest = read(expected.max_logit, row);
    const double allowed = expected.spread * kLogitTolerance.coefficient * epsilon_of(stats_dtype(call.dtype)) *
                           std::max(kLogitTolerance.size, std::abs(largest));
    const Extents chosen{row[0], row[1], row[2], static_cast<std::int64_t>(key)};
    EXPECT_NEAR(read(masked.logits, chosen), largest, allowed) << to_string(row);
  });
}

/// One random call with every option and layout, on every target, against the double-precision reference.
inline void check_random_call(std::uint64_t seed, Dtype dtype, std::int64_t most) {
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

}  // namespace qkv::support

#endif  // QKV_TESTS_ATTENTION_CHECK_RANDOM_CALL_H_
