#ifndef QKV_SRC_ATTENTION_VALIDATE_BACKWARD_H_
#define QKV_SRC_ATTENTION_VALIDATE_BACKWARD_H_

#include "attention/validate_parts.h"
#include "kernels/backward_problem.h"
#include "qkv/backward.h"

namespace qkv::attention_detail {

/// The shares of a backward call beside q, k, v and options: what is read, then, after the options, what is written.
void resolve_saved(const AttentionSaved& saved, const AttentionGradients& gradients, const OperandForm& form,
                   Arguments& arguments, kernels::BackwardProblem& problem);
void resolve_gradients(const AttentionGradients& gradients, const AttentionOptions& options, const OperandForm& form,
                       Arguments& arguments, kernels::BackwardProblem& problem);

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_VALIDATE_BACKWARD_H_
