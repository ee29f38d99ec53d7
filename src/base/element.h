#ifndef QKV_SRC_BASE_ELEMENT_H_
#define QKV_SRC_BASE_ELEMENT_H_

#include <cstdint>

#include "qkv/half.h"

namespace qkv {

/// Calls visit(T()) with the storage type that a dtype of real numbers names.
template <class Visit>
decltype(auto) visit_real(Dtype dtype, const Visit& visit) {
  switch (dtype) {
    case Dtype::kFloat64:
      return visit(double());
    case Dtype::kFloat16:
      return visit(Float16());
    case Dtype::kBFloat16:
      return visit(BFloat16());
    default:
      return visit(float());
  }
}

/// The element at an address as a number: exact.
inline double number_at(const void* address, Dtype dtype) noexcept {
  return visit_real(dtype, [&]<class T>(T) { return static_cast<double>(*static_cast<const T*>(address)); });
}

/// Rounds a number once, to what is stored.
inline void put_number(double value, void* address, Dtype dtype) noexcept {
  visit_real(dtype, [&]<class T>(T) { *static_cast<T*>(address) = static_cast<T>(value); });
}

/// Elements that lie `stride` apart as consecutive numbers.
inline void read_numbers(const void* address, Dtype dtype, std::int64_t stride, std::int64_t count, double* to) {
  const auto read = [&]<class T>(T) {
    const T* from = static_cast<const T*>(address);
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<double>(from[i * stride]);
  };
  // Whole numbers are kept by caches alone, beside their scale.
  if (dtype == Dtype::kInt8) return read(std::int8_t());
  visit_real(dtype, read);
}

/// Of lse, weights, logits and statistics beside a q of this dtype.
constexpr Dtype stats_dtype(Dtype q) noexcept { return q == Dtype::kFloat64 ? Dtype::kFloat64 : Dtype::kFloat32; }

}  // namespace qkv

#endif  // QKV_SRC_BASE_ELEMENT_H_
