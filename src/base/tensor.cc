#include "qkv/tensor.h"

#include <cstring>

#include "base/aligned.h"
#include "base/checked.h"
#include "base/raise.h"
#include "base/shape.h"

namespace qkv {
namespace {

/// Number of elements of a shape; an extent of 0 makes it 0 however large the others are.
std::int64_t product(const Extents& shape) {
  if (has_no_elements(shape)) return 0;
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    const auto next = checked_mul(count, extent);
    if (!next) raise<ShapeError>("shape {} has more elements than 63 bits can count", shape);
    count = *next;
  }
  return count;
}

void check_shape(const Extents& shape) {
  for (const std::int64_t extent : shape) {
    if (extent < 0) raise<ShapeError>("shape {} has a negative extent", shape);
  }
}

void check_axis(int axis, const Extents& shape) {
  if (axis < 0 || axis >= shape.size()) raise<ShapeError>("axis {} does not exist in shape {}", axis, shape);
}

}  // namespace

Extents::Extents(std::initializer_list<std::int64_t> values)
    : Extents(std::span<const std::int64_t>(values.begin(), values.size())) {}

Extents::Extents(std::span<const std::int64_t> values) {
  if (values.size() > static_cast<std::size_t>(kMaxRank)) {
    raise<ShapeError>("a view has at most {} axes, got {}", kMaxRank, values.size());
  }
  std::copy(values.begin(), values.end(), values_.begin());
  size_ = static_cast<int>(values.size());
}

std::string to_string(const Extents& extents) {
  std::string text = "[";
  for (int axis = 0; axis < extents.size(); ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(extents[axis]);
  }
  return text + "]";
}

Extents dense_strides(const Extents& shape) {
  check_shape(shape);
  Extents strides = shape;
  // Without an element there is no address to compute, and the partial products might not fit.
  const bool empty = product(shape) == 0;
  std::int64_t stride = empty ? 0 : 1;
  for (int axis = shape.size() - 1; axis >= 0; --axis) {
    strides[axis] = stride;
    if (!empty) stride *= shape[axis];
  }
  return strides;
}

ConstTensorView::ConstTensorView(const void* data, Dtype dtype, const Extents& shape, const Extents& strides)
    : data_(data), dtype_(dtype), shape_(shape), strides_(strides) {
  if (shape.size() != strides.size()) {
    raise<ShapeError>("shape {} has {} axes, but strides {} have {}", shape, shape.size(), strides, strides.size());
  }
  check_shape(shape);
}

std::int64_t ConstTensorView::num_elements() const { return product(shape_); }

ConstTensorView ConstTensorView::permute(const Extents& order) const {
  std::array<bool, kMaxRank> taken = {};
  bool valid = order.size() == rank();
  for (int i = 0; valid && i < rank(); ++i) {
    valid = order[i] >= 0 && order[i] < rank() && !taken[static_cast<std::size_t>(order[i])];
    if (valid) taken[static_cast<std::size_t>(order[i])] = true;
  }
  if (!valid) raise<ShapeError>("permute: expected an order of the {} axes of {}, got {}", rank(), shape_, order);
  ConstTensorView result = *this;
  for (int i = 0; i < rank(); ++i) {
    result.shape_[i] = shape_[static_cast<int>(order[i])];
    result.strides_[i] = strides_[static_cast<int>(order[i])];
  }
  return result;
}

ConstTensorView ConstTensorView::slice(int axis, std::int64_t begin, std::int64_t end) const {
  check_axis(axis, shape_);
  if (begin < 0 || begin > end || end > shape_[axis]) {
    raise<ShapeError>("slice: [{}, {}) is not within axis {} of {}", begin, end, axis, shape_);
  }
  ConstTensorView result = *this;
  result.shape_[axis] = end - begin;
  // An empty result has no address: its pointer stays inside of the memory.
  if (data_ != nullptr && result.num_elements() != 0) {
    const auto elements = checked_mul(begin, strides_[axis]);
    const auto bytes = elements ? checked_mul(*elements, static_cast<std::int64_t>(size_of(dtype_))) : std::nullopt;
    if (!bytes) raise<ShapeError>("slice: stride {} times {} does not fit 63 bits", strides_[axis], begin);
    result.data_ = static_cast<const char*>(data_) + *bytes;
  }
  return result;
}

ConstTensorView ConstTensorView::broadcast_to(const Extents& shape) const {
  check_shape(shape);
  const int added = shape.size() - rank();
  bool valid = added >= 0;
  Extents strides = shape;
  for (int i = 0; valid && i < shape.size(); ++i) {
    const std::int64_t extent = i < added ? 1 : shape_[i - added];
    valid = extent == 1 || extent == shape[i];
    strides[i] = extent == 1 ? 0 : strides_[i - added];
  }
  if (!valid) raise<ShapeError>("{} does not broadcast to {}", shape_, shape);
  return {data_, dtype_, shape, strides};
}

TensorView TensorView::permute(const Extents& order) const { return {data_, view_.permute(order)}; }

TensorView TensorView::slice(int axis, std::int64_t begin, std::int64_t end) const {
  const ConstTensorView part = view_.slice(axis, begin, end);
  return {const_cast<void*>(part.data()), part};
}

void Tensor::Free::operator()(void* memory) const noexcept { AlignedFree{}(memory); }

Tensor::Tensor(const Extents& shape, Dtype dtype) {
  check_shape(shape);
  const auto bytes = checked_mul(product(shape), static_cast<std::int64_t>(size_of(dtype)));
  if (!bytes) raise<ShapeError>("a tensor {} of {} has more bytes than 63 bits can count", shape, dtype);
  const auto size = static_cast<std::size_t>(*bytes);
  memory_.reset(allocate_aligned(size).release());
  std::memset(memory_.get(), 0, size);
  view_ = TensorView(memory_.get(), dtype, shape, dense_strides(shape));
}

Tensor Tensor::clone() const {
  if (!memory_) return {};
  Tensor copy(shape(), dtype());
  std::memcpy(copy.memory_.get(), memory_.get(), static_cast<std::size_t>(num_elements()) * size_of(dtype()));
  return copy;
}

}  // namespace qkv
