#if defined(QKV_SRC_KERNELS_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_VALUES_INL_H_
#undef QKV_SRC_KERNELS_VALUES_INL_H_
#else
#define QKV_SRC_KERNELS_VALUES_INL_H_
#endif

#include "kernels/element.h"
#include "kernels/logits-inl.h"
#include "kernels/magnitude-inl.h"
#include "kernels/storage-inl.h"
#include "kernels/value_pairs-inl.h"
#include "kernels/value_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

/// Columns [0, whole) of some rows of V, a multiple of kLanes, one panel after the other. `keys` count from the block's
/// first. @return magnitudes so far
template <class T>
HWY_INLINE VI pack_vectors(const RowBlock& block, const ValueRows<T>& rows, KeyRange keys, std::int64_t whole,
                           VI largest) {
  for (std::int64_t place = 0; place < whole; place += kPanel) {
    const int vectors = static_cast<int>(std::min<std::int64_t>(kPanel, whole - place) / kLanes);
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      const T* from = rows.at(j - keys.begin) + place;
      const float scale = rows.scale(j - keys.begin);
      float* to = value_at(block, j, place);
      for (int w = 0; w < vectors; ++w) {
        const VF x = load_scaled(from + w * kLanes, scale);
        largest = raise_magnitude(x, largest);
        hn::StoreU(x, kF32, to + w * kLanes);
      }
    }
  }
  return largest;
}

/// Columns [first, value_dim) one by one, the last vector filled up with zeros.
template <class T>
VI pack_columns(const RowBlock& block, const ValueRows<T>& rows, KeyRange keys, std::int64_t first, VI largest) {
  const std::int64_t columns = block.problem.value_dim;
  if (first == columns) return largest;
  const std::int64_t stride = block.problem.v.col;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const T* from = rows.at(j - keys.begin);
    const float scale = rows.scale(j - keys.begin);
    for (std::int64_t place = first; place < columns; place += kLanes) {
      float lanes[kLanes] = {};
      for (std::int64_t i = 0; i < kLanes && place + i < columns; ++i) {
        lanes[i] = read_scaled(from[(place + i) * stride], scale);
      }
      const VF x = hn::LoadU(kF32, lanes);
      largest = raise_magnitude(x, largest);
      hn::StoreU(x, kF32, value_at(block, j, place));
    }
  }
  return largest;
}

template <class T>
void pack_values_of(RowBlock& block, std::int64_t base) {
  const ForwardProblem& problem = block.problem;
  const std::int64_t whole = problem.v.col == 1 ? align_down(problem.value_dim, kLanes) : 0;
  for (int word = 0; word < kBlockWords; ++word) {
    const KeyRange keys{std::max<std::int64_t>(base + word * kWordKeys, block.span.range.begin),
                        std::min<std::int64_t>(base + (word + 1) * kWordKeys, block.span.range.end)};
    if constexpr (std::is_same_v<T, BFloat16> && kHasPairs) {
      if (block.pairs) {
        block.value_magnitude[word] = pack_value_pairs(block, keys, base);
        continue;
      }
    }
    VI largest = hn::Zero(kI32);
    problem.key_places.for_each_part(block.head.batch, keys, [&](KeyRange part, const KeyPlace& place) HWY_ATTR {
      const ValueRows<T> rows = value_rows<T>(block, place);
      const KeyRange local{part.begin - base, part.end - base};
      largest = pack_vectors(block, rows, local, whole, largest);
      largest = pack_columns(block, rows, local, whole, largest);
    });
    block.value_magnitude[word] = largest_of(largest);
  }
}

/// Copies the rows of V that a key block needs: a panel's rows lie side by side and stay in L1 whatever the stride of V
/// is, and a whole block of query rows uses the copy.
inline void pack_values(RowBlock& block, std::int64_t base) {
  if (block.problem.value_dim == 0) return;
  visit_kept(block.problem.v.dtype, [&]<class T>(T) { pack_values_of<T>(block, base); });
}

/// values[r][place ..] = values[r][place ..] * correction[r] + P V of the block, for kW vectors of columns; where
/// values are fresh there are none yet. The block's own sum begins at 0: short chains lose fewer bits than one over all
/// keys.
template <int kR, int kW>
HWY_INLINE void values_tile(const RowBlock& block, const BlockView<kR>& view, std::int64_t place) {
  float* state = block.chunk.values + view.first_row * block.value_stride + place;
  Accumulators<kR, kW> acc;
  clear(acc);
  const int pairs = block.pairs ? 1 : 0;
  for (int i = 0; i < view.num_runs; ++i) {
    const std::int64_t first = (view.runs[i].begin - view.base) >> pairs;
    const std::int64_t end = (view.runs[i].end - view.base + pairs) >> pairs;
    visit_product(block.pairs, [&](const auto& product) HWY_ATTR {
      const float* values = value_at(block, first, place);
      multiply_add(Factors{view.logits + first, kLogitStride, values, kPanel, end - first}, acc, product);
    });
  }
  if (!view.fresh) add_scaled(state, block.value_stride, view.correction, acc);
  store(acc, state, block.value_stride);
}

/// acc += P V of the keys that a row sees.
template <int kR>
HWY_INLINE void careful_sums(const RowBlock& block, int r, const BlockView<kR>& view, std::int64_t place,
                             Accumulators<1, 1>& acc) {
  const float* weights = view.logits + r * kLogitStride;
  for (int i = 0; i < view.num_runs; ++i) {
    for (std::int64_t key = view.runs[i].begin - view.base; key < view.runs[i].end - view.base; ++key) {
      if (!has_key(view.words[key / kWordKeys][r], key)) continue;
      const float* values = value_at(block, key, place);
      multiply_add(Factors{weights + key, 0, values, 0, 1}, acc);
    }
  }
}

/// values_tile for one row and vector where V has numbers that are not finite: 0 times them is NaN, so hidden keys must not
/// meet an FMA at all. Skipping the term instead of adding 0 leaves the bits as they are (but for the sign of a zero,
/// which the last step clears).
template <int kR>
void careful_values(const RowBlock& block, int r, const BlockView<kR>& view, std::int64_t place) {
  float* state = block.chunk.values + (view.first_row + r) * block.value_stride + place;
  Accumulators<1, 1> acc;
  clear(acc);
  if (!block.pairs) careful_sums(block, r, view, place, acc);
  if constexpr (kHasPairs) {
    if (block.pairs) careful_value_pairs(block, r, view, place, acc);
  }
  if (!view.fresh) add_scaled(state, 0, view.correction + r, acc);
  store(acc, state, 0);
}

/// Whether some row of the group has a key hidden in a word whose V is not all finite.
template <int kR>
bool needs_care(const RowBlock& block, const BlockView<kR>& view) {
  for (int i = 0; i < view.num_runs; ++i) {
    for (std::int64_t key = align_down(view.runs[i].begin, kWordKeys); key < view.runs[i].end; key += kWordKeys) {
      if (view.all[(key - view.base) / kWordKeys]) continue;
      if (block.value_magnitude[(key - view.base) / kWordKeys] >= kInfinityBits) return true;
    }
  }
  return false;
}

/// values_tile for the vectors that a panel of columns has.
template <int kR, int kW = kTileVectors>
HWY_INLINE void values_vectors(const RowBlock& block, const BlockView<kR>& view, std::int64_t place) {
  if constexpr (kW > 1) {
    if (place + kW * kLanes > block.value_stride) return values_vectors<kR, kW - 1>(block, view, place);
  }
  values_tile<kR, kW>(block, view, place);
}

/// Vectors of columns at a time where a few rows read V in place: as many as there are registers for.
template <int kR>
inline constexpr int kWideVectors = std::min(8, kTileRows* kTileVectors / kR);

/// Asks memory for some of them.
template <class T>
HWY_INLINE void ask_for_values(const ValueRows<T>& rows, std::int64_t begin, std::int64_t end, std::int64_t columns) {
  const std::int64_t bytes = columns * static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t index = begin; index < end; ++index) {
    const char* row = reinterpret_cast<const char*>(rows.at(index));
    for (std::int64_t byte = 0; byte < bytes; byte += 64) hwy::Prefetch(row + byte);
  }
}

/// acc[r][w] += sum over i of weights[r][i] * v[i][place + w * kLanes ..], v being whole numbers with a scale a row.
template <int kR, int kW>
HWY_INLINE void multiply_add_scaled(const float* HWY_RESTRICT weights, const ValueRows<std::int8_t>& rows,
                                    std::int64_t place, std::int64_t count, Accumulators<kR, kW>& acc) {
  for (std::int64_t i = 0; i < count; ++i) {
    const VF scale = hn::Set(kF32, rows.scale(i));
    VF b[kW];
    HWY_UNROLL(8)
    for (int w = 0; w < kW; ++w) b[w] = hn::Mul(load(rows.at(i) + place + w * kLanes), scale);
    HWY_UNROLL(8)
    for (int r = 0; r < kR; ++r) {
      const VF a = hn::Set(kF32, weights[r * kLogitStride + i]);
      HWY_UNROLL(8)
      for (int w = 0; w < kW; ++w) acc.v[r][w] = hn::MulAdd(a, b[w], acc.v[r][w]);
    }
  }
}

/// Sums of a few rows over the keys of a block, [rows][columns].
struct ValueSums {
  float* to;
  std::int64_t columns;
  bool empty;  ///< no key has been added yet
};

/// sums[r][place ..] += P V of `count` keys, for kW vectors of columns. `weights` begin at the first of them.
template <int kR, int kW, class T>
HWY_INLINE void add_in_place(const float* weights, const ValueRows<T>& rows, std::int64_t count, const ValueSums& sums,
                             std::int64_t place) {
  Accumulators<kR, kW> acc;
  if (sums.empty) {
    clear(acc);
  } else {
    fetch(sums.to + place, sums.columns, acc);
  }
  if constexpr (kHasScale<T>) {
    multiply_add_scaled(weights, rows, place, count, acc);
  } else {
    multiply_add(Factors{weights, kLogitStride, rows.first + place, rows.stride, count}, acc);
  }
  store(acc, sums.to + place, sums.columns);
}

/// add_in_place for a number of vectors known at run time.
template <int kR, int kW, class T>
HWY_INLINE void add_vectors_in_place(const float* weights, const ValueRows<T>& rows, std::int64_t count,
                                     const ValueSums& sums, std::int64_t place) {
  if constexpr (kW > 1) {
    if (place + kW * kLanes > sums.columns) {
      return add_vectors_in_place<kR, kW - 1>(weights, rows, count, sums, place);
    }
  }
  add_in_place<kR, kW>(weights, rows, count, sums, place);
}

/// Adds P V of keys in consecutive rows to the sums.
template <int kR, class T>
HWY_INLINE void add_rows_in_place(const float* weights, const ValueRows<T>& rows, std::int64_t count, ValueSums& sums) {
  // As many rows at a time as stay in L1, beside the next ones, while their columns are read.
  const std::int64_t step =
      std::max<std::int64_t>(4, kBytesAhead / (sums.columns * static_cast<std::int64_t>(sizeof(T))));
  for (std::int64_t index = 0; index < count; index += step) {
    const std::int64_t end = std::min(index + step, count);
    ask_for_values(rows, end, std::min(end + step, count), sums.columns);
    for (std::int64_t place = 0; place < sums.columns; place += kWideVectors<kR> * kLanes) {
      add_vectors_in_place<kR, kWideVectors<kR>>(weights + index, rows.from(index), end - index, sums, place);
    }
    sums.empty = false;
  }
}

/// Adds a key block's P V to the values of the only rows that read these keys: V is read once, row after row, and not
/// copied. The same chains as values_tile.
template <int kR, class T>
void values_in_place(const RowBlock& block, const BlockView<kR>& view) {
  const std::int64_t columns = block.value_stride;
  ValueSums sums{block.values, columns, true};  // nothing is packed there
  for (int i = 0; i < view.num_runs; ++i) {
    const KeyRange keys{view.runs[i].begin, view.runs[i].end};
    block.problem.key_places.for_each_part(block.head.batch, keys, [&](KeyRange part, const KeyPlace& place) HWY_ATTR {
      add_rows_in_place<kR>(view.logits + (part.begin - view.base), value_rows<T>(block, place), part.end - part.begin,
                            sums);
    });
  }
  float* state = block.chunk.values + view.first_row * columns;
  for (int r = 0; r < kR; ++r) {
    const VF correction = hn::Set(kF32, view.correction[r]);
    for (std::int64_t place = r * columns; place < (r + 1) * columns; place += kLanes) {
      const VF sum = hn::LoadU(kF32, sums.to + place);
      const VF all = view.fresh ? sum : hn::MulAdd(hn::LoadU(kF32, state + place), correction, sum);
      hn::StoreU(all, kF32, state + place);
    }
  }
}

/// Whether every row of the group sees every key of its runs: then no product is 0 times something unknown.
template <int kR>
bool sees_all(const BlockView<kR>& view) {
  for (int i = 0; i < view.num_runs; ++i) {
    for (std::int64_t key = align_down(view.runs[i].begin, kWordKeys); key < view.runs[i].end; key += kWordKeys) {
      if (!view.all[(key - view.base) / kWordKeys]) return false;
    }
  }
  return true;
}

/// Adds a key block's P V to the values of a group.
template <int kR>
void block_values(RowBlock& block, const BlockView<kR>& view) {
  if (block.values_in_place) {
    if (sees_all(view)) {
      return visit_kept(block.problem.v.dtype, [&]<class T>(T) { values_in_place<kR, T>(block, view); });
    }
    pack_values(block, view.base);  // which finds out what numbers there are
  }
  if (!needs_care(block, view)) {
    for (std::int64_t place = 0; place < block.value_stride; place += kPanel) values_vectors(block, view, place);
    return;
  }
  for (int r = 0; r < kR; ++r) {
    for (std::int64_t place = 0; place < block.value_stride; place += kLanes) careful_values(block, r, view, place);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
