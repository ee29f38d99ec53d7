#ifndef QKV_SRC_ATTENTION_VALIDATE_H_
#define QKV_SRC_ATTENTION_VALIDATE_H_

#include <vector>

#include "kernels/backward_problem.h"
#include "kernels/forward_problem.h"
#include "qkv/attention.h"
#include "qkv/backward.h"
#include "qkv/kv_view.h"
#include "qkv/varlen.h"

namespace qkv::attention_detail {

/// Checks a call against the contract, in the order q, k, v, out, options, outputs, and resolves every default.
/// @throws ShapeError, DtypeError, ValueError; the text names the argument, what was seen and what was expected.
kernels::ForwardProblem validate(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                                 const TensorView& out, const AttentionOptions& options,
                                 const AttentionOutputs& outputs);

/// The same for a ragged batch. @return a call for each segment that has queries
std::vector<kernels::ForwardProblem> validate_varlen(const ConstTensorView& q, const ConstTensorView& k,
                                                     const ConstTensorView& v, const TensorView& out,
                                                     const VarlenOptions& options, const AttentionOutputs& outputs);

/// The same over the keys of a cache.
kernels::ForwardProblem validate_kv_view(const ConstTensorView& q, const KVView& kv, const TensorView& out,
                                         const AttentionOptions& options, const AttentionOutputs& outputs);

/// The same of the backward calls.
kernels::BackwardProblem validate_backward(const AttentionInputs& inputs, const AttentionSaved& saved,
                                           const AttentionGradients& gradients, const AttentionOptions& options);
/// @return a call for each segment that has queries, keys or sinks of its own
std::vector<kernels::BackwardProblem> validate_varlen_backward(const AttentionInputs& inputs,
                                                               const AttentionSaved& saved,
                                                               const AttentionGradients& gradients,
                                                               const VarlenOptions& options);

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_VALIDATE_H_
