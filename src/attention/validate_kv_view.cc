#include <algorithm>
#include <utility>
#include <vector>

#include "attention/kv_positions.h"
#include "attention/rope_angles.h"
#include "attention/validate.h"
#include "attention/validate_parts.h"
#include "kernels/visibility.h"

namespace qkv::attention_detail {
namespace {

using kernels::ForwardProblem;
using kernels::KeyPlaces;
using kernels::KeyRange;
using kernels::Operand;

using Integers = std::vector<std::int64_t>;

/// The scales of an int8 operand; none beside another.
Operand resolve_scales(std::string_view name, const std::optional<ConstTensorView>& scales,
                       const ConstTensorView& numbers, const OperandForm& form, Arguments& arguments) {
  const bool whole = numbers.dtype() == Dtype::kInt8;
  if (!scales) {
    if (whole) arguments.refuse<ValueError>(name, "not given beside numbers of int8, which have a scale a key");
    return {};
  }
  if (!whole) arguments.refuse<ValueError>(name, "given beside numbers of {}, which have none", numbers.dtype());
  const ConstTensorView view = arguments.read(name, *scales, {form.scale_axes, 3, 3});
  arguments.expect_dtype(name, *scales, Dtype::kFloat32);
  const Extents& shape = numbers.shape();
  arguments.expect_shape(name, *scales, view, {shape[0], shape[1], shape[2]}, form.scale_axes);
  return operand_of(view);
}

Integers read_lengths(const KVView& kv, const ForwardProblem& problem, Arguments& arguments) {
  Integers lengths = read_integers("kv.lengths", kv.lengths, "[batch]", problem.batch, arguments);
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    if (lengths[b] < 0 || lengths[b] > ForwardProblem::kMostPosition) {
      arguments.refuse<ValueError>("kv.lengths", "expected a number of keys in 0..2^60, got {} for batch {}",
                                   lengths[b], b);
    }
  }
  return lengths;
}

/// The pages of every sequence, those behind its last page as 0.
KeyPlaces resolve_pages(const ConstTensorView& given, const Integers& lengths, const ForwardProblem& problem,
                        std::int64_t num_pages, Arguments& arguments) {
  const ConstTensorView view = arguments.read("kv.page_table", given, {"[batch, most pages]", 2, 2});
  expect_integers("kv.page_table", given, arguments);
  if (view.extent(0) != problem.batch) {
    arguments.refuse<ShapeError>("kv.page_table", "expected batch {} as in q, got {} in {}", problem.batch,
                                 view.extent(0), given.shape());
  }
  const std::int64_t page_size = problem.kv_len;
  const std::int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  if (longest > 0 && page_size == 0) arguments.refuse<ShapeError>("kv.k", "page_size is 0");
  const auto pages_for = [page_size](std::int64_t length) { return length == 0 ? 0 : (length - 1) / page_size + 1; };
  const std::int64_t width = std::min(view.extent(1), pages_for(longest));
  Integers table(static_cast<std::size_t>(problem.batch * width), 0);
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const std::int64_t length = lengths[static_cast<std::size_t>(b)];
    const std::int64_t pages = pages_for(length);
    if (pages > width) {
      arguments.refuse<ValueError>("kv.page_table", "{} keys of batch {} need {} pages of {}, got {} in {}", length, b,
                                   pages, page_size, view.extent(1), given.shape());
    }
    for (std::int64_t p = 0; p < pages; ++p) {
      const std::int64_t page = integer_at(view, b * view.stride(0) + p * view.stride(1));
      if (page < 0 || page >= num_pages) {
        arguments.refuse<ValueError>("kv.page_table", "expected one of the {} pages, from 0 on, got {} at [{}, {}]",
                                     num_pages, page, b, p);
      }
      table[static_cast<std::size_t>(b * width + p)] = page;
    }
  }
  return KeyPlaces::in_pages(std::move(table), width, std::max<std::int64_t>(page_size, 1));
}

KeyPlaces resolve_slots(const KVView& kv, const Integers& lengths, const ForwardProblem& problem,
                        const Arguments& arguments) {
  const std::int64_t slots = problem.kv_len;
  if (kv.kept_from) {
    if (kv.num_sinks >= slots && std::any_of(lengths.begin(), lengths.end(), [](std::int64_t n) { return n > 0; })) {
      arguments.refuse<ShapeError>("kv.k", "{} slots leave none for a ring behind {} sinks", slots, kv.num_sinks);
    }
    return KeyPlaces::in_ring(kv.num_sinks, std::max<std::int64_t>(slots - kv.num_sinks, 1));
  }
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    if (lengths[b] <= slots) continue;
    arguments.refuse<ValueError>("kv.lengths", "expected at most {} slots of kv.k, got {} for batch {}", slots,
                                 lengths[b], b);
  }
  return {};
}

/// By batch, the lowest key behind the sinks that a ring still holds.
Integers read_kept_from(const KVView& kv, const Integers& lengths, std::int64_t slots, const ForwardProblem& problem,
                        Arguments& arguments) {
  Integers kept = read_integers("kv.kept_from", *kv.kept_from, "[batch]", problem.batch, arguments);
  for (std::size_t b = 0; b < kept.size(); ++b) {
    const std::int64_t lowest = std::max(kv.num_sinks, lengths[b] - (slots - kv.num_sinks));
    if (kept[b] < lowest) {
      arguments.refuse<ValueError>("kv.kept_from",
                                   "expected {} or more, as {} slots hold of {} keys, got {} for batch {}", lowest,
                                   slots, lengths[b], kept[b], b);
    }
  }
  return kept;
}

/// Before masks, logits are of every key: all sequences must have as many.
void check_logits(const Integers& lengths, const ForwardProblem& problem, const Arguments& arguments) {
  if (!problem.logits || problem.logits_stage == LogitsStage::kMasked) return;
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    if (lengths[b] == problem.kv_len) continue;
    arguments.refuse<ValueError>("logits", "before masks they are of every key, and batch {} has {} of {} keys", b,
                                 lengths[b], problem.kv_len);
  }
}

/// Every key that a row sees must still be there.
void check_kept(const Integers& kept_from, const ForwardProblem& problem, const Arguments& arguments) {
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const std::int64_t kept = kept_from[static_cast<std::size_t>(b)];
    if (kept <= problem.num_sink_keys) continue;  // nothing has been dropped
    if (problem.logits && problem.logits_stage != LogitsStage::kMasked) {
      arguments.refuse<ValueError>(
          "logits", "before masks they are of every key, and the ring holds keys from {} on alone", kept);
    }
    const KeyRange seen = rows_range(problem, b, 0, problem.q_len);
    const std::int64_t first = std::max(seen.begin, problem.num_sink_keys);
    if (seen.end <= first || first >= kept) continue;
    arguments.refuse<ValueError>(
        "q",
        "the first of {} rows of batch {}, at position {}, sees keys from {} on, but the ring holds those from {} on; "
        "append fewer keys between two calls, or give a narrower window",
        problem.q_len, b, problem.query_offset[static_cast<std::size_t>(b)], first, kept);
  }
}

/// Every row is where a rope can turn it. Those that have left keys behind turn where the last one before them does.
void check_positions(bool in_cache, const ForwardProblem& problem, const Arguments& arguments) {
  if (problem.q_len == 0) return;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const std::int64_t first = problem.query_offset[static_cast<std::size_t>(b)];
    const std::int64_t last = first + problem.q_len - 1;
    const std::int64_t farthest = in_cache ? last - shift_at(problem, last) : last;
    if (first >= -kFarthestPosition && farthest <= kFarthestPosition) continue;
    arguments.refuse<ValueError>(
        "query_offset",
        "the {} rows of batch {} are at positions {} to {}, but kv.rope turns those from -2^53 "
        "to 2^53 alone",
        problem.q_len, b, first, last);
  }
}

/// What has no meaning where keys have places instead of positions.
void check_in_cache(const ForwardProblem& problem, const Arguments& arguments) {
  if (problem.alibi_slopes) {
    arguments.refuse<ValueError>("alibi_slopes",
                                 "given beside positions within the cache: the distances of ALiBi are of absolute "
                                 "positions, those of kv.rope of places; use one of them");
  }
  if (!problem.logits || problem.logits_stage == LogitsStage::kMasked || problem.q_len == 0) return;
  for (std::size_t b = 0; b < problem.query_offset.size(); ++b) {
    const std::int64_t last = problem.query_offset[b] + problem.q_len - 1;
    if (shift_at(problem, last) == 0) continue;
    arguments.refuse<ValueError>(
        "logits",
        "before masks they are of every key, and those that the row at position {} of batch {} "
        "has left behind have no place in the cache",
        last, b);
  }
}

AttentionOptions with_rules(const AttentionOptions& given, const KVView& kv, const Integers& lengths,
                            const Arguments& arguments) {
  if (given.kv_lens) arguments.refuse<ValueError>("kv_lens", "a cache takes none: it knows the lengths");
  if (kv.num_sinks < 0) arguments.refuse<ValueError>("kv.num_sinks", "expected 0 or more, got {}", kv.num_sinks);
  AttentionOptions options = given;
  options.kv_lens = view(lengths.data(), {static_cast<std::int64_t>(lengths.size())});
  if (!kv.window) return options;
  if (*kv.window < 1) arguments.refuse<ValueError>("kv.window", "expected 1 or more, got {}", *kv.window);
  if (!given.window.left && !given.window.right) options.window.left = *kv.window - 1;
  return options;
}

}  // namespace

ForwardProblem validate_kv_view(const ConstTensorView& q, const KVView& kv, const TensorView& out,
                                const AttentionOptions& options, const AttentionOutputs& outputs) {
  Arguments arguments("qkv::attention");
  const OperandForm& form = kv.page_table ? kPagedForm : kCacheForm;
  ForwardProblem problem;
  resolve_operands(q, kv.k, kv.v, form, arguments, problem);
  resolve_out(out, form, arguments, problem);
  problem.k_scales = resolve_scales("kv.k_scales", kv.k_scales, kv.k, form, arguments);
  problem.v_scales = resolve_scales("kv.v_scales", kv.v_scales, kv.v, form, arguments);
  check_cached_rope("qkv::attention", "kv.", kv.rope, kv.positions, problem.head_dim);
  const Integers lengths = read_lengths(kv, problem, arguments);
  const AttentionOptions all_options = with_rules(options, kv, lengths, arguments);
  const std::int64_t slots = problem.kv_len;
  problem.key_places = kv.page_table ? resolve_pages(*kv.page_table, lengths, problem, kv.k.extent(0), arguments)
                                     : resolve_slots(kv, lengths, problem, arguments);
  problem.kv_len = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  problem.num_sink_keys = kv.num_sinks;
  Integers kept_from;
  if (kv.kept_from) {
    if (kv.page_table) arguments.refuse<ValueError>("kv.kept_from", "given beside kv.page_table: pages form no ring");
    kept_from = read_kept_from(kv, lengths, slots, problem, arguments);
  }
  resolve_options(all_options, arguments, problem);
  const bool in_cache = kv.positions == CachePositions::kCache;
  if (kv.rope) check_positions(in_cache, problem, arguments);
  resolve_outputs(outputs, form.row, arguments, problem);
  if (in_cache) check_in_cache(problem, arguments);
  check_logits(lengths, problem, arguments);
  if (kv.kept_from) check_kept(kept_from, problem, arguments);
  return problem;
}

}  // namespace qkv::attention_detail
