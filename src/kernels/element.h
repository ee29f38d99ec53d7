#ifndef QKV_SRC_KERNELS_ELEMENT_H_
#define QKV_SRC_KERNELS_ELEMENT_H_

#include <cstdint>

#include "qkv/half.h"

namespace qkv::kernels {

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

/// The same for what the f32 kernels take.
template <class Visit>
[[gnu::always_inline]] inline decltype(auto) visit_storage(Dtype dtype, const Visit& visit) {
  if (dtype == Dtype::kFloat32) [[likely]]
    return visit(float());
  if (dtype == Dtype::kFloat16) return visit(Float16());
  return visit(BFloat16());
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
  visit_real(dtype, [&]<class T>(T) {
    const T* from = static_cast<const T*>(address);
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<double>(from[i * stride]);
  });
}

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_ELEMENT_H_
