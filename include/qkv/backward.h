#ifndef QKV_BACKWARD_H_
#define QKV_BACKWARD_H_

#include <optional>

#include "qkv/attention.h"
#include "qkv/export.h"
#include "qkv/tensor.h"
#include "qkv/varlen.h"

namespace qkv {

/// What a call of attention was given.
struct AttentionInputs {
  ConstTensorView q = {};  ///< [batch, num_heads, q_len, head_dim]
  ConstTensorView k = {};  ///< [batch, num_kv_heads, kv_len, head_dim]
  ConstTensorView v = {};  ///< [batch, num_kv_heads, kv_len, value_dim]
};

/// What it left behind, all that the way back needs.
struct AttentionSaved {
  ConstTensorView out = {};  ///< [batch, num_heads, q_len, value_dim], q's dtype
  ConstTensorView lse = {};  ///< [batch, num_heads, q_len]; float32 (float64 where q is float64)
};

/// Gradients of a number L, the loss: what is known of attention's results, and what is wanted of its arguments.
struct AttentionGradients {
  /// dL/d out: [batch, num_heads, q_len, value_dim], q's dtype; any strides, 0 too.
  ConstTensorView grad_out = {};
  /// dL/d lse, where L depends on it (z-loss): [batch, num_heads, q_len], the dtype of lse.
  std::optional<ConstTensorView> grad_lse = {};
  /// dL/d Stats::entropy, the same.
  std::optional<ConstTensorView> grad_entropy = {};

  /// dL/dq, dL/dk and dL/dv, each written if given: the shape of its argument, and its dtype, or float32 beside 16 bits.
  std::optional<TensorView> grad_q = {};
  std::optional<TensorView> grad_k = {};
  std::optional<TensorView> grad_v = {};
  /// dL/d bias: the shape of the bias, summed over the axes in which that repeats; dtype as above.
  std::optional<TensorView> grad_bias = {};
  /// dL/d sinks: the shape of the sinks, summed over the batch where they have none; dtype as above.
  std::optional<TensorView> grad_sinks = {};
  /// Adds to what the gradients hold instead of overwriting it; with 16 bits the sum is rounded once.
  bool accumulate = false;
};

/// Gradients of attention. With w the softmax weights of a row, m the dropout's mask over 1 - p (or 1), x the logits, G
/// its grad_out and delta = sum of G * out:
///
///   dL/dv_j += w_j m_j G,    dx_j = w_j (m_j G v_j - delta + grad_lse - grad_entropy (ln w_j + entropy + [the sink's w]))
///   dL/dbias = dx,   dL/dq += scale dx_j c_j k_j,   dL/dk_j += scale dx_j c_j q,   c_j = 1 - tanh^2 of the softcap
///   dL/dsink = w_sink (-delta + grad_lse - grad_entropy (... of the keys)), the sums over all rows of a head
///
/// @param inputs    the arguments of the forward call, and `options` its options: the seed of a dropout too
/// @param saved     its out and lse
/// @param gradients  shares no element with an input where it is written
///
/// Rules. What a row may not see gets exactly nothing from it, even if the row, the key or its value holds NaN; a row that
/// sees nothing gives 0; what grad_out adds to dq and dk from a row that sees one key is exactly 0 (without sinks and
/// dropout, and where out holds v unrounded: v is not wider than q). A visible NaN makes NaN of
/// what depends on it. The bits of dq depend on what those of attention's row depend on; those of dk and dv on the query
/// rows that are given, and their order; bias and sinks are summed in a fixed order. Nothing depends on threads, other heads or
/// what else is asked for.
/// @throws ShapeError, DtypeError, ValueError
/// Cost: 2.5 times the multiply-adds of attention. Memory O(q_len + kv_len): packed q, k, v, grad_out and sums of the
/// heads in flight; no q_len x kv_len but a gradient of a bias of that size.
/// Source: Dao et al. 2022 (arXiv:2205.14135), with keys outside and rows inside, and every sum in one fixed order.
QKV_API void attention_backward(const AttentionInputs& inputs, const AttentionSaved& saved,
                                const AttentionGradients& gradients, const AttentionOptions& options = {});

/// The same of attention_varlen: operands [total, heads, dim], lse and its gradients [num_heads, total_q].
/// A segment without queries leaves gradients 0 at its keys; one without keys at its queries.
QKV_API void attention_varlen_backward(const AttentionInputs& inputs, const AttentionSaved& saved,
                                       const AttentionGradients& gradients, const VarlenOptions& options);

namespace reference {
/// The same contracts in scalar double precision.
QKV_API void attention_backward(const AttentionInputs& inputs, const AttentionSaved& saved,
                                const AttentionGradients& gradients, const AttentionOptions& options = {});
QKV_API void attention_varlen_backward(const AttentionInputs& inputs, const AttentionSaved& saved,
                                       const AttentionGradients& gradients, const VarlenOptions& options);
}  // namespace reference

}  // namespace qkv

#endif  // QKV_BACKWARD_H_
