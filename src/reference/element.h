#ifndef QKV_SRC_REFERENCE_ELEMENT_H_
#define QKV_SRC_REFERENCE_ELEMENT_H_

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "qkv/half.h"
#include "qkv/tensor.h"

namespace qkv::reference {

/// Where a full index lies in a view, in elements. The view may have fewer axes than the index (its leading ones are
/// missing) and axes of extent 1, which repeat: NumPy's broadcasting.
inline std::int64_t offset_of(const ConstTensorView& view, std::initializer_list<std::int64_t> index) {
  std::int64_t offset = 0;
  int axis = view.rank() - static_cast<int>(index.size());
  for (const std::int64_t i : index) {
    if (axis >= 0 && view.extent(axis) != 1) offset += i * view.stride(axis);
    ++axis;
  }
  return offset;
}

inline double number_at(const ConstTensorView& view, std::int64_t offset) {
  switch (view.dtype()) {
    case Dtype::kFloat64:
      return view.as<double>()[offset];
    case Dtype::kFloat16:
      return static_cast<double>(view.as<Float16>()[offset]);
    case Dtype::kBFloat16:
      return static_cast<double>(view.as<BFloat16>()[offset]);
    case Dtype::kInt8:
      return view.as<std::int8_t>()[offset];
    default:
      return static_cast<double>(view.as<float>()[offset]);
  }
}
inline double number(const ConstTensorView& view, std::initializer_list<std::int64_t> index) {
  return number_at(view, offset_of(view, index));
}

inline std::int64_t integer(const ConstTensorView& view, std::initializer_list<std::int64_t> index) {
  const std::int64_t offset = offset_of(view, index);
  return view.dtype() == Dtype::kInt64 ? view.as<std::int64_t>()[offset] : view.as<std::int32_t>()[offset];
}

inline bool truth(const ConstTensorView& view, std::initializer_list<std::int64_t> index) {
  return view.as<unsigned char>()[offset_of(view, index)] != 0;
}

/// The numbers along the last axis.
inline std::vector<double> vector_at(const ConstTensorView& view, std::int64_t b, std::int64_t h, std::int64_t i) {
  const int last = view.rank() - 1;
  std::vector<double> values(static_cast<std::size_t>(view.extent(last)));
  std::int64_t offset = offset_of(view, {b, h, i, 0});
  for (double& value : values) {
    value = number_at(view, offset);
    offset += view.stride(last);
  }
  return values;
}

/// One rounding, to the type of the view.
inline void store(const TensorView& view, std::initializer_list<std::int64_t> index, double value) {
  const std::int64_t offset = offset_of(view, index);
  switch (view.dtype()) {
    case Dtype::kFloat64:
      view.as<double>()[offset] = value;
      return;
    case Dtype::kFloat16:
      view.as<Float16>()[offset] = Float16(value);
      return;
    case Dtype::kBFloat16:
      view.as<BFloat16>()[offset] = BFloat16(value);
      return;
    default:
      view.as<float>()[offset] = static_cast<float>(value);
  }
}

}  // namespace qkv::reference

#endif  // QKV_SRC_REFERENCE_ELEMENT_H_
