#if defined(QKV_SRC_KERNELS_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_TILE_INL_H_
#undef QKV_SRC_KERNELS_TILE_INL_H_
#else
#define QKV_SRC_KERNELS_TILE_INL_H_
#endif

#include <cstdint>

#include "kernels/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

// The register tile: kR rows times kW vectors of accumulators that stay in registers while one operand is broadcast
// element by element and the other is loaded vector by vector. Q K^T and P V are the same loop. Each accumulator lane
// is one chain of fused multiply-adds in ascending order, whatever kR and kW are: the tile's shape changes no bit.

template <int kR, int kW>
struct Accumulators {
  VF v[kR][kW];
};

/// acc + a b, one step of a chain.
struct MultiplyAdd {
  HWY_INLINE VF operator()(VF a, VF b, VF acc) const { return hn::MulAdd(a, b, acc); }
};

/// What a tile multiplies: rows of numbers that are broadcast one by one, and for each of `count` such numbers a row of
/// vectors.
template <class T>
struct Factors {
  const float* left;
  std::int64_t left_stride;
  const T* right;
  std::int64_t right_stride;
  std::int64_t count;
  std::int64_t left_step = 1;  ///< between the numbers of a row
};
template <class T>
Factors(const float*, std::int64_t, const T*, std::int64_t, std::int64_t) -> Factors<T>;
template <class T>
Factors(const float*, std::int64_t, const T*, std::int64_t, std::int64_t, std::int64_t) -> Factors<T>;

/// acc[r][w] += sum over i of left[r * left_stride + i * left_step] * right[i * right_stride + w * kLanes ..]
template <int kR, int kW, class T, class Product = MultiplyAdd>
HWY_INLINE void multiply_add(const Factors<T>& factors, Accumulators<kR, kW>& acc, const Product& product = {}) {
  const float* HWY_RESTRICT left = factors.left;
  const T* HWY_RESTRICT right = factors.right;
  HWY_UNROLL(2)
  for (std::int64_t i = 0; i < factors.count; ++i) {
    VF b[kW];
    HWY_UNROLL(8)
    for (int w = 0; w < kW; ++w) b[w] = load(right + i * factors.right_stride + w * kLanes);
    HWY_UNROLL(8)
    for (int r = 0; r < kR; ++r) {
      const VF a = hn::Set(kF32, left[r * factors.left_stride + i * factors.left_step]);
      HWY_UNROLL(8)
      for (int w = 0; w < kW; ++w) acc.v[r][w] = product(a, b[w], acc.v[r][w]);
    }
  }
}

template <int kR, int kW>
HWY_INLINE void clear(Accumulators<kR, kW>& acc) {
  HWY_UNROLL(8)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(8)
    for (int w = 0; w < kW; ++w) acc.v[r][w] = hn::Zero(kF32);
  }
}

/// acc[r] += from[r] * factors[r]
template <int kR, int kW>
HWY_INLINE void add_scaled(const float* from, std::int64_t stride, const float* factors, Accumulators<kR, kW>& acc) {
  HWY_UNROLL(8)
  for (int r = 0; r < kR; ++r) {
    const VF factor = hn::Set(kF32, factors[r]);
    HWY_UNROLL(8)
    for (int w = 0; w < kW; ++w) {
      acc.v[r][w] = hn::MulAdd(hn::LoadU(kF32, from + r * stride + w * kLanes), factor, acc.v[r][w]);
    }
  }
}

/// to[r] += acc[r]
template <int kR, int kW>
HWY_INLINE void add_to(const Accumulators<kR, kW>& acc, float* to, std::int64_t stride) {
  HWY_UNROLL(8)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(8)
    for (int w = 0; w < kW; ++w) {
      float* place = to + r * stride + w * kLanes;
      hn::StoreU(hn::Add(hn::LoadU(kF32, place), acc.v[r][w]), kF32, place);
    }
  }
}

template <int kR, int kW>
HWY_INLINE void fetch(const float* from, std::int64_t stride, Accumulators<kR, kW>& acc) {
  HWY_UNROLL(8)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(8)
    for (int w = 0; w < kW; ++w) acc.v[r][w] = hn::LoadU(kF32, from + r * stride + w * kLanes);
  }
}

/// bounds[r] = the larger of bounds[r] and acc[r], lane by lane
template <int kR, int kW>
HWY_INLINE void raise(const Accumulators<kR, kW>& acc, VF* bounds) {
  HWY_UNROLL(8)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(8)
    for (int w = 0; w < kW; ++w) bounds[r] = hn::Max(bounds[r], acc.v[r][w]);
  }
}

/// bounds[r] = the smaller of bounds[r] and acc[r], lane by lane, NaN left out: x86 takes the second operand then.
template <int kR, int kW>
HWY_INLINE void lower(const Accumulators<kR, kW>& acc, VF* bounds) {
  HWY_UNROLL(8)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(8)
    for (int w = 0; w < kW; ++w) bounds[r] = hn::Min(acc.v[r][w], bounds[r]);
  }
}

template <int kR, int kW>
HWY_INLINE void store(const Accumulators<kR, kW>& acc, float* to, std::int64_t stride) {
  HWY_UNROLL(8)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(8)
    for (int w = 0; w < kW; ++w) hn::StoreU(acc.v[r][w], kF32, to + r * stride + w * kLanes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
