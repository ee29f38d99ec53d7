#if defined(QKV_SRC_KERNELS_BACKWARD_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_BACKWARD_ROWS_INL_H_
#undef QKV_SRC_KERNELS_BACKWARD_ROWS_INL_H_
#else
#define QKV_SRC_KERNELS_BACKWARD_ROWS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/scratch.h"
#include "kernels/backward_block.h"
#include "kernels/element.h"
#include "kernels/magnitude-inl.h"
#include "kernels/pack-inl.h"
#include "kernels/row_terms.h"
#include "kernels/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

/// Where the numbers of a row go: in one piece, or in panels of kPanel columns that lie `step` apart.
struct RowPlace {
  float* to;
  std::int64_t step;

  HWY_INLINE float* at(std::int64_t column) const { return to + column / kPanel * step + column % kPanel; }
};

/// One row as f32, 0 from `count` up to whole vectors. @return bits of the largest magnitude
template <class T>
std::uint32_t stage_row(const T* HWY_RESTRICT from, std::int64_t stride, std::int64_t count, const RowPlace& place) {
  VI largest = hn::Zero(kI32);
  std::int64_t c = 0;
  if (stride == 1) {
    for (; c + kLanes <= count; c += kLanes) {
      const VF x = load(from + c);
      largest = raise_magnitude(x, largest);
      hn::StoreU(x, kF32, place.at(c));
    }
  }
  for (; c < count; c += kLanes) {
    float lanes[kLanes] = {};
    for (std::int64_t i = 0; i < kLanes && c + i < count; ++i) lanes[i] = static_cast<float>(from[(c + i) * stride]);
    const VF x = hn::LoadU(kF32, lanes);
    largest = raise_magnitude(x, largest);
    hn::StoreU(x, kF32, place.at(c));
  }
  return largest_of(largest);
}

inline std::uint32_t stage_row(const Operand& operand, const void* from, std::int64_t count, const RowPlace& place) {
  return visit_storage(operand.dtype, [&]<class T>(T) HWY_ATTR {
    return stage_row(static_cast<const T*>(from), operand.col, count, place);
  });
}

/// Columns of a row that is read in whole vectors.
inline std::int64_t padded(std::int64_t columns) { return align_up(columns, kLanes); }

/// From rows in one piece to panels of columns.
inline void copy_to_panels(const float* HWY_RESTRICT from, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                           std::int64_t panel_rows, float* HWY_RESTRICT panels) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const RowPlace place{panels + r * kPanel, panel_rows * kPanel};
    std::int64_t c = 0;
    for (; c + kLanes <= columns; c += kLanes) hn::StoreU(hn::LoadU(kF32, from + r * stride + c), kF32, place.at(c));
    if (c == columns) continue;
    float lanes[kLanes] = {};
    std::copy_n(from + r * stride + c, columns - c, lanes);
    hn::StoreU(hn::LoadU(kF32, lanes), kF32, place.at(c));
  }
}

/// sum of grad_out * out for a vector of rows, each one chain over the columns as that of grad_out and a value: where out
/// is the value, their difference is exactly 0.
inline VF products_of_rows(const float* grads, const float* outs, std::int64_t stride, std::int64_t columns,
                           float* panels) {
  float* grad_panel = panels;
  float* out_panel = panels + columns * kPanel;
  pack_vector_of_keys<Readers::kFew>(KeyRows<float>{grads, stride, hn::Zero(kF32)}, columns, grad_panel);
  pack_vector_of_keys<Readers::kFew>(KeyRows<float>{outs, stride, hn::Zero(kF32)}, columns, out_panel);
  VF sum = hn::Zero(kF32);
  for (std::int64_t c = 0; c < columns; ++c) {
    sum = hn::MulAdd(hn::LoadU(kF32, grad_panel + c * kPanel), hn::LoadU(kF32, out_panel + c * kPanel), sum);
  }
  return sum;
}

inline bool is_finite_row(const Operand& operand, const void* from, std::int64_t count) {
  bool finite = true;
  visit_storage(operand.dtype, [&]<class T>(T) HWY_ATTR {
    const T* numbers = static_cast<const T*>(from);
    std::int64_t c = 0;
    if (operand.col == 1) {
      VI largest = hn::Zero(kI32);
      for (; c + kLanes <= count; c += kLanes) largest = raise_magnitude(load(numbers + c), largest);
      finite = largest_of(largest) < kInfinityBits;
    }
    for (; c < count; ++c) finite &= magnitude_bits(static_cast<float>(numbers[c * operand.col])) < kInfinityBits;
  });
  return finite;
}

inline void begin_backward(BackwardHead& head) {
  const BackwardProblem& problem = head.call.problem;
  const ForwardProblem& forward = problem.forward;
  const std::int64_t columns = forward.value_dim;
  const std::int64_t stride = padded(columns);
  ScratchArena arena;
  auto* grads = arena.take<float>(kLanes * stride);
  auto* outs = arena.take<float>(kLanes * stride);
  auto* panels = arena.take<float>(2 * std::max<std::int64_t>(columns, 1) * kPanel);
  for (std::int64_t first = 0; first < head.num_rows(); first += kLanes) {
    const std::int64_t count = std::min<std::int64_t>(kLanes, head.num_rows() - first);
    if (count < kLanes) {
      std::fill_n(grads, kLanes * stride, 0.0f);
      std::fill_n(outs, kLanes * stride, 0.0f);
    }
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t row = first + r;
      const std::int64_t index = row % forward.q_len;
      const std::int64_t q_head = forward.query_head(head.kv_head, row);
      const RowTerms terms(problem, head.batch, q_head, index);
      head.lse[row] = static_cast<float>(terms.lse);
      if (head.lse_rest != nullptr) head.lse_rest[row] = static_cast<float>(terms.lse_rest);
      if (head.add != nullptr) {
        head.add[row] = static_cast<float>(terms.add);
        head.entropy[row] = static_cast<float>(terms.entropy);
      }
      const std::uint32_t largest = std::max(
          stage_row(problem.grad_out, problem.grad_out.address(head.batch, q_head, index), columns,
                    {grads + r * stride, kPanel}),
          stage_row(problem.out, problem.out.address(head.batch, q_head, index), columns, {outs + r * stride, kPanel}));
      if (largest >= kInfinityBits || !std::isfinite(head.lse[row]) ||
          !is_finite_row(forward.q, forward.q.address(head.batch, q_head, index), forward.head_dim)) {
        head.poisoned.push_back(row);
      }
    }
    float sums[kLanes];
    hn::StoreU(products_of_rows(grads, outs, stride, columns, panels), kF32, sums);
    std::copy_n(sums, count, head.delta + first);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
