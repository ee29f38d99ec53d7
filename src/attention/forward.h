#ifndef QKV_SRC_ATTENTION_FORWARD_H_
#define QKV_SRC_ATTENTION_FORWARD_H_

#include <span>
#include <string_view>

#include "kernels/forward_problem.h"

namespace qkv::attention_detail {

/// Runs validated calls of one dtype and one value_dim on the kernels of `target`, a name of kernels::simd_targets(), and
/// on all threads: one call, or the segments of a ragged batch.
void forward(std::span<const kernels::ForwardProblem> calls, std::string_view target);

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_FORWARD_H_
