#include "kernels/narrow.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/narrow.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets the target of each pass.
#include "hwy/highway.h"
#include "kernels/magnitude-inl.h"
#include "kernels/rotate-inl.h"
#include "kernels/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

/// A vector of the last numbers, filled up with zeros.
HWY_INLINE VF load_some(const float* from, std::int64_t count) {
  float lanes[kLanes] = {};
  std::copy_n(from, count, lanes);
  return hn::LoadU(kF32, lanes);
}

template <class T>
HWY_INLINE void narrow_all(const float* from, std::int64_t count, T* to) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(load(from + i), to + i);
  if (i == count) return;
  T lanes[kLanes];
  store(load_some(from + i, count - i), lanes);
  std::copy_n(lanes, count - i, to + i);
}

/// 13 bits of each number, the last of them 1 where anything behind it is: a float32 that rounds to 16 bits as the number
/// itself does, which its nearest float32 would not where that is a tie of two numbers of 16 bits.
HWY_INLINE VD rounded_to_odd(VD x) {
  constexpr int kDropped = 40;
  const hn::RebindToUnsigned<F64> bits_of;
  const auto bits = hn::BitCast(bits_of, x);
  const auto tail = hn::And(bits, hn::Set(bits_of, (std::uint64_t{1} << kDropped) - 1));
  const auto last = hn::Set(bits_of, std::uint64_t{1} << kDropped);
  const auto odd = hn::IfThenZeroElse(hn::Eq(tail, hn::Zero(bits_of)), last);
  return hn::BitCast(kF64, hn::Or(hn::Xor(bits, tail), odd));
}

/// As many numbers as a vector of floats has.
#if HWY_TARGET == HWY_SCALAR
template <class T>
HWY_INLINE void narrow_doubles(const double* from, T* to) {
  float number;
  store_turned(rounded_to_odd(hn::LoadU(kF64, from)), &number);
  store(load(&number), to);
}
#else
template <class T>
HWY_INLINE void narrow_doubles(const double* from, T* to) {
  const auto half = [from](std::int64_t i)
                        HWY_ATTR { return hn::DemoteTo(kNarrowF32, rounded_to_odd(hn::LoadU(kF64, from + i))); };
  store(hn::Combine(kF32, half(kLanes / 2), half(0)), to);
}
#endif

template <class T>
HWY_INLINE void narrow_all(const double* from, std::int64_t count, T* to) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) narrow_doubles(from + i, to + i);
  if (i == count) return;
  double some[kLanes] = {};
  T lanes[kLanes];
  std::copy_n(from + i, count - i, some);
  narrow_doubles(some, lanes);
  std::copy_n(lanes, count - i, to + i);
}

void narrow_bfloat16(const float* from, std::int64_t count, BFloat16* to) { narrow_all(from, count, to); }
void narrow_float16(const float* from, std::int64_t count, Float16* to) { narrow_all(from, count, to); }
void narrow_bfloat16_f64(const double* from, std::int64_t count, BFloat16* to) { narrow_all(from, count, to); }
void narrow_float16_f64(const double* from, std::int64_t count, Float16* to) { narrow_all(from, count, to); }

std::uint32_t largest_magnitude(const float* from, std::int64_t count) {
  VI largest = hn::Zero(kI32);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) largest = raise_magnitude(load(from + i), largest);
  return largest_of(raise_magnitude(load_some(from + i, count - i), largest));
}

void multiply_to_whole(const float* from, std::int64_t count, float factor, std::int8_t* to) {
  const VF by = hn::Set(kF32, factor);
  // DemoteTo saturates, and no product is beyond 127.5.
  const auto whole = [&](VF x) HWY_ATTR { return hn::DemoteTo(kI8, hn::NearestInt(hn::Mul(x, by))); };
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) hn::StoreU(whole(load(from + i)), kI8, to + i);
  if (i == count) return;
  std::int8_t lanes[kLanes];
  hn::StoreU(whole(load_some(from + i, count - i)), kI8, lanes);
  std::copy_n(lanes, count - i, to + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace qkv::kernels {

HWY_EXPORT(narrow_bfloat16);
HWY_EXPORT(narrow_float16);
HWY_EXPORT(narrow_bfloat16_f64);
HWY_EXPORT(narrow_float16_f64);
HWY_EXPORT(largest_magnitude);
HWY_EXPORT(multiply_to_whole);

namespace {

constexpr double kMostWhole = 127;

float scale_of(double largest) {
  auto scale = static_cast<float>(largest / kMostWhole);
  // A scale that is subnormal is coarse: rounded down it would cut the largest numbers off.
  if (static_cast<double>(scale) * (kMostWhole + 0.5) < largest) {
    scale = std::nextafter(scale, std::numeric_limits<float>::infinity());
  }
  // And one of the largest floats, rounded up, would make infinity of 127.
  if (static_cast<double>(scale) * kMostWhole > static_cast<double>(std::numeric_limits<float>::max())) {
    scale = std::nextafter(scale, 0.0f);
  }
  return scale;
}

/// Where 1 / scale is no float.
void divide_to_whole(const float* from, std::int64_t count, float scale, std::int8_t* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    const double whole = std::nearbyint(static_cast<double>(from[i]) / static_cast<double>(scale));
    to[i] = static_cast<std::int8_t>(std::clamp(whole, -kMostWhole, kMostWhole));
  }
}

}  // namespace

void narrow(const float* from, std::int64_t count, BFloat16* to) {
  HWY_DYNAMIC_DISPATCH(narrow_bfloat16)(from, count, to);
}

void narrow(const float* from, std::int64_t count, Float16* to) {
  HWY_DYNAMIC_DISPATCH(narrow_float16)(from, count, to);
}

void narrow(const double* from, std::int64_t count, BFloat16* to) {
  HWY_DYNAMIC_DISPATCH(narrow_bfloat16_f64)(from, count, to);
}

void narrow(const double* from, std::int64_t count, Float16* to) {
  HWY_DYNAMIC_DISPATCH(narrow_float16_f64)(from, count, to);
}

float narrow(const float* from, std::int64_t count, std::int8_t* to) {
  const auto largest = std::bit_cast<float>(HWY_DYNAMIC_DISPATCH(largest_magnitude)(from, count));
  const bool finite = largest <= std::numeric_limits<float>::max();
  if (!finite || largest == 0) {
    std::fill_n(to, count, std::int8_t{0});
    return finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  const float scale = scale_of(static_cast<double>(largest));
  constexpr float kSmall = 0x1p-100f;
  if (scale < kSmall) {
    divide_to_whole(from, count, scale, to);
  } else {
    HWY_DYNAMIC_DISPATCH(multiply_to_whole)(from, count, 1 / scale, to);
  }
  return scale;
}

}  // namespace qkv::kernels
#endif  // HWY_ONCE
