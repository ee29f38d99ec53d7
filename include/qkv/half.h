#ifndef QKV_HALF_H_
#define QKV_HALF_H_

#include <cstdint>

#include "qkv/dtype.h"
#include "qkv/export.h"

namespace qkv {

/// bfloat16 as it lies in memory: the upper half of a float32 (8 bits of exponent, 7 of fraction). A type for storage;
/// arithmetic happens in float.
struct QKV_API BFloat16 {
  std::uint16_t bits = 0;  ///< sign, exponent, fraction

  BFloat16() = default;
  /// Rounds once, to nearest with ties to even: beyond the largest number (3.39e38) to infinity; NaN stays NaN.
  explicit BFloat16(double value);
  explicit operator float() const noexcept;  ///< exact
  explicit operator double() const noexcept { return static_cast<double>(static_cast<float>(*this)); }
};

/// IEEE 754 binary16, as NumPy's and PyTorch's float16 (5 bits of exponent, 10 of fraction; up to 65504).
struct QKV_API Float16 {
  std::uint16_t bits = 0;  ///< sign, exponent, fraction

  Float16() = default;
  /// Rounds once, to nearest with ties to even, subnormals included: from 65520 on to infinity; NaN stays NaN.
  explicit Float16(double value);
  explicit operator float() const noexcept;  ///< exact
  explicit operator double() const noexcept { return static_cast<double>(static_cast<float>(*this)); }
};

template <>
inline constexpr Dtype kDtypeOf<BFloat16> = Dtype::kBFloat16;
template <>
inline constexpr Dtype kDtypeOf<Float16> = Dtype::kFloat16;

}  // namespace qkv

#endif  // QKV_HALF_H_
