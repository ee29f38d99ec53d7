#include <algorithm>
#include <numeric>
#include <optional>

#include "attention/validate_parts.h"

namespace qkv::attention_detail {
namespace {

using kernels::ForwardProblem;
using kernels::Result;

/// Outputs of a number a row: lse and the statistics.
class RowOutputs {
 public:
  RowOutputs(const Axes& axes, Arguments& arguments, const ForwardProblem& problem)
      : axes_(axes), arguments_(arguments), problem_(problem) {}

  Result resolve(std::string_view name, const std::optional<TensorView>& given, Dtype dtype) {
    if (!given) return {};
    const TensorView view = arguments_.written(name, *given, axes_);
    arguments_.expect_dtype(name, *given, dtype);
    check_row(name, *given, view, axes_, arguments_, problem_);
    return per_row(result_of(view), axes_);
  }

 private:
  const Axes& axes_;
  Arguments& arguments_;
  const ForwardProblem& problem_;
};

Result write_per_key(std::string_view name, const TensorView& given, const Extents& expected, const Axes& axes,
                     Arguments& arguments, Dtype dtype) {
  const TensorView view = arguments.written(name, given, axes);
  arguments.expect_dtype(name, given, dtype);
  arguments.expect_shape(name, given, view, expected, axes.names);
  return result_of(view);
}

void check_indices(std::string_view name, const std::vector<std::int64_t>& indices, std::string_view extent_name,
                   std::int64_t extent, const Arguments& arguments) {
  for (const std::int64_t index : indices) {
    if (index < 0 || index >= extent) {
      arguments.refuse<ValueError>(name, "expected indices from 0 to below {} = {}, got {}", extent_name, extent,
                                   index);
    }
  }
}

std::vector<std::int64_t> all_of(std::int64_t extent) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(extent));
  std::iota(indices.begin(), indices.end(), std::int64_t{0});
  return indices;
}

void resolve_weights(const Weights& weights, Arguments& arguments, ForwardProblem& problem) {
  const std::vector<std::int64_t> heads = weights.heads ? *weights.heads : all_of(problem.num_heads);
  const std::vector<std::int64_t> rows = weights.rows ? *weights.rows : all_of(problem.q_len);
  check_indices("weights.heads", heads, "num_heads", problem.num_heads, arguments);
  check_indices("weights.rows", rows, "q_len", problem.q_len, arguments);
  problem.weight_heads = kernels::SlotIndex(heads);
  problem.weight_rows = kernels::SlotIndex(rows);
  const Extents expected{problem.batch, static_cast<std::int64_t>(heads.size()), static_cast<std::int64_t>(rows.size()),
                         problem.kv_len};
  problem.weights =
      write_per_key("weights.out", weights.out, expected, {"[batch, number of heads, number of rows, kv_len]", 1, 4},
                    arguments, stats_dtype(problem.dtype));
}

void resolve_logits(const Logits& logits, Arguments& arguments, ForwardProblem& problem) {
  const auto stage = static_cast<int>(logits.stage);
  if (stage < static_cast<int>(LogitsStage::kScaled) || stage > static_cast<int>(LogitsStage::kMasked)) {
    arguments.refuse<ValueError>("logits.stage", "expected scaled, capped or masked, got the number {}", stage);
  }
  problem.logits_stage = logits.stage;
  problem.logits =
      write_per_key("logits.out", logits.out, {problem.batch, problem.num_heads, problem.q_len, problem.kv_len},
                    {"[batch, num_heads, q_len, kv_len]", 1, 4}, arguments, stats_dtype(problem.dtype));
}

void resolve_stats(const Stats& stats, RowOutputs& rows, Arguments& arguments, ForwardProblem& problem) {
  const Dtype dtype = stats_dtype(problem.dtype);
  problem.max_raw = rows.resolve("stats.max_raw", stats.max_raw, dtype);
  problem.max_logit = rows.resolve("stats.max_logit", stats.max_logit, dtype);
  problem.max_key = rows.resolve("stats.max_key", stats.max_key, Dtype::kInt64);
  problem.max_weight = rows.resolve("stats.max_weight", stats.max_weight, dtype);
  problem.entropy = rows.resolve("stats.entropy", stats.entropy, dtype);
  problem.key_weight = rows.resolve("stats.key_weight", stats.key_weight, dtype);
  check_indices("stats.keys", stats.keys, "kv_len", problem.kv_len, arguments);
  problem.stats_keys = stats.keys;
  std::sort(problem.stats_keys.begin(), problem.stats_keys.end());
  const auto twice = std::adjacent_find(problem.stats_keys.begin(), problem.stats_keys.end());
  if (twice != problem.stats_keys.end()) {
    arguments.refuse<ValueError>("stats.keys", "key {} is listed more than once", *twice);
  }
}

}  // namespace

void check_row(std::string_view name, const ConstTensorView& given, const ConstTensorView& lifted, const Axes& axes,
               const Arguments& arguments, const ForwardProblem& problem) {
  const Extents expected = axes.most == 3 ? Extents{problem.batch, problem.num_heads, problem.q_len}
                                          : Extents{problem.num_heads, problem.q_len};
  arguments.expect_shape(name, given, lifted, expected, axes.names);
}

void resolve_outputs(const AttentionOutputs& outputs, const Axes& row_axes, Arguments& arguments,
                     ForwardProblem& problem) {
  RowOutputs rows(row_axes, arguments, problem);
  problem.lse = rows.resolve("lse", outputs.lse, stats_dtype(problem.dtype));
  if (outputs.weights) resolve_weights(*outputs.weights, arguments, problem);
  if (outputs.logits) resolve_logits(*outputs.logits, arguments, problem);
  if (outputs.stats) resolve_stats(*outputs.stats, rows, arguments, problem);
}

}  // namespace qkv::attention_detail
