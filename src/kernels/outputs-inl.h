#if defined(QKV_SRC_KERNELS_OUTPUTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_OUTPUTS_INL_H_
#undef QKV_SRC_KERNELS_OUTPUTS_INL_H_
#else
#define QKV_SRC_KERNELS_OUTPUTS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/element.h"
#include "kernels/forward_plain.h"
#include "kernels/row_result.h"
#include "kernels/softmax-inl.h"
#include "kernels/storage-inl.h"
#include "kernels/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

/// out = values * factor. The + 0.0 turns the -0 that a skipped or added 0 may leave into +0.
/// @return whether every mean is a finite float; one that is not may have overflowed on the way.
template <class T>
HWY_INLINE bool write_values(const RowBlock& block, const Row& row, const float* values, float factor) {
  const ForwardProblem& problem = block.problem;
  T* out = problem.out.at<T>(block.head.batch, row.head, row.index);
  const std::int64_t columns = problem.value_dim;
  const VF scale = hn::Set(kF32, factor);
  VF suspect = hn::Zero(kF32);  // x - x is 0 for a finite number alone
  const auto result_at = [&](std::int64_t place) HWY_ATTR {
    const VF result = hn::Add(hn::Mul(hn::LoadU(kF32, values + place), scale), hn::Zero(kF32));
    suspect = hn::Add(suspect, hn::Sub(result, result));
    return result;
  };
  std::int64_t place = 0;
  if (problem.out.col == 1) {
    for (; place + kLanes <= columns; place += kLanes) store(result_at(place), out + place);
  }
  for (; place < columns; place += kLanes) {
    T lanes[kLanes];
    store(result_at(place), lanes);
    for (std::int64_t i = 0; i < kLanes && place + i < columns; ++i) out[(place + i) * problem.out.col] = lanes[i];
  }
  return hn::AllTrue(kF32, hn::Eq(suspect, hn::Zero(kF32)));
}

/// Writes out, lse and statistics of a row that softmax_left_f32 does not name. @return its weights' factor.
inline float finish_row(const RowBlock& block, std::int64_t r) {
  const ForwardProblem& problem = block.problem;
  const Row& row = block.rows[r];
  const SoftmaxState& state = block.several_chunks ? block.total : block.chunk;
  const double unit = block.formula.general ? 1.0 : block.formula.residual;
  RowResult result{problem, block.head.batch, row.head, row.index};
  result.seen = row.seen;
  result.max = static_cast<double>(state.max[r]) * unit;
  result.sum = static_cast<double>(state.sum[r]);
  result.divisor = state.divisor == nullptr ? result.sum : static_cast<double>(state.divisor[r]);
  if (block.max_key != nullptr) {
    result.max_logit = unit * static_cast<double>(block.max_logit[r]);
    result.max_raw = block.formula.general ? static_cast<double>(block.max_raw[r]) : result.max_logit;
    result.max_key = block.max_key[r];
    result.entropy = static_cast<double>(state.entropy[r]) * std::numbers::ln2;
    result.chosen = static_cast<double>(state.chosen[r]);
  }
  result.close();
  result.write();
  const float* values = state.values + r * block.value_stride;
  const auto factor = static_cast<float>(result.out_factor);
  const bool finite = visit_storage(problem.out.dtype,
                                    [&]<class T>(T) HWY_ATTR { return write_values<T>(block, row, values, factor); });
  if (!finite) plain_repair_out(problem, block.head.batch, row.head, row.index);
  return static_cast<float>(result.factor);
}

/// Whether f32 arithmetic has failed a row's softmax: some visible product or the maximum is not finite, or the sum is
/// not a positive number.
inline bool softmax_left_f32(const RowBlock& block, std::int64_t r) {
  const SoftmaxState& state = block.several_chunks ? block.total : block.chunk;
  if (block.rows[r].careful) return true;
  if (!block.rows[r].seen) return false;
  if (!(state.sum[r] > 0 && state.sum[r] < std::numeric_limits<float>::infinity())) return true;
  return !(std::fabs(state.max[r]) <= std::numeric_limits<float>::max());
}

/// One row of an n x n output.
struct Line {
  float* to = nullptr;  ///< key 0
  std::int64_t stride = 0;
  std::int64_t kv_len = 0;
  float absent = 0;  ///< what hidden keys get
};

/// Writes the keys of one block: what `convert` makes of the logits in the runs, `absent` elsewhere.
template <int kR, class Convert>
void write_line(const float* logits, const BlockView<kR>& view, const Line& line, const Convert& convert) {
  float numbers[kKeyBlock];
  const std::int64_t count = std::min(kKeyBlock, line.kv_len - view.base);
  std::fill_n(numbers, count, line.absent);
  for (int i = 0; i < view.num_runs; ++i) {
    for (std::int64_t key = align_down(view.runs[i].begin, kLanes); key < view.runs[i].end; key += kLanes) {
      float lanes[kLanes];
      hn::StoreU(convert(hn::LoadU(kF32, logits + (key - view.base))), kF32, lanes);
      const std::int64_t first = std::max(key, view.runs[i].begin);
      const std::int64_t last = std::min(key + kLanes, view.runs[i].end);
      for (std::int64_t j = first; j < last; ++j) numbers[j - view.base] = lanes[j - key];
    }
  }
  for (std::int64_t i = 0; i < count; ++i) line.to[(view.base + i) * line.stride] = numbers[i];
}

/// Where a row's logits go.
inline Line logits_line(const RowBlock& block, const Row& row, float absent) {
  const ForwardProblem& problem = block.problem;
  return {problem.logits.at<float>(block.head.batch, row.head, row.index), problem.logits.col, problem.kv_len, absent};
}

/// Logits before masks of one key block.
template <int kR>
void write_unmasked(RowBlock& block, std::int64_t first_row, std::int64_t base) {
  const ForwardProblem& problem = block.problem;
  BlockView<kR> view(block, first_row, base);
  // Products of every key, hidden or not.
  view.num_runs = 1;
  view.runs[0] = {base, std::min(base + kKeyBlock, problem.kv_len)};
  multiply_keys(block, view.runs[0], view);
  const VF residual = hn::Set(kF32, static_cast<float>(block.formula.residual));
  const bool caps = problem.logits_stage == LogitsStage::kCapped && block.formula.softcap > 0;
  for (int r = 0; r < kR; ++r) {
    const Row& row = block.rows[first_row + r];
    write_line(view.logits + r * kLogitStride, view, logits_line(block, row, 0.0f), [&](VF product) HWY_ATTR {
      const VF scaled = hn::Mul(residual, product);
      return caps ? cap(scaled, block.formula.softcap) : scaled;
    });
  }
}

/// Weights and masked logits of one key block, from logits formed once more: the first pass keeps none.
template <int kR>
void write_masked(RowBlock& block, std::int64_t first_row, std::int64_t base, const float* factors) {
  const ForwardProblem& problem = block.problem;
  const SoftmaxState& state = block.several_chunks ? block.total : block.chunk;
  BlockView<kR> view(block, first_row, base);
  if (base < block.span.range.end && base + kKeyBlock > block.span.range.begin) block_logits(block, view);
  const VF unit = hn::Set(kF32, block.formula.general ? 1.0f : static_cast<float>(block.formula.residual));
  for (int r = 0; r < kR; ++r) {
    const Row& row = block.rows[first_row + r];
    const float* logits = view.logits + r * kLogitStride;
    if (problem.logits && problem.logits_stage == LogitsStage::kMasked) {
      write_line(logits, view, logits_line(block, row, -std::numeric_limits<float>::infinity()),
                 [&](VF logit) HWY_ATTR { return hn::Mul(unit, logit); });
    }
    if (!problem.weights || row.careful) continue;
    const Exponent exponent(block.formula, state.max[first_row + r]);
    const VF factor = hn::Set(kF32, factors[r]);
    for (const SlotIndex::Slot& head : problem.weight_heads.of(row.head)) {
      for (const SlotIndex::Slot& slot : problem.weight_rows.of(row.index)) {
        const Line line{problem.weights.at<float>(block.head.batch, head.place, slot.place), problem.weights.col,
                        problem.kv_len, 0.0f};
        write_line(logits, view, line,
                   [&](VF logit) HWY_ATTR { return hn::Mul(exp2_nonpositive(exponent(logit)), factor); });
      }
    }
  }
}

/// Whether the n x n outputs have a place for some row of the group.
inline bool wants_matrices(const RowBlock& block, std::int64_t first_row, std::int64_t num_rows) {
  const ForwardProblem& problem = block.problem;
  if (problem.logits) return true;
  if (!problem.weights) return false;
  for (std::int64_t r = first_row; r < first_row + num_rows; ++r) {
    const Row& row = block.rows[r];
    if (!problem.weight_heads.of(row.head).empty() && !problem.weight_rows.of(row.index).empty()) return true;
  }
  return false;
}

/// The n x n outputs of a group of rows.
template <int kR>
void write_matrices(RowBlock& block, std::int64_t first_row, const float* factors) {
  const ForwardProblem& problem = block.problem;
  const bool unmasked = problem.logits && problem.logits_stage != LogitsStage::kMasked;
  const bool masked = problem.weights || (problem.logits && !unmasked);
  for (std::int64_t base = 0; base < problem.kv_len; base += kKeyBlock) {
    if (unmasked) write_unmasked<kR>(block, first_row, base);
    if (masked) write_masked<kR>(block, first_row, base, factors);
  }
  if (!problem.logits) return;
  for (int r = 0; r < kR; ++r) {
    const Row& row = block.rows[first_row + r];
    plain_repair_logits(problem, block.head.batch, row.head, row.index);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
