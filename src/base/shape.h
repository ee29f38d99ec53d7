#ifndef QKV_SRC_BASE_SHAPE_H_
#define QKV_SRC_BASE_SHAPE_H_

#include <algorithm>

#include "qkv/tensor.h"

namespace qkv {

/// Whether some extent is 0, so that there is nothing to address however large the others are.
inline bool has_no_elements(const Extents& shape) noexcept {
  return std::find(shape.begin(), shape.end(), 0) != shape.end();
}

}  // namespace qkv

#endif  // QKV_SRC_BASE_SHAPE_H_
