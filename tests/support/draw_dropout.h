#ifndef QKV_TESTS_SUPPORT_DRAW_DROPOUT_H_
#define QKV_TESTS_SUPPORT_DRAW_DROPOUT_H_

#include "qkv/attention.h"
#include "support/random.h"

namespace qkv::support {

inline Dropout draw_dropout(Random& random) {
  constexpr double kUsual[] = {0.1, 0.5, 0.9};
  return {.p = random.chance(0.7) ? kUsual[random.integer(0, 2)] : random.uniform(0.01, 0.95), .seed = random.bits()};
}

}  // namespace qkv::support

#endif  // QKV_TESTS_SUPPORT_DRAW_DROPOUT_H_
