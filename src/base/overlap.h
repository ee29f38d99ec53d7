#ifndef QKV_SRC_BASE_OVERLAP_H_
#define QKV_SRC_BASE_OVERLAP_H_

#include "qkv/tensor.h"

namespace qkv {

/// Whether some byte belongs to an element of a and to one of b. Exact for any strides, but for pathological ones whose
/// search exceeds a bound: those count as overlapping. Memory that does not interleave costs a comparison.
bool share_memory(const ConstTensorView& a, const ConstTensorView& b);

/// Whether two different indices lead to one element, so that writing by the view would write it twice. The same bound.
bool has_internal_overlap(const ConstTensorView& view);

}  // namespace qkv

#endif  // QKV_SRC_BASE_OVERLAP_H_
