#ifndef QKV_SRC_KERNELS_BACKWARD_PROBLEM_H_
#define QKV_SRC_KERNELS_BACKWARD_PROBLEM_H_

#include "kernels/forward_problem.h"
#include "qkv/tensor.h"

namespace qkv::kernels {

/// One backward call after validation. src/attention/validate_backward.cc makes it, the kernels read it.
struct BackwardProblem {
  ForwardProblem forward;  ///< of the call whose gradients these are, without its outputs

  Operand out;       ///< [batch, num_heads, q_len, value_dim]
  Operand lse;       ///< this and its gradients [batch, num_heads, q_len]
  Operand grad_out;  ///< as out
  Operand grad_lse;
  Operand grad_entropy;
  Operand entropy;       ///< of the forward call, beside grad_entropy
  Operand computed_lse;  ///< of the forward call, once more, and
  Operand lse_rest;      ///< what its rounding has left out, where some lse is large

  Result grad_q;     ///< as q
  Result grad_k;     ///< as k
  Result grad_v;     ///< as v
  Result grad_bias;  ///< [batch, num_heads, q_len, kv_len]; stride 0 along the axes in which the bias repeats
  Extents grad_bias_shape = {1, 1, 1, 1};  ///< as it was given, with leading ones
  Result grad_sinks;                       ///< [batch, num_heads], likewise
  bool shares_sinks = false;               ///< they are [num_heads]: of all batches, and all segments
  bool accumulate = false;
};

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_BACKWARD_PROBLEM_H_
