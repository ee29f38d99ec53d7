#ifndef QKV_SRC_ATTENTION_FORWARD_IN_CACHE_H_
#define QKV_SRC_ATTENTION_FORWARD_IN_CACHE_H_

#include <string_view>

#include "kernels/forward_problem.h"
#include "qkv/position.h"

namespace qkv::attention_detail {

/// Runs a validated call over keys that have not been turned (CachePositions::kCache) on the kernels of `target`: rows
/// of one shift after the other, those of all sequences together.
void forward_in_cache(const kernels::ForwardProblem& problem, const Rope& rope, std::string_view target);

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_FORWARD_IN_CACHE_H_
