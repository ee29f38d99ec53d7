#include "attention/forward_in_cache.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "attention/forward.h"
#include "attention/kv_positions.h"
#include "attention/rope_rows.h"
#include "attention/turned_keys.h"
#include "attention/validate_parts.h"
#include "base/parallel.h"

namespace qkv::attention_detail {
namespace {

using kernels::ForwardProblem;
using kernels::Operand;
using kernels::Result;

/// Below this many numbers to turn, other threads would come too late.
constexpr std::int64_t kFewElements = std::int64_t{1} << 16;

/// How a row turns, and the keys that it sees.
struct Turning {
  std::int64_t shift = 0;
  std::optional<std::int64_t> seq_len = {};  ///< of dynamic scaling, which keeps its frequencies up to max_position

  friend bool operator==(const Turning&, const Turning&) = default;
};

/// Rows [begin, end) of a batch that turn alike, and the place of the first.
struct RowGroup {
  std::int64_t batch = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  Turning turning = {};
  std::int64_t place = 0;
};

Turning turning_at(const ForwardProblem& problem, const Rope& rope, std::int64_t position) {
  Turning turning{.shift = shift_at(problem, position)};
  if (std::holds_alternative<DynamicScaling>(rope.options().scaling)) {
    turning.seq_len = std::max(position - turning.shift + 1, *rope.options().max_position);
  }
  return turning;
}

/// The rows from `begin` on that turn alike: with most ropes all that have left no key behind, and then each by itself.
RowGroup group_from(const ForwardProblem& problem, const Rope& rope, std::int64_t batch, std::int64_t begin) {
  const std::int64_t offset = problem.query_offset[static_cast<std::size_t>(batch)];
  RowGroup group{batch, begin, begin + 1, turning_at(problem, rope, offset + begin)};
  group.place = offset + begin - group.turning.shift;
  while (group.end < problem.q_len && turning_at(problem, rope, offset + group.end) == group.turning) ++group.end;
  return group;
}

/// A call of which parts are made: without the lists that each part has its own of.
ForwardProblem without_lists(const ForwardProblem& problem) {
  ForwardProblem bare = problem;
  bare.batch = 1;
  bare.key_places = {};
  bare.query_offset.clear();
  bare.kv_lens.clear();
  bare.weight_rows = {};
  return bare;
}

/// The rows of a group as a call of their own.
ForwardProblem part_of(const ForwardProblem& bare, const ForwardProblem& whole, const RowGroup& group) {
  ForwardProblem part = bare;
  const auto batch = static_cast<std::size_t>(group.batch);
  part.q_len = group.end - group.begin;
  part.query_offset = {whole.query_offset[batch] + group.begin};
  part.kv_lens = {whole.kv_lens[batch]};
  part.key_places = whole.key_places.of_batch(group.batch);
  part.first_batch = whole.first_batch + group.batch;
  part.weight_rows = whole.weight_rows.within(group.begin, group.end);
  const auto advance = [&](auto& operand, std::int64_t row) {
    if (operand) operand.data = operand.address(group.batch, 0, row);
  };
  if (!part.key_places.in_pages()) {
    for (Operand* kept : {&part.k, &part.v, &part.k_scales, &part.v_scales}) advance(*kept, 0);
  }
  for (Operand* of_rows : {&part.q, &part.mask, &part.bias}) advance(*of_rows, group.begin);
  for (Operand* of_heads : {&part.sinks, &part.alibi_slopes}) advance(*of_heads, 0);
  for (Result* of_rows : {&part.out, &part.lse, &part.logits, &part.max_raw, &part.max_logit, &part.max_key,
                          &part.max_weight, &part.entropy, &part.key_weight}) {
    advance(*of_rows, group.begin);
  }
  advance(part.weights, 0);  // weight_rows say where
  return part;
}

/// One group of rows of each sequence at a time, which bounds what is turned at once.
class InCache {
 public:
  InCache(const ForwardProblem& problem, const Rope& rope)
      : problem_(problem),
        bare_(without_lists(problem)),
        rope_(rope),
        q_({problem.batch, problem.num_heads, problem.q_len, problem.head_dim}, problem.dtype),
        keys_(static_cast<std::size_t>(problem.batch)),
        next_row_(keys_.size(), 0) {
    bare_.q = operand_of(q_.view());
  }

  /// Lays out the next group of each sequence and turns what it reads. @return no call where all rows are done
  std::vector<ForwardProblem> next() {
    std::vector<ForwardProblem> calls;
    blocks_.clear();
    std::int64_t elements = 0;
    for (std::int64_t b = 0; b < problem_.batch; ++b) {
      const auto at = static_cast<std::size_t>(b);
      if (next_row_[at] == problem_.q_len) continue;
      const RowGroup group = group_from(problem_, rope_, b, next_row_[at]);
      next_row_[at] = group.end;
      turn_queries(group);
      calls.push_back(part_of(bare_, problem_, group));
      TurnedKeys& keys = keys_[at];
      const auto angles = RopeRows::angles_of(rope_, group.turning.seq_len, problem_.kv_len);
      keys.lay_out(rope_, angles, group.turning.shift, calls.back());
      elements += keys.num_elements();
      for (std::int64_t block = 0; block < keys.num_blocks(); ++block) blocks_.emplace_back(&keys, block);
    }
    const auto turn = [this](std::size_t item) { blocks_[item].first->turn(blocks_[item].second); };
    if (elements >= kFewElements) {
      parallel_for(blocks_.size(), turn);
    } else {
      for (std::size_t item = 0; item < blocks_.size(); ++item) turn(item);
    }
    return calls;
  }

 private:
  void turn_queries(const RowGroup& group) {
    const Extents shape{1, problem_.num_heads, group.end - group.begin, problem_.head_dim};
    const Operand& q = problem_.q;
    const ConstTensorView given(q.address(group.batch, 0, group.begin), q.dtype, shape,
                                {q.batch, q.head, q.row, q.col});
    const TensorView turned = q_.view().slice(0, group.batch, group.batch + 1).slice(2, group.begin, group.end);
    rope_.apply(given, group.place, turned, {.seq_len = group.turning.seq_len});
  }

  const ForwardProblem& problem_;
  ForwardProblem bare_;
  const Rope& rope_;
  Tensor q_;  ///< turned
  std::vector<TurnedKeys> keys_;
  std::vector<std::int64_t> next_row_;  ///< of each sequence
  std::vector<std::pair<const TurnedKeys*, std::int64_t>> blocks_;
};

}  // namespace

void forward_in_cache(const ForwardProblem& problem, const Rope& rope, std::string_view target) {
  InCache rows(problem, rope);
  for (std::vector<ForwardProblem> calls = rows.next(); !calls.empty(); calls = rows.next()) forward(calls, target);
}

}  // namespace qkv::attention_detail
