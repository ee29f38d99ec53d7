#if defined(QKV_SRC_KERNELS_QUERIES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_QUERIES_INL_H_
#undef QKV_SRC_KERNELS_QUERIES_INL_H_
#else
#define QKV_SRC_KERNELS_QUERIES_INL_H_
#endif

#include <algorithm>
#include <bit>

#include "kernels/element.h"
#include "kernels/magnitude-inl.h"
#include "kernels/pairs-inl.h"
#include "kernels/row_block.h"
#include "kernels/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

/// One row of q times a power of two. @return bits of the largest |q'|
template <class T>
HWY_INLINE std::uint32_t scale_query(const T* HWY_RESTRICT source, std::int64_t stride, float scale, std::int64_t dims,
                                     float* HWY_RESTRICT query) {
  std::uint32_t largest = 0;
  std::int64_t d = 0;
  if (stride == 1) {
    VI max_bits = hn::Zero(kI32);
    const VF factor = hn::Set(kF32, scale);
    for (; d + kLanes <= dims; d += kLanes) {
      const VF x = hn::Mul(load(source + d), factor);
      max_bits = raise_magnitude(x, max_bits);
      hn::StoreU(x, kF32, query + d);
    }
    largest = largest_of(max_bits);
  }
  for (; d < dims; ++d) {
    query[d] = static_cast<float>(source[d * stride]) * scale;
    largest = std::max(largest, magnitude_bits(query[d]));
  }
  return largest;
}

/// Pairs times a power of two, which is exact. Raises `largest`, magnitudes of floats.
HWY_INLINE VF scale_pairs(VF pairs, VF factor, VI& largest) {
  const auto bits = hn::BitCast(kI32, pairs);
  const auto scaled = [&](VI number) HWY_ATTR {
    const VF x = scaled_or_nan(hn::BitCast(kF32, number), factor);
    largest = raise_magnitude(x, largest);
    return x;
  };
  const auto lower = hn::ShiftRight<16>(hn::BitCast(kU32, scaled(hn::ShiftLeft<16>(bits))));
  const VF upper = scaled(hn::And(bits, upper_half()));
  return hn::Or(hn::BitCast(kF32, lower), hn::And(upper, hn::BitCast(kF32, upper_half())));
}

/// scale_query in pairs, an odd last number beside 0.
inline std::uint32_t scale_query_pairs(const BFloat16* HWY_RESTRICT source, std::int64_t stride, float scale,
                                       std::int64_t dims, float* HWY_RESTRICT query) {
  constexpr std::int64_t kNumbers = 2 * kLanes;
  const VF factor = hn::Set(kF32, scale);
  VI largest = hn::Zero(kI32);
  std::int64_t d = 0;
  if (stride == 1) {
    for (; d + kNumbers <= dims; d += kNumbers) {
      store(scale_pairs(load_pairs(source + d), factor, largest), query + d / 2);
    }
  }
  for (; d < dims; d += kNumbers) {
    BFloat16 staged[kNumbers] = {};
    float scaled[kLanes];
    const std::int64_t count = std::min(kNumbers, dims - d);
    for (std::int64_t i = 0; i < count; ++i) staged[i] = source[(d + i) * stride];
    store(scale_pairs(load_pairs(staged), factor, largest), scaled);
    std::copy_n(scaled, (count + 1) / 2, query + d / 2);
  }
  return largest_of(largest);
}

/// Fills the block's queries and their magnitudes.
inline void scale_queries(RowBlock& block) {
  const ForwardProblem& problem = block.problem;
  for (std::int64_t r = 0; r < block.num_rows; ++r) {
    const Row& row = block.rows[r];
    float* query = block.queries + r * block.depth;
    if (block.pairs) {
      const auto* source = problem.q.at<BFloat16>(block.head.batch, row.head, row.index);
      block.query_magnitude[r] = std::bit_cast<float>(
          scale_query_pairs(source, problem.q.col, block.formula.query_scale, problem.head_dim, query));
      continue;
    }
    const std::uint32_t largest = visit_storage(problem.q.dtype, [&]<class T>(T) HWY_ATTR {
      const T* source = problem.q.at<T>(block.head.batch, row.head, row.index);
      return scale_query(source, problem.q.col, block.formula.query_scale, problem.head_dim, query);
    });
    block.query_magnitude[r] = std::bit_cast<float>(largest);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
