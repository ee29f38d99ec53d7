#include "kernels/packed_head.h"

#include <new>

#include "base/aligned.h"
#include "base/checked.h"
#include "kernels/key_order.h"
#include "kernels/tile_shape.h"

namespace qkv::kernels {

void PackedHeadBuffer::reserve(std::optional<std::int64_t> floats, std::int64_t more) {
  // Strides of 0 make views of any extent: a size that does not fit is memory that nobody has.
  if (floats) floats = checked_add(*floats, more);
  const std::optional<std::int64_t> bytes = floats ? checked_mul(*floats, sizeof(float)) : std::nullopt;
  if (!bytes) throw std::bad_alloc();
  if (static_cast<std::size_t>(*floats) <= capacity_) return;
  memory_.reset();
  capacity_ = 0;
  memory_ = allocate_aligned(static_cast<std::size_t>(*bytes));
  capacity_ = static_cast<std::size_t>(*floats);
}

PackedHead PackedHeadBuffer::layout(const ForwardProblem& problem, std::int64_t batch, std::int64_t kv_head,
                                    KeyRange range, std::int64_t lanes) {
  PackedHead head;
  range.begin = align_down(range.begin, kWordKeys);
  head.range = range;
  const std::int64_t padded_keys = align_up(range.end - range.begin, kWordKeys);
  const std::int64_t words = padded_keys / kWordKeys;
  // A vector load of V needs its columns side by side and at least one whole vector of them.
  const bool copies_values = problem.value_dim > 0 && (problem.v.col != 1 || problem.value_dim < lanes);
  const std::int64_t value_columns = copies_values ? align_up(problem.value_dim, lanes) : 0;
  const std::int64_t magnitudes = align_up(words, kMostLanes);
  reserve(checked_mul(padded_keys, problem.head_dim + value_columns), 2 * magnitudes);
  head.keys = reinterpret_cast<float*>(memory_.get());
  float* next = head.keys + padded_keys * problem.head_dim;
  if (copies_values) {
    head.value_copy = next;
    head.values = next;
    head.first_value = range.begin;
    head.value_stride = head.value_columns = value_columns;
    next += padded_keys * value_columns;
  } else {
    head.values = problem.v.at<float>(batch, kv_head);
    head.value_stride = problem.v.row;
    head.value_columns = problem.value_dim;
  }
  head.key_magnitude = reinterpret_cast<std::uint32_t*>(next);
  head.value_magnitude = head.key_magnitude + magnitudes;
  return head;
}

}  // namespace qkv::kernels
