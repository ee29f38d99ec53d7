#include "bindings/array.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/shape.h"
#include "base/text.h"
#include "bindings/dlpack_import.h"
#include "bindings/numpy_array.h"
#include "bindings/text.h"
#include "bindings/torch_tensor.h"
#include "qkv/error.h"

namespace qkv::python {
namespace {

namespace dlpack = nb::dlpack;

constexpr std::string_view kTorchPrefix = "torch.";

Extents extents(const std::int64_t* values, int rank, const Parameter& parameter) {
  if (rank > kMaxRank) {
    throw ShapeError(format_text("{}: {} axes; at most {} are supported", parameter.name, rank, kMaxRank));
  }
  return Extents(std::span<const std::int64_t>(values, static_cast<std::size_t>(rank)));
}

bool is_empty(const NumpyArray& array) { return std::count(array.shape, array.shape + array.rank, 0) != 0; }

bool is_writeable(const NumpyArray& array) {
  return (array.flags & (kNumpyWriteable | kNumpyWarnOnWrite)) == kNumpyWriteable;
}

}  // namespace

Kind require_array(nb::handle object, const char* name) {
  const Kind kind = array_type_of(object).kind;
  if (kind != Kind::kNone) return kind;
  const char* advice = "";
  if (is_masked_array(object)) {
    advice = "; pass its .data, and what it hides as mask=";
  } else if (nb::isinstance<nb::list>(object) || nb::isinstance<nb::tuple>(object)) {
    advice = "; convert it with numpy.asarray";
  }
  throw nb::type_error(
      format_text("{}: expected a NumPy array, a PyTorch tensor or an object with __dlpack__, got {}{}", name,
                  full_type_name(object), advice)
          .c_str());
}

Kind require_first_array(nb::handle object, const char* name) {
  const Kind kind = require_array(object, name);
  if (kind == Kind::kTorch) refuse_trace(name);
  return kind;
}

void require_kind(nb::handle object, const char* name, Kind kind, const char* first_name) {
  const Kind seen = require_array(object, name);
  if (seen != kind) {
    throw nb::type_error(format_text("{}: {}, but {} is {}; all arrays of a call are of one kind", name, describe(seen),
                                     first_name, describe(kind))
                             .c_str());
  }
}

Array::Array(nb::handle object, const Parameter& parameter, Access access) : object_(nb::borrow(object)) {
  const ArrayType type = array_type_of(object);
  kind_ = type.kind;
  switch (kind_) {
    case Kind::kNumpy:
      read_numpy(parameter, access);
      return;
    case Kind::kTorch:
      if (!type.has_data) raise_without_data(object, parameter);
      if (access != Access::kNew) refuse_more_than_memory(object, parameter);
      read_torch(parameter, type.exchange);
      return;
    case Kind::kDlpack:
      read_dlpack(object, parameter, access);
      return;
    case Kind::kNone:
      require_array(object, parameter.name);
  }
}

bool Array::has_at_most(std::int64_t most) const noexcept {
  std::int64_t count = 1;
  for (const std::int64_t extent : view_.shape()) {
    if (extent > most) return false;  // the product could overflow
    count *= extent;
    if (count > most) return false;
  }
  return true;
}

void Array::read_numpy(const Parameter& parameter, Access access) {
  const auto& array = *reinterpret_cast<const NumpyArray*>(object_.ptr());
  std::optional<Dtype> dtype = dtype_of(*array.descr);
  if (!dtype && is_bfloat16(*array.descr)) dtype = Dtype::kBFloat16;
  if (!dtype) raise_numpy_dtype(object_, parameter);
  if (access == Access::kWrite && !is_writeable(array)) {
    throw ValueError(format_text("{}: the array is read-only", parameter.name));
  }
  const std::size_t item = size_of(*dtype);
  const int shift = std::countr_zero(item);  // a division takes ten times as long
  std::int64_t shape[kMaxRank];
  std::int64_t strides[kMaxRank];
  for (int axis = 0; axis < array.rank && axis < kMaxRank; ++axis) {
    shape[axis] = array.shape[axis];
    strides[axis] = array.strides[axis] >> shift;
    if (shape[axis] > 1 && strides[axis] << shift != array.strides[axis] && !is_empty(array)) {
      throw ValueError(format_text("{}: axis {} has a stride of {} bytes, expected a multiple of the element size {}",
                                   parameter.name, axis, array.strides[axis], item));
    }
  }
  view_ =
      TensorView(array.data, *dtype, extents(shape, array.rank, parameter), extents(strides, array.rank, parameter));
}

void Array::read_torch(const Parameter& parameter, const DlpackExchangeApi* exchange) {
  if (exchange == nullptr) return read_torch_methods(parameter);
  dlpack::dltensor tensor;
  if (exchange->dltensor_from_py_object_no_sync(object_.ptr(), &tensor) != 0) {
    nb::python_error error;
    raise_without_memory(object_, parameter, error);
  }
  set_view(tensor, parameter);
}

// Before 2.9 PyTorch has no exchange API, and its __dlpack__ goes through the dispatcher: inside a transform of
// torch.func or a mode it would hand over something else. These methods look at the tensor itself.
void Array::read_torch_methods(const Parameter& parameter) {
  refuse_without_memory(object_, parameter);
  const std::string name = text_of(nb::str(nb::object(object_.attr("dtype"))));
  const std::optional<Dtype> dtype =
      dtype_named(name.starts_with(kTorchPrefix) ? name.substr(kTorchPrefix.size()) : name);
  if (!dtype) raise_dtype(parameter, name);
  const auto shape = nb::cast<std::vector<std::int64_t>>(object_.attr("shape"));
  const auto strides = nb::cast<std::vector<std::int64_t>>(object_.attr("stride")());
  const auto rank = static_cast<int>(shape.size());
  void* data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(object_.attr("data_ptr")()));
  const Extents extents_of_tensor = extents(shape.data(), rank, parameter);
  if (data == nullptr && !has_no_elements(extents_of_tensor)) raise_without_data(object_, parameter);
  view_ = TensorView(data, *dtype, extents_of_tensor, extents(strides.data(), rank, parameter));
}

void Array::read_dlpack(nb::handle exporter, const Parameter& parameter, Access access) {
  dlpack_ = import_dlpack(exporter, parameter, access == Access::kWrite);
  dlpack::dltensor tensor;
  tensor.data = const_cast<void*>(dlpack_.data());
  tensor.device = {dlpack_.device_type(), dlpack_.device_id()};
  tensor.ndim = static_cast<std::int32_t>(dlpack_.ndim());
  tensor.dtype = dlpack_.dtype();
  tensor.shape = const_cast<std::int64_t*>(dlpack_.shape_ptr());
  tensor.strides = const_cast<std::int64_t*>(dlpack_.stride_ptr());
  set_view(tensor, parameter);
}

void Array::set_view(const dlpack::dltensor& tensor, const Parameter& parameter) {
  if (kind_ == Kind::kTorch && !is_cpu_device(tensor.device.device_type)) refuse_without_memory(object_, parameter);
  const std::optional<Dtype> dtype = dtype_of(tensor.dtype);
  if (!dtype) {
    raise_dtype(parameter, kind_ == Kind::kTorch
                               ? text_of(nb::str(nb::object(object_.attr("dtype"))))
                               : format_text("code {} of {} bits", tensor.dtype.code, tensor.dtype.bits));
  }
  const Extents shape = extents(tensor.shape, tensor.ndim, parameter);
  if (kind_ == Kind::kTorch && tensor.data == nullptr && !has_no_elements(shape))
    raise_without_data(object_, parameter);
  const Extents strides =
      tensor.strides == nullptr ? dense_strides(shape) : extents(tensor.strides, tensor.ndim, parameter);
  view_ = TensorView(static_cast<std::byte*>(tensor.data) + tensor.byte_offset, *dtype, shape, strides);
}

TensorView with_rank(const TensorView& view, int rank) {
  if (view.rank() >= rank) return view;
  std::int64_t shape[kMaxRank];
  std::int64_t strides[kMaxRank];
  const int missing = rank - view.rank();
  for (int axis = 0; axis < rank; ++axis) {
    shape[axis] = axis < missing ? 1 : view.extent(axis - missing);
    strides[axis] = axis < missing ? 0 : view.stride(axis - missing);
  }
  const auto count = static_cast<std::size_t>(rank);
  return {view.data(), view.dtype(), Extents(std::span<const std::int64_t>(shape, count)),
          Extents(std::span<const std::int64_t>(strides, count))};
}

}  // namespace qkv::python
