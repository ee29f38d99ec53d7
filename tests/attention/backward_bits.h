#ifndef QKV_TESTS_ATTENTION_BACKWARD_BITS_H_
#define QKV_TESTS_ATTENTION_BACKWARD_BITS_H_

#include <cstdint>

#include "attention/bits.h"
#include "support/gradients.h"

namespace qkv::support {

class BackwardBits : public OnRandomCalls {
 protected:
  template <class Body>
  void for_random_calls(std::uint64_t first_seed, int count, std::int64_t most, Body body) {
    for_seeds(
        first_seed, count, [&](Random& random) { return draw_backward_call(random, GetParam().dtype, most); }, body);
  }
};

}  // namespace qkv::support

#endif  // QKV_TESTS_ATTENTION_BACKWARD_BITS_H_
