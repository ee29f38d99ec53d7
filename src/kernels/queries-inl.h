#if defined(QKV_SRC_KERNELS_QUERIES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_QUERIES_INL_H_
#undef QKV_SRC_KERNELS_QUERIES_INL_H_
#else
#define QKV_SRC_KERNELS_QUERIES_INL_H_
#endif

#include <bit>

#include "kernels/element.h"
#include "kernels/magnitude-inl.h"
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

/// Fills the block's queries and their magnitudes.
inline void scale_queries(RowBlock& block) {
  const ForwardProblem& problem = block.problem;
  for (std::int64_t r = 0; r < block.num_rows; ++r) {
    const Row& row = block.rows[r];
    float* query = block.queries + r * problem.head_dim;
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
