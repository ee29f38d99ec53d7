#ifndef QKV_DTYPE_H_
#define QKV_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "qkv/export.h"

namespace qkv {

/// Element types that a view can carry. The integer and 16-bit types exist so that an operand of that type can be
/// named in an error; which of them an operation accepts is part of that operation's contract.
enum class Dtype : std::uint8_t {
  kBool,
  kUInt8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
};

/// Bytes of one element.
constexpr std::size_t size_of(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::kBool:
    case Dtype::kUInt8:
    case Dtype::kInt8:
      return 1;
    case Dtype::kInt16:
    case Dtype::kFloat16:
    case Dtype::kBFloat16:
      return 2;
    case Dtype::kInt32:
    case Dtype::kFloat32:
      return 4;
    case Dtype::kInt64:
    case Dtype::kFloat64:
      return 8;
  }
  return 0;
}

/// "float32", "bool", ... : the names NumPy uses ("bfloat16" for the one it lacks).
QKV_API std::string_view name_of(Dtype dtype) noexcept;

/// The Dtype of a C++ element type.
template <class T>
inline constexpr Dtype kDtypeOf = [] { static_assert(sizeof(T) == 0, "no qkv::Dtype for this type"); }();
template <>
inline constexpr Dtype kDtypeOf<bool> = Dtype::kBool;
template <>
inline constexpr Dtype kDtypeOf<std::uint8_t> = Dtype::kUInt8;
template <>
inline constexpr Dtype kDtypeOf<std::int8_t> = Dtype::kInt8;
template <>
inline constexpr Dtype kDtypeOf<std::int16_t> = Dtype::kInt16;
template <>
inline constexpr Dtype kDtypeOf<std::int32_t> = Dtype::kInt32;
template <>
inline constexpr Dtype kDtypeOf<std::int64_t> = Dtype::kInt64;
template <>
inline constexpr Dtype kDtypeOf<float> = Dtype::kFloat32;
template <>
inline constexpr Dtype kDtypeOf<double> = Dtype::kFloat64;

}  // namespace qkv

#endif  // QKV_DTYPE_H_
