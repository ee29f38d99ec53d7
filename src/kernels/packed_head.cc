#include "kernels/packed_head.h"

#include <new>

#include "base/aligned.h"
#include "base/checked.h"
#include "kernels/key_order.h"
#include "kernels/tile_shape.h"

namespace qkv::kernels {

float* PackedHeadBuffer::reserve(std::optional<std::int64_t> floats, std::int64_t more) {
  // Strides of 0 make views of any extent: a size that does not fit is memory that nobody has.
  if (floats) floats = checked_add(*floats, more);
  const std::optional<std::int64_t> bytes = floats ? checked_mul(*floats, sizeof(float)) : std::nullopt;
  if (!bytes) throw std::bad_alloc();
  const auto count = static_cast<std::size_t>(*floats);
  if (count <= kSmall) return small_;
  if (count > capacity_) {
    memory_.reset();
    capacity_ = 0;
    memory_ = allocate_aligned(static_cast<std::size_t>(*bytes));
    capacity_ = count;
  }
  return reinterpret_cast<float*>(memory_.get());
}

PackedHead PackedHeadBuffer::layout(const ForwardProblem& problem, std::int64_t batch, std::int64_t kv_head,
                                    KeySpan span) {
  PackedHead head;
  head.batch = batch;
  head.kv_head = kv_head;
  span.range.begin = align_down(span.range.begin, kWordKeys);
  head.span = span;
  const std::int64_t padded_keys = align_up(span.size(), kWordKeys);
  head.keys = reserve(checked_mul(padded_keys, problem.head_dim), align_up(padded_keys / kWordKeys, kMostLanes));
  head.key_magnitude = reinterpret_cast<std::uint32_t*>(head.keys + padded_keys * problem.head_dim);
  return head;
}

}  // namespace qkv::kernels
