#ifndef QKV_SRC_BASE_OVERLAP_H_
#define QKV_SRC_BASE_OVERLAP_H_

#include <cstdint>

#include "qkv/tensor.h"

namespace qkv {

/// A view and the bytes [low, high] that its elements lie in, by address: worked out once, compared with many.
struct Footprint {
  explicit Footprint(const ConstTensorView& view);

  ConstTensorView view;
  bool empty = false;
  bool bounded = false;  ///< low and high, and the distance between them, fit 63 bits
  std::int64_t low = 0;
  std::int64_t high = 0;
};

/// Whether some byte belongs to an element of a and to one of b. Exact for any strides, but for pathological ones whose
/// search exceeds a bound: those count as overlapping. Memory that does not interleave costs a comparison.
bool share_memory(const Footprint& a, const Footprint& b);
inline bool share_memory(const ConstTensorView& a, const ConstTensorView& b) {
  return share_memory(Footprint(a), Footprint(b));
}

/// Whether two different indices lead to one element, so that writing by the view would write it twice. The same bound.
bool has_internal_overlap(const Footprint& footprint);
inline bool has_internal_overlap(const ConstTensorView& view) { return has_internal_overlap(Footprint(view)); }

}  // namespace qkv

#endif  // QKV_SRC_BASE_OVERLAP_H_
