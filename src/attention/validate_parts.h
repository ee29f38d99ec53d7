#ifndef QKV_SRC_ATTENTION_VALIDATE_PARTS_H_
#define QKV_SRC_ATTENTION_VALIDATE_PARTS_H_

#include "attention/arguments.h"
#include "kernels/forward_problem.h"
#include "qkv/attention.h"

namespace qkv::attention_detail {

/// Each checks its share of a call and fills it into the problem; the sizes are there before.
void resolve_options(const AttentionOptions& options, Arguments& arguments, kernels::ForwardProblem& problem);
void resolve_outputs(const AttentionOutputs& outputs, Arguments& arguments, kernels::ForwardProblem& problem);

/// Views of exactly four, three or two axes as [batch, head, row, column].
kernels::Operand operand_of(const ConstTensorView& view);
kernels::Result result_of(const TensorView& view);

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_VALIDATE_PARTS_H_
