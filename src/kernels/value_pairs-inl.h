#if defined(QKV_SRC_KERNELS_VALUE_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_VALUE_PAIRS_INL_H_
#undef QKV_SRC_KERNELS_VALUE_PAIRS_INL_H_
#else
#define QKV_SRC_KERNELS_VALUE_PAIRS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "kernels/block_view-inl.h"
#include "kernels/pairs-inl.h"
#include "kernels/tile-inl.h"
#include "kernels/value_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

/// Columns from `place` on of two neighbouring keys, as pairs; null: a key that is not there, 0.
HWY_INLINE VF pair_of_rows(const BFloat16* first, const BFloat16* second, std::int64_t place) {
  const auto numbers = [&](const BFloat16* row)
                           HWY_ATTR { return row == nullptr ? hn::Zero(kU32) : load_bits(&row[place].bits); };
  return hn::BitCast(kF32, hn::Or(numbers(first), hn::ShiftLeft<16>(numbers(second))));
}

/// Packs two neighbouring keys as a row of pairs, the last vector filled up with zeros. Raises magnitudes of 16 bits.
HWY_INLINE void pack_pair(const RowBlock& block, std::int64_t pair, const BFloat16* first, const BFloat16* second,
                          VI& largest) {
  const std::int64_t columns = block.problem.value_dim;
  const std::int64_t stride = block.problem.v.col;
  std::int64_t place = 0;
  if (stride == 1) {
    for (; place + kLanes <= columns; place += kLanes) {
      const VF numbers = pair_of_rows(first, second, place);
      hn::StoreU(without_small(numbers, kLeastValue, largest), kF32, value_at(block, pair, place));
    }
  }
  for (; place < columns; place += kLanes) {
    BFloat16 staged[2][kLanes] = {};
    for (std::int64_t i = 0; i < kLanes && place + i < columns; ++i) {
      if (first != nullptr) staged[0][i] = first[(place + i) * stride];
      if (second != nullptr) staged[1][i] = second[(place + i) * stride];
    }
    const VF numbers = pair_of_rows(staged[0], staged[1], 0);
    hn::StoreU(without_small(numbers, kLeastValue, largest), kF32, value_at(block, pair, place));
  }
}

/// Packs the keys of one word in pairs from an even key on; `keys` may begin and end inside of one, and so may what lies
/// in consecutive rows. @return bits of the largest magnitude
inline std::uint32_t pack_value_pairs(const RowBlock& block, KeyRange keys, std::int64_t base) {
  const ForwardProblem& problem = block.problem;
  const auto row_at = [&](const KeyPlace& place) {
    return problem.v.at<BFloat16>(place.entry, block.head.kv_head, place.row);
  };
  VI largest = hn::Zero(kI32);
  problem.key_places.for_each_part(block.head.batch, keys, [&](KeyRange part, const KeyPlace& place) HWY_ATTR {
    const BFloat16* row = row_at(place);
    std::int64_t key = part.begin;
    if (key % 2 == 1) {
      const BFloat16* before = key > keys.begin ? row_at(problem.key_places(block.head.batch, key - 1)) : nullptr;
      pack_pair(block, (key - base) / 2, before, row, largest);
      row += problem.v.row;
      ++key;
    }
    for (; key + 1 < part.end; key += 2, row += 2 * problem.v.row) {
      pack_pair(block, (key - base) / 2, row, row + problem.v.row, largest);
    }
    if (key < part.end) pack_pair(block, (key - base) / 2, row, nullptr, largest);
  });
  return largest_of_pairs(largest);
}

/// careful_values in pairs: a hidden key of a pair that is not skipped counts as 0 times 0.
template <int kR>
void careful_value_pairs(const RowBlock& block, int r, const BlockView<kR>& view, std::int64_t place,
                         Accumulators<1, 1>& acc) {
  const float* weights = view.logits + r * kLogitStride;
  for (int i = 0; i < view.num_runs; ++i) {
    const std::int64_t end = view.runs[i].end - view.base;
    for (std::int64_t key = align_down(view.runs[i].begin - view.base, 2); key < end; key += 2) {
      const auto visible = static_cast<std::uint32_t>(view.words[key / kWordKeys][r] >> (key % kWordKeys) & 3);
      if (visible == 0) continue;
      const std::uint32_t mask = (visible & 1 ? 0x0000ffffu : 0) | (visible & 2 ? 0xffff0000u : 0);
      const VF values = hn::And(load(value_at(block, key / 2, place)), hn::BitCast(kF32, hn::Set(kU32, mask)));
      acc.v[0][0] = MultiplyAddPairs()(hn::Set(kF32, weights[key / 2]), values, acc.v[0][0]);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
