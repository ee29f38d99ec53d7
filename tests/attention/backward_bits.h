#ifndef QKV_TESTS_ATTENTION_BACKWARD_BITS_H_
#define QKV_TESTS_ATTENTION_BACKWARD_BITS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "support/gradients.h"
#include "support/on_target.h"

namespace qkv::support {

class BackwardBits : public ::testing::TestWithParam<Setting> {
 protected:
  /// Calls body with random calls, each under its seed's trace. Sanitizers see a third of them.
  template <class Body>
  void for_random_calls(std::uint64_t first_seed, int count, std::int64_t most, Body body) {
    const TargetScope scope(GetParam().target);
    const int shown = kSanitized ? (count + 2) / 3 : count;
    for (std::uint64_t seed = first_seed; seed < first_seed + static_cast<std::uint64_t>(shown); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Random random(seed);
      const BackwardCall drawn = draw_backward_call(random, GetParam().dtype, most);
      SCOPED_TRACE(drawn.call.describe());
      body(random, drawn);
      if (HasFailure()) return;
    }
  }
};

}  // namespace qkv::support

#endif  // QKV_TESTS_ATTENTION_BACKWARD_BITS_H_
