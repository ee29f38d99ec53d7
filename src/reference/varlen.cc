#include "qkv/varlen.h"

#include <cstdint>
#include <optional>

#include "reference/attention.h"
#include "reference/backward.h"
#include "reference/element.h"

namespace qkv::reference {
namespace {

/// Rows [begin, end) of one segment.
struct Rows {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

Rows rows_of(const ConstTensorView& cumulative, std::int64_t segment) {
  return {integer(cumulative, {segment}), integer(cumulative, {segment + 1})};
}

/// [length, heads, dim] of a segment as [heads, length, dim].
template <class View>
View by_head(const View& view, const Rows& rows) {
  return view.slice(0, rows.begin, rows.end).permute({1, 0, 2});
}

void choose(std::optional<ConstTensorView>& per_head, std::int64_t segment) {
  if (per_head && per_head->rank() == 2) per_head = per_head->slice(0, segment, segment + 1);
}

AttentionOptions options_of(const AttentionOptions& all, std::int64_t segment) {
  AttentionOptions options = all;
  choose(options.sinks, segment);
  choose(options.alibi_slopes, segment);
  if (all.query_offset.per_batch() != nullptr) options.query_offset = integer(*all.query_offset.per_batch(), {segment});
  return options;
}

AttentionOutputs outputs_of(const AttentionOutputs& all, const Rows& rows) {
  AttentionOutputs outputs = all;
  const auto cut = [&](std::optional<TensorView>& per_row) {
    if (per_row) per_row = per_row->slice(1, rows.begin, rows.end);
  };
  cut(outputs.lse);
  if (!outputs.stats) return outputs;
  for (auto* member : {&outputs.stats->max_raw, &outputs.stats->max_logit, &outputs.stats->max_key,
                       &outputs.stats->max_weight, &outputs.stats->entropy, &outputs.stats->key_weight}) {
    cut(*member);
  }
  return outputs;
}

/// @param sinks  [num_segments, num_heads]
AttentionGradients gradients_of(const AttentionGradients& all, const Rows& queries, const Rows& keys,
                                const std::optional<TensorView>& sinks, std::int64_t segment) {
  AttentionGradients part = all;
  part.grad_out = by_head(all.grad_out, queries);
  for (auto* member : {&part.grad_lse, &part.grad_entropy}) {
    if (*member) *member = (*member)->slice(1, queries.begin, queries.end);
  }
  if (all.grad_q) part.grad_q = by_head(*all.grad_q, queries);
  if (all.grad_k) part.grad_k = by_head(*all.grad_k, keys);
  if (all.grad_v) part.grad_v = by_head(*all.grad_v, keys);
  if (sinks) part.grad_sinks = sinks->slice(0, segment, segment + 1);
  return part;
}

/// gradient += the sums of all segments
void add_segments(const Tensor& sums, bool accumulate, const TensorView& gradient) {
  for (std::int64_t h = 0; h < gradient.extent(0); ++h) {
    double sum = accumulate ? number(gradient, {h}) : 0.0;
    for (std::int64_t s = 0; s < sums.shape()[0]; ++s) sum += number(sums, {s, h});
    store(gradient, {h}, sum);
  }
}

}  // namespace

void forward_varlen(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                    const VarlenOptions& options, const AttentionOutputs& outputs) {
  for (std::int64_t s = 0; s + 1 < options.cu_seqlens_q.extent(0); ++s) {
    const Rows queries = rows_of(options.cu_seqlens_q, s);
    const Rows keys = rows_of(options.cu_seqlens_k, s);
    forward({.q = by_head(q, queries),
             .k = by_head(k, keys),
             .v = by_head(v, keys),
             .options = options_of(options.attention, s),
             .first_batch = s},
            by_head(out, queries), outputs_of(outputs, queries));
  }
}

void backward_varlen(const AttentionInputs& inputs, const AttentionGradients& gradients, const VarlenOptions& options) {
  const std::int64_t num_segments = options.cu_seqlens_q.extent(0) - 1;
  const bool shared_sinks = gradients.grad_sinks && gradients.grad_sinks->rank() == 1;
  Tensor sums;
  std::optional<TensorView> sinks = gradients.grad_sinks;
  if (shared_sinks) {
    sums = Tensor({num_segments, gradients.grad_sinks->extent(0)}, Dtype::kFloat64);
    sinks = sums.view();
  }
  for (std::int64_t s = 0; s < num_segments; ++s) {
    const Rows queries = rows_of(options.cu_seqlens_q, s);
    const Rows keys = rows_of(options.cu_seqlens_k, s);
    backward({by_head(inputs.q, queries), by_head(inputs.k, keys), by_head(inputs.v, keys)},
             gradients_of(gradients, queries, keys, sinks, s), options_of(options.attention, s), s);
  }
  if (shared_sinks) add_segments(sums, gradients.accumulate, *gradients.grad_sinks);
}

}  // namespace qkv::reference
