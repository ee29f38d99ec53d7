#ifndef QKV_MERGE_H_
#define QKV_MERGE_H_

#include <optional>
#include <span>

#include "qkv/export.h"
#include "qkv/tensor.h"

namespace qkv {

/// What attention over one set of keys left behind.
struct PartialAttention {
  ConstTensorView out = {};  ///< [batch, num_heads, q_len, value_dim]
  ConstTensorView lse = {};  ///< [batch, num_heads, q_len], natural logarithm
};

/// Joins attention over disjoint sets of keys into attention over their union:
///   lse = ln sum_i exp(lse_i),  out = sum_i exp(lse_i - lse) out_i
/// Parts are merged left to right. Where every part is empty (lse -inf) the result is empty: out 0, lse -inf.
/// Sinks enter once, here: compute the parts without them.
///
/// @param parts  at least one; out float32, float64, float16 or bfloat16, all of one dtype and shape; lse float32, or
///               float64 beside float64
/// @param out    the parts' shape and dtype; shares no element with them
/// @param lse    written if given, of the parts' dtype
/// @param sinks  [num_heads] or [batch, num_heads]; the dtype of out, or float32 beside 16 bits
/// @throws ShapeError, DtypeError, ValueError
QKV_API void merge_states(std::span<const PartialAttention> parts, TensorView out, std::optional<TensorView> lse = {},
                          std::optional<ConstTensorView> sinks = {});

}  // namespace qkv

#endif  // QKV_MERGE_H_
