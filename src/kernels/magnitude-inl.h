#if defined(QKV_SRC_KERNELS_MAGNITUDE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_MAGNITUDE_INL_H_
#undef QKV_SRC_KERNELS_MAGNITUDE_INL_H_
#else
#define QKV_SRC_KERNELS_MAGNITUDE_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

// Preparing q, k and v reads every number once, so it also finds out whether any is not finite or too large for plain
// arithmetic. Magnitudes are compared as integers: NaN orders above infinity and cannot hide it.

/// Largest |x| so far, by bits.
HWY_INLINE VI raise_magnitude(VF x, VI largest) { return hn::Max(largest, hn::BitCast(kI32, hn::Abs(x))); }

HWY_INLINE std::uint32_t largest_of(VI magnitudes) {
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(kI32, magnitudes)));
}

HWY_INLINE std::uint32_t magnitude_bits(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits & 0x7fffffffu;
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
