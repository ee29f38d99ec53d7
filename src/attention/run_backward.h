#ifndef QKV_SRC_ATTENTION_RUN_BACKWARD_H_
#define QKV_SRC_ATTENTION_RUN_BACKWARD_H_

#include <span>
#include <string_view>

#include "kernels/backward_problem.h"

namespace qkv::attention_detail {

/// Runs checked backward calls of the same operands and options on the kernels of a target: one, or the segments of a
/// ragged batch, whose gradients of shared sinks are summed.
void run_backward(std::span<kernels::BackwardProblem> calls, std::string_view target);

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_RUN_BACKWARD_H_
