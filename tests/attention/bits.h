#ifndef QKV_TESTS_ATTENTION_BITS_H_
#define QKV_TESTS_ATTENTION_BITS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "support/on_target.h"
#include "support/random_call.h"

namespace qkv::support {

/// A suite whose cases look at random calls on one target and dtype after the other.
class OnRandomCalls : public ::testing::TestWithParam<Setting> {
 protected:
  /// Calls body(random, draw(random)) for so many seeds, each under its trace. Sanitizers, which slow everything down, see
  /// a third of them.
  template <class Draw, class Body>
  void for_seeds(std::uint64_t first_seed, int count, Draw draw, Body body) {
    const TargetScope scope(GetParam().target);
    const int shown = kSanitized ? (count + 2) / 3 : count;
    for (std::uint64_t seed = first_seed; seed < first_seed + static_cast<std::uint64_t>(shown); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Random random(seed);
      auto call = draw(random);
      SCOPED_TRACE(call.describe());
      body(random, call);
      if (HasFailure()) return;
    }
  }
};

class Bits : public OnRandomCalls {
 protected:
  template <class Body>
  void for_random_calls(std::uint64_t first_seed, int count, std::int64_t most, Body body) {
    for_seeds(first_seed, count, [&](Random& random) { return draw_call(random, GetParam().dtype, most); }, body);
  }
};

}  // namespace qkv::support

#endif  // QKV_TESTS_ATTENTION_BITS_H_
