#ifndef QKV_TESTS_SUPPORT_ELEMENTS_H_
#define QKV_TESTS_SUPPORT_ELEMENTS_H_

#include <cstdint>
#include <initializer_list>
#include <stdexcept>

#include "qkv/half.h"
#include "qkv/tensor.h"

namespace qkv::support {

/// Calls visit(index) for every index of a shape, the last axis fastest; once, with no axes, for rank 0.
template <class Visit>
void for_each_index(const Extents& shape, Visit visit) {
  for (const std::int64_t extent : shape) {
    if (extent == 0) return;
  }
  Extents index = shape;
  for (int axis = 0; axis < shape.size(); ++axis) index[axis] = 0;
  for (;;) {
    visit(static_cast<const Extents&>(index));
    int axis = shape.size() - 1;
    for (; axis >= 0; --axis) {
      if (++index[axis] < shape[axis]) break;
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

/// In elements.
inline std::int64_t offset_of(const ConstTensorView& view, const Extents& index) {
  std::int64_t offset = 0;
  for (int axis = 0; axis < view.rank(); ++axis) offset += index[axis] * view.stride(axis);
  return offset;
}

inline double read(const ConstTensorView& view, const Extents& index) {
  const std::int64_t at = offset_of(view, index);
  switch (view.dtype()) {
    case Dtype::kFloat32:
      return static_cast<double>(view.as<float>()[at]);
    case Dtype::kFloat64:
      return view.as<double>()[at];
    case Dtype::kFloat16:
      return static_cast<double>(view.as<Float16>()[at]);
    case Dtype::kBFloat16:
      return static_cast<double>(view.as<BFloat16>()[at]);
    case Dtype::kInt64:
      return static_cast<double>(view.as<std::int64_t>()[at]);
    case Dtype::kInt32:
      return view.as<std::int32_t>()[at];
    case Dtype::kInt8:
      return view.as<std::int8_t>()[at];
    case Dtype::kBool:
      return view.as<bool>()[at] ? 1 : 0;
    default:
      throw std::logic_error("support::read: a dtype that no test uses");
  }
}

inline void write(const TensorView& view, const Extents& index, double value) {
  const std::int64_t at = offset_of(view, index);
  switch (view.dtype()) {
    case Dtype::kFloat32:
      view.as<float>()[at] = static_cast<float>(value);
      return;
    case Dtype::kFloat64:
      view.as<double>()[at] = value;
      return;
    case Dtype::kFloat16:
      view.as<Float16>()[at] = Float16(value);
      return;
    case Dtype::kBFloat16:
      view.as<BFloat16>()[at] = BFloat16(value);
      return;
    case Dtype::kInt64:
      view.as<std::int64_t>()[at] = static_cast<std::int64_t>(value);
      return;
    case Dtype::kInt32:
      view.as<std::int32_t>()[at] = static_cast<std::int32_t>(value);
      return;
    case Dtype::kInt8:
      view.as<std::int8_t>()[at] = static_cast<std::int8_t>(value);
      return;
    case Dtype::kBool:
      view.as<bool>()[at] = value != 0;
      return;
    default:
      throw std::logic_error("support::write: a dtype that no test uses");
  }
}

/// A tensor of these numbers, in row-major order; a single number fills it.
inline Tensor tensor_of(const Extents& shape, Dtype dtype, std::initializer_list<double> values) {
  Tensor tensor(shape, dtype);
  if (values.size() != 1 && static_cast<std::int64_t>(values.size()) != tensor.num_elements()) {
    throw std::logic_error("support::tensor_of: the number of values is not that of the shape");
  }
  const double* next = values.begin();
  for_each_index(shape, [&](const Extents& index) { write(tensor, index, values.size() == 1 ? *next : *next++); });
  return tensor;
}

/// The same numbers in other memory, with the strides of the target.
inline void copy(const ConstTensorView& from, const TensorView& to) {
  if (!(from.shape() == to.shape())) throw std::logic_error("support::copy: shapes differ");
  for_each_index(from.shape(), [&](const Extents& index) { write(to, index, read(from, index)); });
}

}  // namespace qkv::support

#endif  // QKV_TESTS_SUPPORT_ELEMENTS_H_
