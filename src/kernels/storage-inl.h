#if defined(QKV_SRC_KERNELS_STORAGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_STORAGE_INL_H_
#undef QKV_SRC_KERNELS_STORAGE_INL_H_
#else
#define QKV_SRC_KERNELS_STORAGE_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "kernels/simd-inl.h"
#include "qkv/half.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

// Vectors of f32 from and to what numbers are stored in. Loads are exact; stores round to nearest, ties to even.

using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<std::uint16_t, F32>;
inline constexpr U32 kU32;
inline constexpr U16 kU16;

/// Whether the CPU converts float16; Highway's stand-ins lose infinities.
inline constexpr bool kConvertsFloat16 =
    (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || (HWY_ARCH_ARM_A64 && HWY_TARGET == HWY_NEON);
using F16 = hn::Rebind<hwy::float16_t, F32>;
inline constexpr F16 kF16;

HWY_INLINE hn::Vec<U32> load_bits(const std::uint16_t* from) { return hn::PromoteTo(kU32, hn::LoadU(kU16, from)); }

HWY_INLINE VF load(const float* from) { return hn::LoadU(kF32, from); }

HWY_INLINE VF load(const BFloat16* from) { return hn::BitCast(kF32, hn::ShiftLeft<16>(load_bits(&from->bits))); }

/// float16 bits as f32, by integers.
HWY_INLINE VF float16_from_bits(hn::Vec<U32> bits) {
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(kU32, 0x8000u)));
  const auto rest = hn::ShiftLeft<13>(hn::And(bits, hn::Set(kU32, 0x7fffu)));
  const auto normal = hn::Add(rest, hn::Set(kU32, 112u << 23));
  // Infinity and NaN: the exponent is full in both formats.
  const auto beyond = hn::Add(rest, hn::Set(kU32, 224u << 23));
  // Subnormals are formed as 2^-14 + themselves, so that nothing on the way is a subnormal float.
  const VF tiny = hn::Sub(hn::BitCast(kF32, hn::Add(rest, hn::Set(kU32, 113u << 23))), hn::Set(kF32, 0x1p-14f));
  const auto is_tiny = hn::Lt(hn::BitCast(kI32, rest), hn::Set(kI32, 0x400 << 13));
  const auto is_beyond = hn::Gt(hn::BitCast(kI32, rest), hn::Set(kI32, (0x7c00 << 13) - 1));
  VF size = hn::BitCast(kF32, normal);
  size = hn::IfThenElse(hn::RebindMask(kF32, is_beyond), hn::BitCast(kF32, beyond), size);
  size = hn::IfThenElse(hn::RebindMask(kF32, is_tiny), tiny, size);
  return hn::Or(size, hn::BitCast(kF32, sign));
}

HWY_INLINE VF load(const Float16* from) {
  if constexpr (kConvertsFloat16) {
    return hn::PromoteTo(kF32, hn::LoadU(kF16, reinterpret_cast<const hwy::float16_t*>(from)));
  } else {
    return float16_from_bits(load_bits(&from->bits));
  }
}

/// A number that is not NaN as bfloat16 would store it. Written in integers: the carry of a mantissa of ones raises the
/// exponent, up to infinity.
HWY_INLINE VF round_to_bfloat16(VF x) {
  const auto bits = hn::BitCast(kU32, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(kU32, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(kU32, 0x7fffu)));
  return hn::BitCast(kF32, hn::And(rounded, hn::Set(kU32, 0xffff0000u)));
}

using I8 = hn::Rebind<std::int8_t, F32>;
inline constexpr I8 kI8;

HWY_INLINE VF load(const std::int8_t* from) { return hn::ConvertTo(kF32, hn::PromoteTo(kI32, hn::LoadU(kI8, from))); }

/// Numbers that are kept as they are need no scale.
template <class T>
inline constexpr bool kHasScale = std::is_same_v<T, std::int8_t>;

/// Loads numbers of a key whose scale this is.
template <class T>
HWY_INLINE VF load_scaled(const T* from, float scale) {
  if constexpr (kHasScale<T>) return hn::Mul(load(from), hn::Set(kF32, scale));
  return load(from);
}

/// The same for one.
template <class T>
HWY_INLINE float read_scaled(const T& from, float scale) {
  if constexpr (kHasScale<T>) return static_cast<float>(from) * scale;
  return static_cast<float>(from);
}

HWY_INLINE void store(VF x, float* to) { hn::StoreU(x, kF32, to); }

HWY_INLINE void store(VF x, BFloat16* to) {
  const VF nan = hn::BitCast(kF32, hn::Or(hn::BitCast(kU32, x), hn::Set(kU32, 0x400000u)));
  const VF rounded = hn::IfThenElse(hn::Eq(x, x), round_to_bfloat16(x), nan);
  const auto upper = hn::BitCast(kI32, hn::ShiftRight<16>(hn::BitCast(kU32, rounded)));
  hn::StoreU(hn::DemoteTo(kU16, upper), kU16, &to->bits);
}

HWY_INLINE void store(VF x, Float16* to) {
  if constexpr (kConvertsFloat16) {
    hn::StoreU(hn::DemoteTo(kF16, x), kF16, reinterpret_cast<hwy::float16_t*>(to));
  } else {
    float lanes[kLanes];
    hn::StoreU(x, kF32, lanes);
    for (int i = 0; i < kLanes; ++i) to[i] = Float16(static_cast<double>(lanes[i]));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
