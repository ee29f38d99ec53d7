#ifndef QKV_VARLEN_H_
#define QKV_VARLEN_H_

#include "qkv/attention.h"
#include "qkv/export.h"
#include "qkv/tensor.h"

namespace qkv {

/// Where the sequences of a ragged batch lie, and how each of them attends.
struct VarlenOptions {
  /// Cumulative lengths: int32 or int64, shape [num_segments + 1], from 0 to total_q. Segment s has the rows
  /// cu_seqlens_q[s] .. cu_seqlens_q[s + 1] - 1 of q; a segment may be empty.
  ConstTensorView cu_seqlens_q = {};
  /// The same of k and v, from 0 to total_kv.
  ConstTensorView cu_seqlens_k = {};
  /// Of every segment, with positions counted from the segment's first key: query_offset is one number, or one per
  /// segment; the default puts a segment's last row at its last key. sinks and alibi_slopes are [num_heads] or
  /// [num_segments, num_heads]. mask, bias and kv_lens are refused: the lengths say what is real.
  AttentionOptions attention = {};
};

/// Attention within each sequence of a batch of unequal lengths that lie one after the other, without padding: as if
/// qkv::attention were called for each segment, with the same bits. Dropout takes the number of a segment for its batch.
///
/// @param q    [total_q, num_heads, head_dim]; dtypes and strides as in attention, for all operands
/// @param k    [total_kv, num_kv_heads, head_dim]
/// @param v    [total_kv, num_kv_heads, value_dim]
/// @param out  [total_q, num_heads, value_dim]
/// @param outputs  lse and statistics, each [num_heads, total_q]; Stats::keys count within each segment, below the longest
///                 length, and weigh nothing where a segment has no such key; weights and logits are refused
/// A row of a segment without keys sees nothing: out 0, lse -inf.
///
/// @throws ShapeError, DtypeError, ValueError
/// Cost: the sum of what the segments cost alone; their heads are handed out to the threads together.
QKV_API void attention_varlen(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                              const VarlenOptions& options, const AttentionOutputs& outputs = {});

namespace reference {
/// The same contract in scalar double precision.
QKV_API void attention_varlen(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                              const VarlenOptions& options, const AttentionOutputs& outputs = {});
}  // namespace reference

}  // namespace qkv

#endif  // QKV_VARLEN_H_
