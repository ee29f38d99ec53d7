#ifndef QKV_SRC_BASE_CHECKED_H_
#define QKV_SRC_BASE_CHECKED_H_

#include <cstdint>
#include <optional>

namespace qkv {

/// a * b; empty where it does not fit 64 bits.
inline std::optional<std::int64_t> checked_mul(std::int64_t a, std::int64_t b) noexcept {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// a + b; empty where it does not fit 64 bits.
inline std::optional<std::int64_t> checked_add(std::int64_t a, std::int64_t b) noexcept {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

/// a - b; empty where it does not fit 64 bits.
inline std::optional<std::int64_t> checked_sub(std::int64_t a, std::int64_t b) noexcept {
  std::int64_t difference = 0;
  if (__builtin_sub_overflow(a, b, &difference)) return std::nullopt;
  return difference;
}

}  // namespace qkv

#endif  // QKV_SRC_BASE_CHECKED_H_
