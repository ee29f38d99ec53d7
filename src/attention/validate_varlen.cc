#include <algorithm>
#include <utility>

#include "attention/validate.h"
#include "attention/validate_backward.h"
#include "attention/validate_parts.h"

namespace qkv::attention_detail {
namespace {

using kernels::BackwardProblem;
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

constexpr std::string_view kNoShape = "rows of unequal length have no common shape";

void refuse_if(bool given, std::string_view name, std::string_view reason, const Arguments& arguments) {
  if (given) arguments.refuse<ValueError>(name, "a ragged batch takes none: {}", reason);
}

void refuse_what_is_not_ragged(const AttentionOptions& options, const Arguments& arguments) {
  refuse_if(options.mask.has_value(), "mask", kNoShape, arguments);
  refuse_if(options.bias.has_value(), "bias", kNoShape, arguments);
  refuse_if(options.kv_lens.has_value(), "kv_lens", "cu_seqlens_k says how long each segment is", arguments);
}

void refuse_matrices(const AttentionOutputs& outputs, const Arguments& arguments) {
  refuse_if(outputs.weights.has_value(), "weights", kNoShape, arguments);
  refuse_if(outputs.logits.has_value(), "logits", kNoShape, arguments);
}

/// Rows [begin, ..) of an operand or result.
template <class Strided>
void advance(Strided& operand, std::int64_t begin) {
  if (operand) operand.data = operand.address(0, 0, begin);
}

/// The numbers of one segment, where each has its own.
template <class Strided>
void choose(Strided& per_head, std::int64_t segment) {
  if (per_head) per_head.data = per_head.address(segment, 0);
}

/// What is ragged of a call: the bounds of its segments.
struct Bounds {
  Lengths q;
  Lengths k;
};

/// One segment as a call of its own. `whole` has no lists by batch.
ForwardProblem segment_of(const ForwardProblem& whole, std::int64_t index, const Bounds& bounds) {
  const Lengths& q_bounds = bounds.q;
  const Lengths& k_bounds = bounds.k;
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

Bounds read_bounds(const VarlenOptions& options, Arguments& arguments, const ForwardProblem& whole) {
  Bounds bounds{read_cumulative("cu_seqlens_q", options.cu_seqlens_q, "total_q", whole.q_len, arguments),
                read_cumulative("cu_seqlens_k", options.cu_seqlens_k, "total_kv", whole.kv_len, arguments)};
  if (bounds.q.size() != bounds.k.size()) {
    arguments.refuse<ShapeError>("cu_seqlens_k", "expected [num_segments + 1] = [{}] as in cu_seqlens_q, got [{}]",
                                 bounds.q.size(), bounds.k.size());
  }
  return bounds;
}

/// The options of a call whose batch is its segments.
void resolve_ragged_options(const AttentionOptions& options, const Bounds& bounds, Arguments& arguments,
                            ForwardProblem& whole) {
  whole.batch = static_cast<std::int64_t>(bounds.q.size()) - 1;
  resolve_options(options, arguments, whole);
}

/// Calls visit(segment, the segment as a call of its own).
template <class Visit>
void for_each_segment(ForwardProblem& whole, const Bounds& bounds, const AttentionOptions& options,
                      const Visit& visit) {
  const Lengths offsets = std::exchange(whole.query_offset, {});
  whole.kv_lens.clear();
  for (std::int64_t s = 0; s < whole.batch; ++s) {
    ForwardProblem segment = segment_of(whole, s, bounds);
    const bool is_default = options.query_offset.is_default();
    segment.query_offset = {is_default ? segment.kv_len - segment.q_len : offsets[static_cast<std::size_t>(s)]};
    visit(s, std::move(segment));
  }
}

/// The same of its gradients.
BackwardProblem segment_of(const BackwardProblem& whole, std::int64_t index, const Bounds& bounds,
                           ForwardProblem segment) {
  const auto at = static_cast<std::size_t>(index);
  BackwardProblem part = whole;
  part.forward = std::move(segment);
  for (kernels::Operand* operand : {&part.out, &part.lse, &part.grad_out, &part.grad_lse, &part.grad_entropy}) {
    advance(*operand, bounds.q[at]);
  }
  advance(part.grad_q, bounds.q[at]);
  advance(part.grad_k, bounds.k[at]);
  advance(part.grad_v, bounds.k[at]);
  choose(part.grad_sinks, index);
  return part;
}

}  // namespace

std::vector<ForwardProblem> validate_varlen(const ConstTensorView& q, const ConstTensorView& k,
                                            const ConstTensorView& v, const TensorView& out,
                                            const VarlenOptions& options, const AttentionOutputs& outputs) {
  Arguments arguments("qkv::attention_varlen");
  ForwardProblem whole;
  resolve_operands(q, k, v, kRaggedForm, arguments, whole);
  resolve_out(out, kRaggedForm, arguments, whole);
  const Bounds bounds = read_bounds(options, arguments, whole);
  refuse_what_is_not_ragged(options.attention, arguments);
  refuse_matrices(outputs, arguments);
  resolve_ragged_options(options.attention, bounds, arguments, whole);
  whole.kv_len = longest(bounds.k);  // what stats.keys may name
  resolve_outputs(outputs, kRaggedForm.row, arguments, whole);

  std::vector<ForwardProblem> segments;
  for_each_segment(whole, bounds, options.attention, [&](std::int64_t, ForwardProblem segment) {
    if (segment.q_len > 0) segments.push_back(std::move(segment));
  });
  return segments;
}

std::vector<BackwardProblem> validate_varlen_backward(const AttentionInputs& inputs, const AttentionSaved& saved,
                                                      const AttentionGradients& gradients,
                                                      const VarlenOptions& options) {
  Arguments arguments("qkv::attention_varlen_backward");
  BackwardProblem whole;
  ForwardProblem& forward = whole.forward;
  resolve_operands(inputs.q, inputs.k, inputs.v, kRaggedForm, arguments, forward);
  resolve_saved(saved, gradients, kRaggedForm, arguments, whole);
  const Bounds bounds = read_bounds(options, arguments, forward);
  refuse_what_is_not_ragged(options.attention, arguments);
  // Before the batch becomes the number of segments.
  resolve_gradients(gradients, options.attention, kRaggedForm, arguments, whole);
  resolve_ragged_options(options.attention, bounds, arguments, forward);

  std::vector<BackwardProblem> segments;
  for_each_segment(forward, bounds, options.attention, [&](std::int64_t index, ForwardProblem segment) {
    // Of its own sinks even an empty segment has a gradient, 0.
    if (segment.q_len == 0 && segment.kv_len == 0 && whole.grad_sinks.batch == 0) return;
    segments.push_back(segment_of(whole, index, bounds, std::move(segment)));
  });
  return segments;
}

}  // namespace qkv::attention_detail
