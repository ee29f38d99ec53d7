#ifndef QKV_SRC_ATTENTION_FORWARD_H_
#define QKV_SRC_ATTENTION_FORWARD_H_

#include <string_view>

#include "kernels/forward_problem.h"

namespace qkv::attention_detail {

/// Runs a validated call on the kernels of `target`, a name of kernels::simd_targets(), and on all threads.
void forward(const kernels::ForwardProblem& problem, std::string_view target);

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_FORWARD_H_
