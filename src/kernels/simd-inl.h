// Per-target include guard: this header is compiled once for each instruction set.
#if defined(QKV_SRC_KERNELS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_SIMD_INL_H_
#undef QKV_SRC_KERNELS_SIMD_INL_H_
#else
#define QKV_SRC_KERNELS_SIMD_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/highway_targets.h"
#include "kernels/tile_shape.h"
// After highway_targets.h, which says what is built.
#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX3_DL
#include <immintrin.h>
#ifndef HWY_TARGET_STR_AVX3_DL
#define HWY_TARGET_STR_AVX3_DL \
  HWY_TARGET_STR_AVX3 ",vpclmulqdq,avx512vbmi,avx512vbmi2,vaes,avxvnni,avx512bitalg,avx512vpopcntdq"
#endif
#undef HWY_TARGET_STR  // what HWY_BEFORE_NAMESPACE and HWY_ATTR ask the compiler for
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3_DL ",avx512bf16"
#endif

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The one place that knows how Highway 1.0 and 1.2 differ, and what shape the register tile has on each target.

using F32 = hn::CappedTag<float, kMostLanes>;
using I32 = hn::RebindToSigned<F32>;
using VF = hn::Vec<F32>;
using VI = hn::Vec<I32>;
using MF = hn::Mask<F32>;
inline constexpr F32 kF32;
inline constexpr I32 kI32;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(F32()));

/// Vectors of the register tile, beside its kTileRows rows.
#if HWY_TARGET == HWY_SSE2 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SCALAR
inline constexpr int kTileVectors = 2;
#else
inline constexpr int kTileVectors = 4;
#endif
/// Keys of one panel of K, columns of one panel of V: what the register tile takes at a time.
inline constexpr int kPanel = kTileVectors * kLanes;

/// The larger of a constant and x, and x where x is NaN. x86 takes the second operand then; others drop NaN.
HWY_INLINE VF max_or_nan(VF constant, VF x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return hn::Max(constant, x);
#else
  return hn::IfThenElse(hn::Lt(x, constant), constant, x);
#endif
}

HWY_INLINE float min_of(VF v) { return hn::GetLane(hn::MinOfLanes(kF32, v)); }
HWY_INLINE float max_of(VF v) { return hn::GetLane(hn::MaxOfLanes(kF32, v)); }
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE float sum_of(VF v) { return hn::GetLane(v); }
#else
template <class D>
HWY_INLINE float sum_of_halves(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(d) > 1) {
    const hn::Half<D> half;
    return sum_of_halves(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    return hn::GetLane(v);
  }
}
/// Halves added to halves: Highway's own order changes from version to version.
HWY_INLINE float sum_of(VF v) { return sum_of_halves(kF32, v); }
#endif

/// The masks of a tile's vectors: lane i of vector w is bit w * kLanes + i.
class TileMasks {
 public:
#if HWY_TARGET == HWY_AVX2
  // Without the way through memory that LoadMaskBits takes, and one broadcast for both vectors.
  HWY_INLINE explicit TileMasks(std::uint64_t bits)
      : bits_(hn::BitCast(kI32, hn::Set(hn::Repartition<std::uint16_t, I32>(), static_cast<std::uint16_t>(bits)))) {
    static_assert(kTileVectors * kLanes <= 16);
  }
  HWY_INLINE MF operator[](int w) const {
    alignas(32) static constexpr std::int32_t kPowers[] = {1,   2,   4,    8,    16,   32,   64,    128,
                                                           256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
    return hn::RebindMask(kF32, hn::TestBit(bits_, hn::Load(kI32, kPowers + w * kLanes)));
  }

 private:
  VI bits_;
#else
  HWY_INLINE explicit TileMasks(std::uint64_t bits) : bits_(bits) {}
  HWY_INLINE MF operator[](int w) const {
    const std::uint64_t bits = bits_ >> (w * kLanes);
    std::uint8_t bytes[8];
    std::memcpy(bytes, &bits, sizeof(bits));
    return hn::LoadMaskBits(kF32, bytes);
  }

 private:
  std::uint64_t bits_;
#endif
};

/// Lane i is bit i of bits.
HWY_INLINE MF mask_from_bits(std::uint64_t bits) { return TileMasks(bits)[0]; }
HWY_INLINE std::uint64_t bits_from_mask(MF mask) {
  std::uint8_t bytes[8] = {};
  hn::StoreMaskBits(kF32, mask, bytes);
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes, sizeof(bits));
  return bits;
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
