#if defined(QKV_SRC_KERNELS_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_SOFTMAX_INL_H_
#undef QKV_SRC_KERNELS_SOFTMAX_INL_H_
#else
#define QKV_SRC_KERNELS_SOFTMAX_INL_H_
#endif

#include <algorithm>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/exp2-inl.h"
#include "kernels/logits-inl.h"
#include "kernels/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

/// Turns the logits of one row into exponents of two, relative to its maximum. The factor meets the difference: a logit
/// near the end of f32 times log2(e) would overflow, a rounded product would leave the maximum itself a weight that is not
/// exactly 1.
class Exponent {
 public:
  /// Without a maximum yet (nothing visible so far) any finite number serves: every weight is 0.
  Exponent(const Formula& formula, float max)
      : factor_(hn::Set(kF32, formula.factor)),
        max_(hn::Set(kF32, max == -std::numeric_limits<float>::infinity() ? 0.0f : max)) {}

  HWY_INLINE VF operator()(VF logit) const { return hn::Mul(factor_, hn::Sub(logit, max_)); }

 private:
  VF factor_;
  VF max_;
};

/// The weight of maximum a beside maximum b >= a; 0 where a is -inf; 1 where they are equal.
HWY_INLINE float rescale(const Formula& formula, float a, float b) {
  if (a == b) return 1.0f;
  if (a == -std::numeric_limits<float>::infinity()) return 0.0f;
  return exp2_nonpositive(formula.factor * (a - b));
}

/// Its exponent, for the entropy's change of reference; 0 where there is nothing to change. Bounded: where the difference
/// leaves f32 the rescale that it is multiplied by is 0.
HWY_INLINE float shift_of(const Formula& formula, float a, float b) {
  if (a == -std::numeric_limits<float>::infinity()) return 0.0f;
  return std::max(formula.factor * (a - b), -1e4f);
}

struct BlockSums {
  float sum = 0;      ///< of the exact weights
  float divisor = 0;  ///< of the weights as they are stored, where they are rounded
  float entropy = 0;
};

/// How weights are kept for P V.
enum class Stored {
  kExact,
  kRounded,  ///< to bfloat16, in the place of the logit
  kPairs,    ///< pairs of neighbouring keys, at half the places
};

/// Calls visit(offset, first, second) for the vectors of the runs, two at a time from an absolute multiple of two on: which
/// of the two belong to the run, by std::true_type and std::false_type.
template <class Visit>
HWY_INLINE void for_each_two_vectors(std::span<const Run> runs, std::int64_t base, const Visit& visit) {
  for (const Run& run : runs) {
    std::int64_t offset = align_down(run.begin, kLanes) - base;
    const std::int64_t end = run.end - base;
    if (offset / kLanes % 2 == 1) {
      visit(offset - kLanes, std::false_type(), std::true_type());
      offset += kLanes;
    }
    for (; offset + kLanes < end; offset += 2 * kLanes) visit(offset, std::true_type(), std::true_type());
    if (offset < end) visit(offset, std::true_type(), std::false_type());
  }
}

/// Turns the logits of one row into weights 2^exponent in place, and adds them up. Two vectors of sum lanes, chosen by the
/// key's absolute place: a lane's sum does not depend on where the run begins.
template <bool kEntropy, Stored kStored>
BlockSums exponentiate(float* logits, std::span<const Run> runs, std::int64_t base, const Formula& formula, float max) {
  const Exponent exponent(formula, max);  // made here: behind a reference, each store could have changed it
  VF sum[2] = {hn::Zero(kF32), hn::Zero(kF32)};
  VF divisor[2] = {hn::Zero(kF32), hn::Zero(kF32)};
  VF entropy = hn::Zero(kF32);
  const auto weigh = [&](std::int64_t offset, VF& lanes) HWY_ATTR {
    const VF y = exponent(hn::LoadU(kF32, logits + offset));
    const VF weight = exp2_nonpositive(y);
    lanes = hn::Add(lanes, weight);
    // Hidden keys have exponent -inf and weight 0: bounded, their product is 0.
    if constexpr (kEntropy) entropy = hn::MulAdd(weight, max_or_nan(hn::Set(kF32, -1e4f), y), entropy);
    return weight;
  };
  const auto keep = [&](std::int64_t offset, VF weight, VF& lanes) HWY_ATTR {
    const VF stored = kStored == Stored::kRounded ? round_to_bfloat16(weight) : weight;
    hn::StoreU(stored, kF32, logits + offset);
    if constexpr (kStored == Stored::kRounded) lanes = hn::Add(lanes, stored);
  };
  for_each_two_vectors(runs, base, [&](std::int64_t offset, auto has_first, auto has_second) HWY_ATTR {
    if constexpr (kStored == Stored::kPairs) {
      const VF first = has_first ? weigh(offset, sum[0]) : hn::Zero(kF32);
      const VF second = has_second ? weigh(offset + kLanes, sum[1]) : hn::Zero(kF32);
      const VF pairs = round_to_pairs(first, second);
      hn::StoreU(pairs, kF32, logits + offset / 2);  // behind what has been read
      divisor[0] = MultiplyAddPairs()(pairs, pairs_of_ones(), divisor[0]);
    } else {
      if constexpr (has_first) keep(offset, weigh(offset, sum[0]), divisor[0]);
      if constexpr (has_second) keep(offset + kLanes, weigh(offset + kLanes, sum[1]), divisor[1]);
    }
  });
  return {sum_of(hn::Add(sum[0], sum[1])), kStored == Stored::kExact ? 0.0f : sum_of(hn::Add(divisor[0], divisor[1])),
          kEntropy ? sum_of(entropy) : 0.0f};
}

/// The instance of exponentiate for a block.
inline auto exponentiate_for(const RowBlock& block) {
  const bool stats = block.max_key != nullptr;
  if constexpr (kHasPairs) {
    if (block.pairs) return stats ? exponentiate<true, Stored::kPairs> : exponentiate<false, Stored::kPairs>;
  }
  if (block.chunk.divisor != nullptr) {
    return stats ? exponentiate<true, Stored::kRounded> : exponentiate<false, Stored::kRounded>;
  }
  return stats ? exponentiate<true, Stored::kExact> : exponentiate<false, Stored::kExact>;
}

/// The lowest key of the block whose logit is `largest`.
template <int kR>
std::int64_t find_key(const float* logits, const BlockView<kR>& view, float largest) {
  const VF wanted = hn::Set(kF32, largest);
  for (int i = 0; i < view.num_runs; ++i) {
    for (std::int64_t key = align_down(view.runs[i].begin, kLanes); key < view.runs[i].end; key += kLanes) {
      const intptr_t lane = hn::FindFirstTrue(kF32, hn::Eq(hn::LoadU(kF32, logits + (key - view.base)), wanted));
      if (lane >= 0) return key + lane;
    }
  }
  return -1;
}

/// Sum of the block's weights at the keys of stats_keys.
template <int kR>
float chosen_weight(const RowBlock& block, const float* weights, const BlockView<kR>& view) {
  const std::vector<std::int64_t>& chosen = block.problem.stats_keys;
  const auto* halves = reinterpret_cast<const BFloat16*>(weights);
  float sum = 0;
  for (int i = 0; i < view.num_runs; ++i) {
    auto key = std::lower_bound(chosen.begin(), chosen.end(), view.runs[i].begin);
    for (; key != chosen.end() && *key < view.runs[i].end; ++key) {
      const std::int64_t place = *key - view.base;
      sum += block.pairs ? static_cast<float>(halves[place]) : weights[place];
    }
  }
  return sum;
}

/// One row's step of the running softmax over a key block. @return what the row's earlier values are multiplied by.
template <int kR>
float update_row(RowBlock& block, int r, const BlockView<kR>& view) {
  const std::int64_t row = view.first_row + r;
  float* logits = view.logits + r * kLogitStride;
  const Formula& formula = block.formula;
  for (int w = 0; w < kBlockWords; ++w) block.rows[row].seen |= view.words[w][r] != 0;

  const float largest = max_of(view.max[r]);
  const float old_max = block.chunk.max[row];
  const float new_max = old_max > largest ? old_max : largest;
  const float correction = rescale(formula, old_max, new_max);
  const float old_sum = block.chunk.sum[row];
  block.chunk.max[row] = new_max;
  const bool stats = block.max_key != nullptr;
  if (stats && largest > block.max_logit[row]) {
    block.max_logit[row] = largest;
    block.max_key[row] = find_key(logits, view, largest);
  }
  const bool rounds = block.chunk.divisor != nullptr;
  const std::span<const Run> runs(view.runs, static_cast<std::size_t>(view.num_runs));
  const BlockSums sums = exponentiate_for(block)(logits, runs, view.base, formula, new_max);
  block.chunk.sum[row] = old_sum * correction + sums.sum;
  if (rounds) block.chunk.divisor[row] = block.chunk.divisor[row] * correction + sums.divisor;
  // NaN escapes the maxima: a chunk of nothing else would be taken for empty.
  if (!(sums.sum < std::numeric_limits<float>::infinity())) block.rows[row].careful = true;
  if (!stats) return correction;
  float& entropy = block.chunk.entropy[row];
  entropy = correction * (entropy + shift_of(formula, old_max, new_max) * old_sum) + sums.entropy;
  block.chunk.chosen[row] = block.chunk.chosen[row] * correction + chosen_weight(block, logits, view);
  return correction;
}

/// Adds the state of the chunk just finished to the row's total, and empties it for the next.
inline void merge_chunk(RowBlock& block, std::int64_t row) {
  const Formula& formula = block.formula;
  SoftmaxState& total = block.total;
  SoftmaxState& chunk = block.chunk;
  if (chunk.max[row] == -std::numeric_limits<float>::infinity()) return;  // nothing seen: merging changes no bit
  const float new_max = total.max[row] > chunk.max[row] ? total.max[row] : chunk.max[row];
  const float keep = rescale(formula, total.max[row], new_max);
  const float take = rescale(formula, chunk.max[row], new_max);
  if (total.entropy != nullptr) {
    const float kept = keep * (total.entropy[row] + shift_of(formula, total.max[row], new_max) * total.sum[row]);
    const float taken = take * (chunk.entropy[row] + shift_of(formula, chunk.max[row], new_max) * chunk.sum[row]);
    total.entropy[row] = kept + taken;
    total.chosen[row] = total.chosen[row] * keep + chunk.chosen[row] * take;
    chunk.entropy[row] = chunk.chosen[row] = 0;
  }
  total.sum[row] = total.sum[row] * keep + chunk.sum[row] * take;
  if (total.divisor != nullptr) {
    total.divisor[row] = total.divisor[row] * keep + chunk.divisor[row] * take;
    chunk.divisor[row] = 0;
  }
  total.max[row] = new_max;
  float* kept_values = total.values + row * block.value_stride;
  const float* chunk_values = chunk.values + row * block.value_stride;
  const VF keep_all = hn::Set(kF32, keep);
  const VF take_all = hn::Set(kF32, take);
  for (std::int64_t c = 0; c < block.value_stride; c += kLanes) {
    const VF taken = hn::Mul(hn::LoadU(kF32, chunk_values + c), take_all);
    hn::StoreU(hn::MulAdd(hn::LoadU(kF32, kept_values + c), keep_all, taken), kF32, kept_values + c);
  }
  chunk.max[row] = -std::numeric_limits<float>::infinity();
  chunk.sum[row] = 0;
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
