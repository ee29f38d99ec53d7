#if defined(QKV_SRC_KERNELS_VALUE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_VALUE_ROWS_INL_H_
#undef QKV_SRC_KERNELS_VALUE_ROWS_INL_H_
#else
#define QKV_SRC_KERNELS_VALUE_ROWS_INL_H_
#endif

#include <cstdint>

#include "kernels/row_block.h"
#include "kernels/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

/// Where a block keeps column `place` of a row: of key base + row, or of the row-th pair of keys.
HWY_INLINE float* value_at(const RowBlock& block, std::int64_t row, std::int64_t place) {
  return block.values + (place / kPanel * kKeyBlock + row) * kPanel + place % kPanel;
}

/// Rows of V of some keys that lie in consecutive rows.
template <class T>
struct ValueRows {
  const T* first;
  std::int64_t stride;
  const float* scales;  ///< of whole numbers
  std::int64_t scale_stride;

  const T* at(std::int64_t index) const { return first + index * stride; }
  float scale(std::int64_t index) const { return kHasScale<T> ? scales[index * scale_stride] : 1.0f; }
  ValueRows from(std::int64_t index) const {
    return {at(index), stride, kHasScale<T> ? scales + index * scale_stride : nullptr, scale_stride};
  }
};

template <class T>
HWY_INLINE ValueRows<T> value_rows(const RowBlock& block, const KeyPlace& place) {
  const ForwardProblem& problem = block.problem;
  const std::int64_t kv_head = block.head.kv_head;
  const float* scales = kHasScale<T> ? problem.v_scales.at<float>(place.entry, kv_head, place.row) : nullptr;
  return {problem.v.at<T>(place.entry, kv_head, place.row), problem.v.row, scales, problem.v_scales.row};
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
