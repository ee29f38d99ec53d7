#if defined(QKV_SRC_KERNELS_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_PAIRS_INL_H_
#undef QKV_SRC_KERNELS_PAIRS_INL_H_
#else
#define QKV_SRC_KERNELS_PAIRS_INL_H_
#endif

#include <cstdint>
#include <limits>

#include "kernels/forward_problem.h"
#include "kernels/magnitude-inl.h"
#include "kernels/simd-inl.h"
#include "kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

// Products of bfloat16 two at a time: a lane of 32 bits holds a pair, the earlier number in its lower half, and one
// instruction adds both products of two pairs to a float. Pairs are neighbours along head_dim in Q K^T, and neighbouring
// keys, from an even one on, in P V. A panel of pairs looks like a panel of floats with half as many rows.

// Compiled where QKV_WITH_PAIRS is defined (highway_targets.h). Where QKV_EMULATE_PAIRS is, AVX2 does the same by what it
// has (target "avx2_bf16"): slowly, so that everything around the instruction can be tested without it.
#undef QKV_HAS_PAIRS
#if HWY_TARGET == HWY_AVX3_DL || (defined(QKV_EMULATE_PAIRS) && HWY_TARGET == HWY_AVX2)
#define QKV_HAS_PAIRS 1
#else
#define QKV_HAS_PAIRS 0
#endif

/// Whether this target has the instruction.
inline constexpr bool kHasPairs = QKV_HAS_PAIRS == 1;

/// Whether a call is computed with it: where everything that meets in a product is bfloat16.
inline bool multiplies_pairs(const ForwardProblem& problem) { return kHasPairs && problem.rounds_weights(); }

/// Rows of a panel of keys: numbers, or pairs.
inline std::int64_t depth_of(const ForwardProblem& problem) {
  return multiplies_pairs(problem) ? (problem.head_dim + 1) / 2 : problem.head_dim;
}

/// The instruction takes subnormal numbers, and makes sums that are, to be 0. Numbers that this could be seen of become
/// NaN, which sends the rows and columns that see them to the double-precision kernel: of K and q those that are
/// subnormal (beside a large number they make a logit), of V those whose product with a small weight may be.
inline constexpr std::uint32_t kLeastKey = 1 << 7;              ///< 2^-126 as bfloat16
inline constexpr std::uint32_t kLeastValue = (127 - 100) << 7;  ///< 2^-100

/// A number times a power of two; NaN where the product of one that is not 0 is subnormal, or underflows.
HWY_INLINE VF scaled_or_nan(VF x, VF factor) {
  const VF product = hn::Mul(x, factor);
  // By integers: comparisons of floats may take subnormal numbers to be 0.
  const auto below = hn::Lt(hn::BitCast(kI32, hn::Abs(product)), hn::BitCast(kI32, hn::Set(kF32, 0x1p-126f)));
  const auto zero = hn::Eq(hn::BitCast(kI32, hn::Abs(x)), hn::Zero(kI32));
  const auto small = hn::RebindMask(kF32, hn::AndNot(zero, below));
  return hn::IfThenElse(small, hn::Set(kF32, std::numeric_limits<float>::quiet_NaN()), product);
}

HWY_INLINE VF pairs_of_ones() { return hn::BitCast(kF32, hn::Set(kU32, 0x3f803f80u)); }

/// The mask of a pair's later number.
HWY_INLINE VI upper_half() { return hn::Set(kI32, static_cast<std::int32_t>(0xffff0000u)); }

HWY_INLINE VF load_pairs(const BFloat16* from) { return hn::LoadU(kF32, reinterpret_cast<const float*>(from)); }

#if HWY_TARGET == HWY_AVX3_DL

/// acc + a1 b1 + a0 b0 of pairs, in the order and with the rounding of the CPU.
struct MultiplyAddPairs {
  HWY_INLINE VF operator()(VF a, VF b, VF acc) const {
    return VF{_mm512_dpbf16_ps(acc.raw, reinterpret_cast<__m512bh>(a.raw), reinterpret_cast<__m512bh>(b.raw))};
  }
};

/// Two vectors of neighbours as one of pairs, rounded to nearest with ties to even.
HWY_INLINE VF round_to_pairs(VF first, VF second) {
  return VF{reinterpret_cast<__m512>(_mm512_cvtne2ps_pbh(second.raw, first.raw))};
}

#elif QKV_HAS_PAIRS

/// 0 for what is subnormal.
HWY_INLINE VF flush(VF x) { return hn::IfThenElseZero(hn::Not(hn::Lt(hn::Abs(x), hn::Set(kF32, 0x1p-126f))), x); }

/// As Intel's manual describes it.
struct MultiplyAddPairs {
  HWY_INLINE VF operator()(VF a, VF b, VF acc) const {
    const auto later = [](VF x) HWY_ATTR { return flush(hn::And(x, hn::BitCast(kF32, upper_half()))); };
    const auto earlier = [](VF x)
                             HWY_ATTR { return flush(hn::BitCast(kF32, hn::ShiftLeft<16>(hn::BitCast(kU32, x)))); };
    acc = flush(hn::MulAdd(later(a), later(b), acc));
    return flush(hn::MulAdd(earlier(a), earlier(b), acc));
  }
};

HWY_INLINE VF round_to_pairs(VF first, VF second) {
  BFloat16 numbers[2 * kLanes];
  store(flush(first), numbers);
  store(flush(second), numbers + kLanes);
  return load_pairs(numbers);
}

#endif
#if QKV_HAS_PAIRS

/// Pairs with NaN for numbers between 0 and `least`, bits of a bfloat16. Raises `largest`, magnitudes of 16 bits.
HWY_INLINE VF without_small(VF pairs, std::uint32_t least, VI& largest) {
  const hn::Repartition<std::uint16_t, F32> half;
  const auto numbers = hn::BitCast(half, pairs);
  const auto size = hn::And(numbers, hn::Set(half, 0x7fff));
  const auto below = hn::Sub(size, hn::Set(half, 1));  // 0 wraps round to the largest
  const auto small = hn::Lt(below, hn::Set(half, static_cast<std::uint16_t>(least - 1)));
  const auto kept = hn::IfThenElse(small, hn::Set(half, 0x7fc0), numbers);
  const auto magnitude = hn::And(kept, hn::Set(half, 0x7fff));
  largest = hn::BitCast(kI32, hn::Max(hn::BitCast(half, largest), magnitude));
  return hn::BitCast(kF32, kept);
}

/// The largest of them as bits of a float.
HWY_INLINE std::uint32_t largest_of_pairs(VI magnitudes) {
  const VI upper = hn::And(magnitudes, hn::Set(kI32, 0x7fff0000));
  return largest_of(hn::Max(upper, hn::ShiftLeft<16>(magnitudes)));
}

#else  // what is named for every target, and called on one

using MultiplyAddPairs = MultiplyAdd;
HWY_INLINE VF round_to_pairs(VF first, VF /*second*/) { return first; }
HWY_INLINE VF without_small(VF pairs, std::uint32_t /*least*/, VI& /*largest*/) { return pairs; }
HWY_INLINE std::uint32_t largest_of_pairs(VI /*magnitudes*/) { return 0; }

#endif

/// Calls visit(product): how the numbers of a call are multiplied.
template <class Visit>
HWY_INLINE void visit_product(bool pairs, const Visit& visit) {
  if constexpr (kHasPairs) {
    if (pairs) return visit(MultiplyAddPairs());
  }
  visit(MultiplyAdd());
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
