#ifndef QKV_SRC_ATTENTION_KV_POSITIONS_H_
#define QKV_SRC_ATTENTION_KV_POSITIONS_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "attention/rope_metadata.h"
#include "kernels/forward_problem.h"
#include "qkv/kv_view.h"

namespace qkv::attention_detail {

/// How far the keys behind the sinks have moved up for a row at `position`, and the row itself: as many as its window
/// has left. No sum overflows: ForwardProblem::kMostPosition bounds every term, and more sinks than that are all keys.
inline std::int64_t shift_at(const kernels::ForwardProblem& problem, std::int64_t position) {
  using kernels::ForwardProblem;
  if (problem.window_left == ForwardProblem::kUnbounded) return 0;
  const std::int64_t sinks = std::min(problem.num_sink_keys, ForwardProblem::kMostPosition);
  return std::max<std::int64_t>(0, position - problem.window_left - sinks);
}

/// Refuses what no cache can be turned by. `function` begins the errors; the names of the options follow `prefix`.
void check_cached_rope(std::string_view function, std::string_view prefix, const std::optional<Rope>& rope,
                       CachePositions positions, std::int64_t head_dim);

/// What the file of a cache says of them: nothing where they are absolute, as files said before there were others.
void add_positions(CachePositions positions, Metadata& metadata);
/// @throws ValueError for a name that there is not
CachePositions positions_in(const Metadata& metadata);

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_KV_POSITIONS_H_
