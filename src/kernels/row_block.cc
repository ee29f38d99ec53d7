#include "kernels/row_block.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/scratch.h"
#include "kernels/key_order.h"
#include "kernels/tile_shape.h"

namespace qkv::kernels {
namespace {

constexpr std::int64_t kMaxRows = 192;           // a starting point, not yet tuned
constexpr std::int64_t kScratchBytes = 1 << 20;  // half of what the contract allows a thread

SoftmaxState take_state(ScratchArena& arena, const RowBlock& block) {
  const std::int64_t rows = block.num_rows;
  SoftmaxState state;
  state.max = arena.take<float>(rows);
  state.sum = arena.take<float>(rows);
  if (block.problem.rounds_weights()) state.divisor = arena.take<float>(rows);
  state.values = arena.take<float>(rows * block.value_stride);
  if (block.problem.wants_stats()) {
    state.entropy = arena.take<float>(rows);
    state.chosen = arena.take<float>(rows);
  }
  return state;
}

}  // namespace

bool Formula::representable(const ForwardProblem& problem) {
  const auto fits = [](double size) { return size == 0 || (size > 0x1p-100 && size < 0x1p100); };
  return fits(std::fabs(problem.scale)) && fits(problem.softcap);
}

Formula::Formula(const ForwardProblem& problem) {
  const double size = std::fabs(problem.scale);
  double power = 1;
  if (size > 0) {
    power = std::ldexp(1.0, std::ilogb(size));
    query_scale = static_cast<float>(std::copysign(power, problem.scale));
  }
  // A scale of 0 would turn the -inf of hidden keys into NaN in the plain exponent.
  general = problem.has_logit_terms() || problem.scale == 0;
  residual = size / power;
  factor = static_cast<float>((general ? 1 : residual) * std::numbers::log2e);
  softcap = static_cast<float>(problem.softcap);
}

bool packs_by_block(const ForwardProblem& problem) {
  constexpr std::int64_t kMostDims = 256;  // keys of a block take a quarter of a MiB of scratch at most
  // Weights and logits are formed a second time, after all blocks.
  const bool matrices = problem.weights || problem.logits;
  return !matrices && problem.head_dim <= kMostDims && problem.rows_of_head() <= 2 * kTileRows;
}

std::int64_t rows_per_block(const ForwardProblem& problem) {
  const std::int64_t row_bytes =
      (problem.head_dim + 2 * align_up(problem.value_dim, kMostLanes)) * std::int64_t{sizeof(float)};
  const std::int64_t fitting = kScratchBytes / std::max<std::int64_t>(row_bytes, 1);
  if (fitting >= kMaxRows) return kMaxRows;
  return std::max<std::int64_t>(1, fitting >= kTileRows ? align_down(fitting, kTileRows) : fitting);
}

Row make_row(const ForwardProblem& problem, std::int64_t batch, std::int64_t kv_head, std::int64_t row_of_head) {
  Row row;
  row.head = problem.query_head(kv_head, row_of_head);
  row.index = row_of_head % problem.q_len;
  row.keys = row_keys(problem, batch, row.head, row.index);
  if (problem.bias) row.bias = problem.bias.address(batch, row.head, row.index);
  if (problem.alibi_slopes) row.slope = static_cast<float>(problem.alibi_slopes.number(batch, row.head));
  if (problem.dropout > 0) row.dropout = row_dropout(problem, batch, row.head, row.keys.position);
  return row;
}

void begin_rows(RowBlock& block, std::int64_t row_begin, std::int64_t row_end, std::int64_t lanes,
                std::int64_t panel_columns) {
  const ForwardProblem& problem = block.problem;
  const bool stats = problem.wants_stats();
  ScratchArena arena;
  const std::int64_t rows = row_end - row_begin;
  block.num_rows = rows;
  block.value_stride = align_up(problem.value_dim, lanes);
  block.rows = arena.take<Row>(rows);
  block.queries = arena.take<float>(rows * block.depth);
  block.query_magnitude = arena.take<float>(rows);
  block.logits = arena.take<float>(kTileRows * kLogitStride);
  if (block.head.keys == nullptr) {
    block.own_keys = arena.take<float>(kKeyBlock * block.depth);
    block.packs_panels = rows <= kTileRows;
    block.values_in_place = !block.pairs && rows <= kTileRows && problem.v.col == 1 &&
                            problem.value_dim == block.value_stride && problem.value_dim > 0;
  }
  block.values = arena.take<float>(kKeyBlock * align_up(problem.value_dim, panel_columns));
  block.fresh = arena.take<bool>(rows);
  block.chunk = take_state(arena, block);
  if (stats) {
    block.max_logit = arena.take<float>(rows);
    block.max_raw = arena.take<float>(rows);
    block.max_key = arena.take<std::int64_t>(rows);
  }
  std::int64_t sinks = 0;
  KeyRange window;  // what rows see of it, the sinks apart
  for (std::int64_t r = 0; r < rows; ++r) {
    Row& row = block.rows[r];
    row = make_row(problem, block.head.batch, block.head.kv_head, row_begin + r);
    if (problem.sinks) {
      row.careful = !(problem.sinks.number(block.head.batch, row.head) < std::numeric_limits<double>::infinity());
    }
    if (row.keys.range.empty()) continue;
    if (row.keys.range.end <= problem.num_sink_keys) {  // of the sinks alone
      sinks = std::max(sinks, row.keys.range.end);
      continue;
    }
    if (window.empty()) window = row.keys.range;
    window.begin = std::min(window.begin, row.keys.range.begin);
    window.end = std::max(window.end, row.keys.range.end);
    sinks = std::max(sinks, row.keys.sinks);
  }
  block.span.range = {sinks > 0 ? 0 : window.begin, std::max(window.end, sinks)};
  if (sinks > 0 && !window.empty()) block.span.hole = hole_between(sinks, window.begin);
  const KeyRange keys = block.span.range;
  block.several_chunks = !keys.empty() && keys.begin / kKeyChunk != (keys.end - 1) / kKeyChunk;
  if (block.several_chunks) block.total = take_state(arena, block);
}

}  // namespace qkv::kernels
