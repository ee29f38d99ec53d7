#ifndef QKV_SRC_KERNELS_ELEMENT_H_
#define QKV_SRC_KERNELS_ELEMENT_H_

#include <cstdint>

#include "qkv/half.h"

namespace qkv::kernels {

/// Calls visit(T()) with the storage type of q, out or bias beside arithmetic in f32.
template <class Visit>
[[gnu::always_inline]] inline decltype(auto) visit_storage(Dtype dtype, const Visit& visit) {
  if (dtype == Dtype::kFloat32) [[likely]]
    return visit(float());
  if (dtype == Dtype::kFloat16) return visit(Float16());
  return visit(BFloat16());
}

/// The same of k and v, which a cache may keep as whole numbers with a scale a key.
template <class Visit>
[[gnu::always_inline]] inline decltype(auto) visit_kept(Dtype dtype, const Visit& visit) {
  if (dtype == Dtype::kInt8) return visit(std::int8_t());
  return visit_storage(dtype, visit);
}

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_ELEMENT_H_
