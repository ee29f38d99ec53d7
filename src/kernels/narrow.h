#ifndef QKV_SRC_KERNELS_NARROW_H_
#define QKV_SRC_KERNELS_NARROW_H_

#include <cstdint>

#include "qkv/half.h"

namespace qkv::kernels {

/// Numbers on their way into a cache: rounded once, to nearest with ties to even. The same bits on every target.
void narrow(const float* from, std::int64_t count, BFloat16* to);
void narrow(const float* from, std::int64_t count, Float16* to);
void narrow(const double* from, std::int64_t count, BFloat16* to);
void narrow(const double* from, std::int64_t count, Float16* to);

/// Whole numbers of -127 .. 127: x * (1 / scale) to nearest. @return the scale, the largest |x| / 127, rounded so that
/// no whole number is cut off and 127 * scale is finite; NaN, and zeros, where a number is not finite. No number is off
/// by more than 0.5001 * scale.
float narrow(const float* from, std::int64_t count, std::int8_t* to);

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_NARROW_H_
