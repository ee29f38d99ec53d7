#if defined(QKV_SRC_KERNELS_DROPOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_DROPOUT_INL_H_
#undef QKV_SRC_KERNELS_DROPOUT_INL_H_
#else
#define QKV_SRC_KERNELS_DROPOUT_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/block_view-inl.h"
#include "kernels/dropout.h"
#include "kernels/pairs-inl.h"
#include "kernels/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

// kept_word of dropout.h with one counter a lane: a vector of the counters' i-th numbers is that of neighbouring keys.

#if HWY_TARGET == HWY_SCALAR

/// Calls visit(place, kept) for each vector of the keys base .. base + 63, from key base + place on: which weights are
/// kept.
template <class Visit>
HWY_INLINE void visit_kept_keys(const RowDropout& row, std::int64_t base, const Visit& visit) {
  const std::uint64_t word = kept_word(row, base);
  for (int place = 0; place < kWordKeys; ++place) visit(place, mask_from_bits(word >> place));
}

#else

/// Four numbers of every other counter, in the lower halves of 64 bits, as products of 32 bits take them. What is in the
/// upper halves does not matter.
struct PhiloxLanes {
  using U64 = hn::Repartition<std::uint64_t, U32>;
  using Wide = hn::Vec<U64>;

  Wide x[4];

  static HWY_INLINE Wide all(std::uint32_t number) { return hn::BitCast(U64(), hn::Set(kU32, number)); }
  static HWY_INLINE Wide multiply(Wide numbers, std::uint32_t multiplier) {
    return hn::MulEven(hn::BitCast(kU32, numbers), hn::Set(kU32, multiplier));
  }

  HWY_INLINE void step(Wide first_key, Wide second_key) {
    const Wide first = multiply(x[0], Philox::kMultipliers[0]);
    const Wide second = multiply(x[2], Philox::kMultipliers[1]);
    x[0] = hn::Xor(hn::ShiftRight<32>(second), hn::Xor(x[1], first_key));
    x[1] = second;
    x[2] = hn::Xor(hn::ShiftRight<32>(first), hn::Xor(x[3], second_key));
    x[3] = first;
  }
};

/// The first rounds of the counters of a word. These differ in their first number alone: half of the products of two
/// rounds are of equal numbers.
struct PhiloxStart {
  using Wide = PhiloxLanes::Wide;

  Wide keys[5];  ///< with what all counters have in common

  HWY_INLINE PhiloxStart(const RowDropout& row, std::uint32_t counter_upper) {
    const auto& [r0, r1, r2, r3] = row.state;
    const std::uint64_t second = std::uint64_t{Philox::kMultipliers[1]} * r2;
    const std::uint64_t first = std::uint64_t{Philox::kMultipliers[0]} * (Philox::upper(second) ^ counter_upper ^ r0);
    keys[0] = PhiloxLanes::all(r3 ^ r1);
    keys[1] = PhiloxLanes::all(Philox::lower(second) ^ (r0 + Philox::kKeySteps[0]));
    keys[2] = PhiloxLanes::all(Philox::upper(first) ^ (r1 + Philox::kKeySteps[1]));
    keys[3] = PhiloxLanes::all(r0 + 2 * Philox::kKeySteps[0]);
    keys[4] = PhiloxLanes::all(Philox::lower(first) ^ (r1 + 2 * Philox::kKeySteps[1]));
  }

  /// After three rounds.
  HWY_INLINE PhiloxLanes lanes(Wide counters) const {
    const Wide first = PhiloxLanes::multiply(counters, Philox::kMultipliers[0]);
    const Wide second = PhiloxLanes::multiply(hn::Xor(hn::ShiftRight<32>(first), keys[0]), Philox::kMultipliers[1]);
    PhiloxLanes made{
        {hn::Xor(hn::ShiftRight<32>(second), keys[1]), second, hn::Xor(first, keys[2]), hn::Zero(PhiloxLanes::U64())}};
    made.step(keys[3], keys[4]);
    return made;
  }
};

template <class Visit>
HWY_INLINE void visit_kept_keys(const RowDropout& row, std::int64_t base, const Visit& visit) {
  constexpr int kCounters = 16;
  // Not hn::Iota, which takes the way through memory.
  alignas(64) static constexpr std::uint32_t kLaneNumbers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const auto at = static_cast<std::uint64_t>(base / 4);
  if (row.threshold > std::numeric_limits<std::uint32_t>::max()) {  // no number reaches it, nor could it be compared
    for (int place = 0; place < kWordKeys; place += kLanes) visit(place, mask_from_bits(0));
    return;
  }
  const auto threshold = hn::Set(kU32, static_cast<std::uint32_t>(row.threshold));
  const PhiloxStart start(row, Philox::upper(at));
  for (int c = 0; c < kCounters; c += kLanes) {
    const auto first = hn::Set(kU32, Philox::lower(at) + static_cast<std::uint32_t>(c));
    const auto counters = hn::BitCast(PhiloxLanes::U64(), hn::Add(first, hn::Load(kU32, kLaneNumbers)));
    PhiloxLanes even = start.lanes(counters);
    PhiloxLanes odd = start.lanes(hn::ShiftRight<32>(counters));
    Philox::Key key = {row.state[0] + 2 * Philox::kKeySteps[0], row.state[1] + 2 * Philox::kKeySteps[1]};
    for (int round = 3; round < kWordRounds; ++round) {
      key = {key[0] + Philox::kKeySteps[0], key[1] + Philox::kKeySteps[1]};
      even.step(PhiloxLanes::all(key[0]), PhiloxLanes::all(key[1]));
      odd.step(PhiloxLanes::all(key[0]), PhiloxLanes::all(key[1]));
    }
    for (int i = 0; i < 4; ++i) {
      const auto numbers = hn::OddEven(hn::BitCast(kU32, hn::ShiftLeft<32>(odd.x[i])), hn::BitCast(kU32, even.x[i]));
      visit(kCounters * i + c, hn::RebindMask(kF32, hn::Not(hn::Lt(numbers, threshold))));
    }
  }
}

#endif

/// kept_word by vectors.
HWY_INLINE std::uint64_t kept_bits(const RowDropout& row, std::int64_t base) {
  std::uint64_t word = 0;
  visit_kept_keys(row, base, [&](int place, MF kept) HWY_ATTR { word |= bits_from_mask(kept) << place; });
  return word;
}

#if QKV_HAS_PAIRS
/// 0 for the weights of a word, 64 bfloat16, whose bit is 0.
HWY_INLINE void drop_pairs(std::uint64_t kept, float* weights) {
  const hn::Repartition<std::uint16_t, F32> half;
  for (int pair = 0; pair < kWordKeys / 2; pair += kLanes) {
    const std::uint64_t bits = kept >> (2 * pair);
    std::uint8_t bytes[8];
    std::memcpy(bytes, &bits, sizeof(bits));
    const auto pairs = hn::BitCast(half, hn::LoadU(kF32, weights + pair));
    hn::StoreU(hn::BitCast(kF32, hn::IfThenElseZero(hn::LoadMaskBits(half, bytes), pairs)), kF32, weights + pair);
  }
}
#endif

/// 0 for the weights of a key block that dropout takes. Words that a row sees no key of stay as they are.
template <int kR>
void drop_weights(const RowBlock& block, const BlockView<kR>& view) {
  for (int r = 0; r < kR; ++r) {
    const RowDropout& dropout = block.rows[view.first_row + r].dropout;
    for (int w = 0; w < kBlockWords; ++w) {
      if (view.words[w][r] == 0) continue;
      const std::int64_t base = view.base + w * kWordKeys;
      float* row = view.logits + r * kLogitStride;
#if QKV_HAS_PAIRS
      if (block.pairs) {
        drop_pairs(kept_bits(dropout, base), row + w * kWordKeys / 2);
        continue;
      }
#endif
      float* weights = row + w * kWordKeys;
      visit_kept_keys(dropout, base, [&](int place, MF kept) HWY_ATTR {
        hn::StoreU(hn::IfThenElseZero(kept, hn::LoadU(kF32, weights + place)), kF32, weights + place);
      });
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
