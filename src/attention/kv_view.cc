#include "qkv/kv_view.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

#include "attention/forward.h"
#include "attention/forward_in_cache.h"
#include "attention/targets.h"
#include "attention/validate.h"
#include "attention/validate_parts.h"
#include "reference/attention.h"

namespace qkv {
namespace {

using kernels::ForwardProblem;

/// The position of every row, [batch, q_len].
std::vector<std::int64_t> row_positions(const ForwardProblem& problem) {
  std::vector<std::int64_t> positions;
  positions.reserve(static_cast<std::size_t>(problem.batch * problem.q_len));
  for (const std::int64_t first : problem.query_offset) {
    for (std::int64_t i = 0; i < problem.q_len; ++i) positions.push_back(first + i);
  }
  return positions;
}

/// q, of a call that has been checked, as it meets keys that have been turned.
Tensor turned_queries(const ForwardProblem& problem, const Rope& rope) {
  const kernels::Operand& q = problem.q;
  const Extents shape{problem.batch, problem.num_heads, problem.q_len, problem.head_dim};
  Tensor turned(shape, problem.dtype);
  if (turned.num_elements() == 0) return turned;
  const ConstTensorView given(q.data, q.dtype, shape, {q.batch, q.head, q.row, q.col});
  const auto& offsets = problem.query_offset;
  if (std::adjacent_find(offsets.begin(), offsets.end(), std::not_equal_to<>()) == offsets.end()) {
    rope.apply(given, offsets.front(), turned);
  } else {
    const std::vector<std::int64_t> positions = row_positions(problem);
    rope.apply(given, view(positions.data(), {problem.batch, problem.q_len}), turned);
  }
  return turned;
}

}  // namespace

void attention(ConstTensorView q, const KVView& kv, TensorView out, const AttentionOptions& options,
               const AttentionOutputs& outputs) {
  ForwardProblem problem = attention_detail::validate_kv_view(q, kv, out, options, outputs);
  const std::string_view target = attention_detail::current_target();
  const bool turns_keys = kv.positions == CachePositions::kCache;
  if (turns_keys && target != attention_detail::kReferenceTarget) {
    return attention_detail::forward_in_cache(problem, *kv.rope, target);
  }
  Tensor turned;
  if (kv.rope && !turns_keys) {
    turned = turned_queries(problem, *kv.rope);
    q = turned;
    problem.q = attention_detail::operand_of(q);
  }
  if (target == attention_detail::kReferenceTarget) {
    reference::forward_kv_view(q, kv, out, options, outputs);
  } else {
    attention_detail::forward({&problem, 1}, target);
  }
}

void reference::attention(ConstTensorView q, const KVView& kv, TensorView out, const AttentionOptions& options,
                          const AttentionOutputs& outputs) {
  const ForwardProblem problem = attention_detail::validate_kv_view(q, kv, out, options, outputs);
  if (!kv.rope || kv.positions == CachePositions::kCache) return forward_kv_view(q, kv, out, options, outputs);
  forward_kv_view(turned_queries(problem, *kv.rope), kv, out, options, outputs);
}

}  // namespace qkv
