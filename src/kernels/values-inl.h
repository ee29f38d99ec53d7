#if defined(QKV_SRC_KERNELS_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_VALUES_INL_H_
#undef QKV_SRC_KERNELS_VALUES_INL_H_
#else
#define QKV_SRC_KERNELS_VALUES_INL_H_
#endif

#include "kernels/logits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

/// 64 rows of V of 64 columns are 16 KiB: half of L1.
inline constexpr std::int64_t kValueKeys = 64;

/// Where the vectors of a V row start: column and place in the state. The last vector of a row that is not a multiple of
/// a vector long starts early, so that it ends with the row; the columns it shares with its neighbour are computed
/// twice, with the same bits, instead of reading beyond the row.
HWY_INLINE std::int64_t column_of(const RowBlock& block, std::int64_t place) {
  const std::int64_t columns = block.head.value_columns;
  return place + kLanes <= columns ? place : columns - kLanes;
}

/// values[r][place ..] = values[r][place ..] * correction[r] + P V over `keys`, for kW vectors of columns; without a
/// correction (null) the values stay as they are.
template <int kR, int kW>
HWY_INLINE void values_tile(const RowBlock& block, std::int64_t first_row, const BlockView<kR>& view, const Run& keys,
                            const float* correction, std::int64_t place) {
  float* state = block.chunk.values + first_row * block.value_stride + place;
  const float* values = block.head.value_row(keys.begin) + column_of(block, place);
  Accumulators<kR, kW> acc;
  HWY_UNROLL(8)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(8)
    for (int w = 0; w < kW; ++w) acc.v[r][w] = hn::LoadU(kF32, state + r * block.value_stride + w * kLanes);
  }
  if (correction != nullptr) {
    HWY_UNROLL(8)
    for (int r = 0; r < kR; ++r) {
      HWY_UNROLL(8)
      for (int w = 0; w < kW; ++w) acc.v[r][w] = hn::Mul(acc.v[r][w], hn::Set(kF32, correction[r]));
    }
  }
  multiply_add(block.logits + (keys.begin - view.base), kLogitStride, values, block.head.value_stride,
               keys.end - keys.begin, acc);
  store(acc, state, block.value_stride);
}

/// The same for one row and vector where V has numbers that are not finite: 0 times them is NaN, so hidden keys must not
/// meet an FMA at all. Skipping the term instead of adding 0 leaves the bits as they are (but for the sign of a zero,
/// which the last step clears).
template <int kR>
void careful_values(const RowBlock& block, std::int64_t first_row, int r, const BlockView<kR>& view, float correction,
                    std::int64_t place) {
  float* state = block.chunk.values + (first_row + r) * block.value_stride + place;
  const std::int64_t column = column_of(block, place);
  const float* weights = block.logits + r * kLogitStride;
  VF acc = hn::Mul(hn::Set(kF32, correction), hn::LoadU(kF32, state));
  for (int i = 0; i < view.num_runs; ++i) {
    for (std::int64_t key = view.runs[i].begin; key < view.runs[i].end; ++key) {
      const std::uint64_t word = view.words[(key - view.base) / kWordKeys][r];
      if ((word >> (key % kWordKeys) & 1) == 0) continue;
      const VF weight = hn::Set(kF32, weights[key - view.base]);
      acc = hn::MulAdd(weight, hn::LoadU(kF32, block.head.value_row(key) + column), acc);
    }
  }
  hn::StoreU(acc, kF32, state);
}

/// Whether some row of the group has a key hidden in a word whose V is not all finite.
template <int kR>
bool needs_care(const RowBlock& block, const BlockView<kR>& view) {
  for (int i = 0; i < view.num_runs; ++i) {
    for (std::int64_t key = align_down(view.runs[i].begin, kWordKeys); key < view.runs[i].end; key += kWordKeys) {
      if (view.all[(key - view.base) / kWordKeys]) continue;
      if (block.head.value_magnitude[block.head.word_of(key)] >= kInfinityBits) return true;
    }
  }
  return false;
}

/// values_tile for a number of vectors known at run time.
template <int kR, int kW = kTileVectors>
HWY_INLINE void values_panel(const RowBlock& block, std::int64_t first_row, const BlockView<kR>& view, const Run& keys,
                             const float* correction, std::int64_t place) {
  if constexpr (kW > 1) {
    if (place + kW * kLanes > block.head.value_columns) {
      return values_panel<kR, kW - 1>(block, first_row, view, keys, correction, place);
    }
  }
  values_tile<kR, kW>(block, first_row, view, keys, correction, place);
}

/// All columns, for keys few enough that their rows of V stay in L1 from one panel of columns to the next.
template <int kR>
void add_values(const RowBlock& block, std::int64_t first_row, const BlockView<kR>& view, const Run& keys,
                const float* correction) {
  std::int64_t place = 0;
  for (; place + kLanes <= block.head.value_columns; place += kTileVectors * kLanes) {
    values_panel(block, first_row, view, keys, correction, place);
  }
  const std::int64_t whole = align_down(block.head.value_columns, kLanes);
  if (whole < block.head.value_columns) {
    values_tile<kR, 1>(block, first_row, view, keys, correction, whole);
  }
}

/// Adds a key block's P V to the values of a group, its earlier values rescaled first.
template <int kR>
void block_values(const RowBlock& block, std::int64_t first_row, const BlockView<kR>& view, const float* correction) {
  if (needs_care(block, view)) {
    for (int r = 0; r < kR; ++r) {
      for (std::int64_t place = 0; place < block.value_stride; place += kLanes) {
        careful_values(block, first_row, r, view, correction[r], place);
      }
    }
    return;
  }
  // One panel of columns reads V once anyway; more would fetch every line of V from L2 again.
  const std::int64_t step = block.head.value_columns > kTileVectors * kLanes ? kValueKeys : kKeyBlock;
  for (int i = 0; i < view.num_runs; ++i) {
    for (std::int64_t key = view.runs[i].begin; key < view.runs[i].end;) {
      const std::int64_t end = std::min(align_down(key, step) + step, view.runs[i].end);
      add_values(block, first_row, view, {key, end}, correction);
      correction = nullptr;
      key = end;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
