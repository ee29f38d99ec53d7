#if defined(QKV_SRC_KERNELS_ROTATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_ROTATE_INL_H_
#undef QKV_SRC_KERNELS_ROTATE_INL_H_
#else
#define QKV_SRC_KERNELS_ROTATE_INL_H_
#endif

#include <cstdint>

#include "kernels/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

// Vectors of the numbers that pairs are turned in, from and to what they are stored in.

using F64 = hn::CappedTag<double, kMostLanes / 2>;
using NarrowF32 = hn::Rebind<float, F64>;
inline constexpr F64 kF64;
inline constexpr NarrowF32 kNarrowF32;
using VD = hn::Vec<F64>;

/// Of numbers that are stored as T.
template <class T>
struct Turned {
  using Number = float;
  using Vector = VF;
  static constexpr F32 kTag = {};
};
template <>
struct Turned<float> {
  using Number = double;
  using Vector = VD;
  static constexpr F64 kTag = {};
};
template <>
struct Turned<double> : Turned<float> {};

template <class T>
using Number = typename Turned<T>::Number;

HWY_INLINE VD load_turned(const double* from) { return hn::LoadU(kF64, from); }
HWY_INLINE VD load_turned(const float* from) { return hn::PromoteTo(kF64, hn::LoadU(kNarrowF32, from)); }
HWY_INLINE VF load_turned(const BFloat16* from) { return load(from); }
HWY_INLINE VF load_turned(const Float16* from) { return load(from); }

HWY_INLINE void store_turned(VD x, double* to) { hn::StoreU(x, kF64, to); }
#if HWY_TARGET == HWY_SCALAR
/// Highway's own makes the largest finite number of infinity.
HWY_INLINE void store_turned(VD x, float* to) { *to = static_cast<float>(hn::GetLane(x)); }
#else
HWY_INLINE void store_turned(VD x, float* to) { hn::StoreU(hn::DemoteTo(kNarrowF32, x), kNarrowF32, to); }
#endif
template <class To>
HWY_INLINE void store_turned(VF x, To* to) {
  store(x, to);
}

/// x and y of as many pairs as a vector has lanes.
template <class V>
struct Pairs {
  V x;
  V y;
};

#if HWY_TARGET == HWY_SCALAR
template <class From>
HWY_INLINE auto load_interleaved(const From* from) {
  return Pairs<typename Turned<From>::Vector>{load_turned(from), load_turned(from + 1)};
}
template <class V, class To>
HWY_INLINE void store_interleaved(const Pairs<V>& pairs, To* to) {
  store_turned(pairs.x, to);
  store_turned(pairs.y, to + 1);
}
#else
HWY_INLINE Pairs<VD> load_interleaved(const double* from) {
  VD x, y;
  hn::LoadInterleaved2(kF64, from, x, y);
  return {x, y};
}
HWY_INLINE Pairs<VD> load_interleaved(const float* from) {
  hn::Vec<NarrowF32> x, y;
  hn::LoadInterleaved2(kNarrowF32, from, x, y);
  return {hn::PromoteTo(kF64, x), hn::PromoteTo(kF64, y)};
}
HWY_INLINE Pairs<VF> load_interleaved(const Float16* from) {
  const VF low = load(from);
  const VF high = load(from + kLanes);
  return {hn::ConcatEven(kF32, high, low), hn::ConcatOdd(kF32, high, low)};
}
/// A word of two bfloat16 holds the first in its lower half, and each half is a float but for zeros behind it.
using Words16 = hn::Repartition<std::uint16_t, F32>;
inline constexpr Words16 kWords16;
HWY_INLINE Pairs<VF> load_interleaved(const BFloat16* from) {
  const auto bits = hn::BitCast(kU32, hn::LoadU(kWords16, &from->bits));
  return {hn::BitCast(kF32, hn::ShiftLeft<16>(bits)), hn::BitCast(kF32, hn::And(bits, hn::Set(kU32, 0xffff0000u)))};
}

HWY_INLINE void store_interleaved(const Pairs<VD>& pairs, double* to) {
  hn::StoreInterleaved2(pairs.x, pairs.y, kF64, to);
}
HWY_INLINE void store_interleaved(const Pairs<VD>& pairs, float* to) {
  hn::StoreInterleaved2(hn::DemoteTo(kNarrowF32, pairs.x), hn::DemoteTo(kNarrowF32, pairs.y), kNarrowF32, to);
}
HWY_INLINE void store_interleaved(const Pairs<VF>& pairs, float* to) {
  hn::StoreInterleaved2(pairs.x, pairs.y, kF32, to);
}
HWY_INLINE void store_interleaved(const Pairs<VF>& pairs, Float16* to) {
  float lanes[2 * kLanes];
  hn::StoreInterleaved2(pairs.x, pairs.y, kF32, lanes);
  store(load(lanes), to);
  store(load(lanes + kLanes), to + kLanes);
}
/// Rounded in the upper half. NaN is safe: what bfloat16 gives has no bits that could carry.
HWY_INLINE hn::Vec<U32> rounded_bits(VF x) {
  const auto bits = hn::BitCast(kU32, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(kU32, 1u));
  return hn::Add(bits, hn::Add(odd, hn::Set(kU32, 0x7fffu)));
}
HWY_INLINE void store_interleaved(const Pairs<VF>& pairs, BFloat16* to) {
  const auto lower = hn::BitCast(kWords16, hn::ShiftRight<16>(rounded_bits(pairs.x)));
  const auto upper = hn::BitCast(kWords16, rounded_bits(pairs.y));
  hn::StoreU(hn::OddEven(upper, lower), kWords16, &to->bits);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
