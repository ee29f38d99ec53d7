#include <algorithm>
#include <utility>

#include "attention/validate.h"
#include "attention/validate_parts.h"

namespace qkv::attention_detail {
namespace {

using kernels::ForwardProblem;

using Lengths = std::vector<std::int64_t>;

/// The bounds of the segments, from 0 to `total`.
Lengths read_cumulative(std::string_view name, const ConstTensorView& given, std::string_view total_name,
                        std::int64_t total, Arguments& arguments) {
  Lengths bounds = read_integers(name, given, "[num_segments + 1]", std::nullopt, arguments);
  if (bounds.empty())
    arguments.refuse<ShapeError>(name, "expected [num_segments + 1] numbers, at least the 0, got [0]");
  if (bounds.front() != 0) arguments.refuse<ValueError>(name, "expected to begin with 0, got {}", bounds.front());
  for (std::size_t i = 1; i < bounds.size(); ++i) {
    if (bounds[i] < bounds[i - 1]) {
      arguments.refuse<ValueError>(name, "decreases from {} to {} at index {}", bounds[i - 1], bounds[i], i);
    }
  }
  if (bounds.back() != total) {
    arguments.refuse<ValueError>(name, "expected to end with {} = {}, got {}", total_name, total, bounds.back());
  }
  return bounds;
}

std::int64_t longest(const Lengths& bounds) {
  std::int64_t length = 0;
  for (std::size_t i = 1; i < bounds.size(); ++i) length = std::max(length, bounds[i] - bounds[i - 1]);
  return length;
}

void refuse_what_is_not_ragged(const AttentionOptions& options, const AttentionOutputs& outputs,
                               const Arguments& arguments) {
  const auto refuse = [&](bool given, std::string_view name, std::string_view reason) {
    if (given) arguments.refuse<ValueError>(name, "a ragged batch takes none: {}", reason);
  };
  refuse(options.mask.has_value(), "mask", "rows of unequal length have no common shape");
  refuse(options.bias.has_value(), "bias", "rows of unequal length have no common shape");
  refuse(options.kv_lens.has_value(), "kv_lens", "cu_seqlens_k says how long each segment is");
  refuse(outputs.weights.has_value(), "weights", "rows of unequal length have no common shape");
  refuse(outputs.logits.has_value(), "logits", "rows of unequal length have no common shape");
}

/// Rows [begin, ..) of an operand or result.
template <class Strided>
void advance(Strided& operand, std::int64_t begin) {
  if (operand) operand.data = operand.address(0, 0, begin);
}

/// The numbers of one segment, where each has its own.
void choose(kernels::Operand& per_head, std::int64_t segment) {
  if (per_head) per_head.data = per_head.address(segment, 0);
}

/// One segment as a call of its own. `whole` has no lists by batch.
ForwardProblem segment_of(const ForwardProblem& whole, std::int64_t index, const Lengths& q_bounds,
                          const Lengths& k_bounds) {
  const auto at = static_cast<std::size_t>(index);
  ForwardProblem part = whole;
  part.batch = 1;
  part.first_batch = index;
  part.q_len = q_bounds[at + 1] - q_bounds[at];
  part.kv_len = k_bounds[at + 1] - k_bounds[at];
  part.kv_lens = {part.kv_len};
  advance(part.q, q_bounds[at]);
  advance(part.k, k_bounds[at]);
  advance(part.v, k_bounds[at]);
  for (kernels::Result* result : {&part.out, &part.lse, &part.max_raw, &part.max_logit, &part.max_key, &part.max_weight,
                                  &part.entropy, &part.key_weight}) {
    advance(*result, q_bounds[at]);
  }
  choose(part.sinks, index);
  choose(part.alibi_slopes, index);
  return part;
}

}  // namespace

std::vector<ForwardProblem> validate_varlen(const ConstTensorView& q, const ConstTensorView& k,
                                            const ConstTensorView& v, const TensorView& out,
                                            const VarlenOptions& options, const AttentionOutputs& outputs) {
  Arguments arguments("qkv::attention_varlen");
  ForwardProblem whole;
  resolve_operands(q, k, v, out, kRaggedForm, arguments, whole);
  const Lengths q_bounds = read_cumulative("cu_seqlens_q", options.cu_seqlens_q, "total_q", whole.q_len, arguments);
  const Lengths k_bounds = read_cumulative("cu_seqlens_k", options.cu_seqlens_k, "total_kv", whole.kv_len, arguments);
  if (q_bounds.size() != k_bounds.size()) {
    arguments.refuse<ShapeError>("cu_seqlens_k", "expected [num_segments + 1] = [{}] as in cu_seqlens_q, got [{}]",
                                 q_bounds.size(), k_bounds.size());
  }
  refuse_what_is_not_ragged(options.attention, outputs, arguments);
  whole.batch = static_cast<std::int64_t>(q_bounds.size()) - 1;
  resolve_options(options.attention, arguments, whole);
  whole.kv_len = longest(k_bounds);  // what stats.keys may name
  resolve_outputs(outputs, kRaggedForm.row, arguments, whole);

  const Lengths offsets = std::exchange(whole.query_offset, {});
  whole.kv_lens.clear();
  std::vector<ForwardProblem> segments;
  for (std::int64_t s = 0; s < whole.batch; ++s) {
    ForwardProblem segment = segment_of(whole, s, q_bounds, k_bounds);
    const bool is_default = options.attention.query_offset.is_default();
    segment.query_offset = {is_default ? segment.kv_len - segment.q_len : offsets[static_cast<std::size_t>(s)]};
    if (segment.q_len > 0) segments.push_back(std::move(segment));
  }
  return segments;
}

}  // namespace qkv::attention_detail
