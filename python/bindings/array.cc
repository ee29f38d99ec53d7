#include "bindings/array.h"

#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "qkv/error.h"

namespace qkv::python {
namespace {

namespace dlpack = nb::dlpack;

// Method and attribute names as Python strings, made once; they live as long as the process.
nb::handle interned(PyObject*& slot, const char* text) {
  if (slot == nullptr) slot = PyUnicode_InternFromString(text);
  return slot;
}

bool attribute_is_true(nb::handle object, nb::handle name) {
  const nb::object value = nb::steal(PyObject_GetAttr(object.ptr(), name.ptr()));
  if (!value.is_valid()) nb::raise_python_error();
  return value.ptr() == Py_True;
}

bool method_is_true(nb::handle object, nb::handle name) {
  PyObject* const arguments[] = {object.ptr()};
  const nb::object value = nb::steal(PyObject_VectorcallMethod(name.ptr(), arguments, 1, nullptr));
  if (!value.is_valid()) nb::raise_python_error();
  return value.ptr() == Py_True;
}

// The text of the Python exception that is set, which is cleared.
std::string take_python_error() {
  nb::python_error error;
  return nb::str(error.value()).c_str();
}

std::string text_of(nb::handle object, const char* attribute) {
  return nb::str(nb::getattr(object, attribute, nb::str("?"))).c_str();
}

// Why a tensor's memory could not be had: not on the CPU, not strided, or whatever PyTorch says.
[[noreturn]] void raise_torch_memory(nb::handle tensor, const Parameter& parameter, const std::string& reason) {
  const std::string device = text_of(nb::getattr(tensor, "device", nb::none()), "type");
  const std::string layout = text_of(tensor, "layout");
  if (device != "cpu") {
    throw ValueError(fmt::format("{}: a tensor on device {}, expected one on the CPU{}", parameter.name, device,
                                 device == "meta" ? " (meta tensors have no data)" : "; move it with .cpu()"));
  }
  if (layout != "torch.strided") {
    throw ValueError(fmt::format("{}: a tensor of layout {}, expected torch.strided; convert it with .to_dense()",
                                 parameter.name, layout));
  }
  throw nb::type_error(
      fmt::format("{}: this {} has no memory that can be read ({})", parameter.name, full_type_name(tensor), reason)
          .c_str());
}

void refuse_lost_gradient(nb::handle tensor, const Parameter& parameter) {
  static PyObject* requires_grad = nullptr;
  if (attribute_is_true(tensor, interned(requires_grad, "requires_grad")) && torch_grad_enabled()) {
    throw ValueError(
        fmt::format("{}: requires grad, and its gradient would be lost: qkv has no backward yet; call under "
                    "torch.no_grad() or pass "
                    "{}.detach()",
                    parameter.name, parameter.name));
  }
}

// A lazily negated or conjugated view shares the memory of what it stands for: the memory alone is not its value.
void refuse_lazy_view(nb::handle tensor, const Parameter& parameter) {
  static PyObject* is_neg = nullptr;
  if (method_is_true(tensor, interned(is_neg, "is_neg"))) {
    throw ValueError(fmt::format("{}: a lazily negated view (is_neg() is true); pass {}.resolve_neg()", parameter.name,
                                 parameter.name));
  }
}

Extents extents(const std::int64_t* values, int rank, const Parameter& parameter) {
  if (rank > kMaxRank) {
    throw ShapeError(fmt::format("{}: {} axes, expected at most 4", parameter.name, rank));
  }
  return Extents(std::span<const std::int64_t>(values, static_cast<std::size_t>(rank)));
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
      fmt::format("{}: expected a NumPy array, a PyTorch tensor or an object with __dlpack__, got {}{}", name,
                  full_type_name(object), advice)
          .c_str());
}

void require_kind(nb::handle object, const char* name, Kind kind, const char* first_name) {
  const Kind seen = require_array(object, name);
  if (seen != kind) {
    throw nb::type_error(fmt::format("{}: {}, but {} is {}; all arrays of a call are of one kind", name, describe(seen),
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
      if (access != Access::kNew) {
        refuse_lost_gradient(object, parameter);
        refuse_lazy_view(object, parameter);
      }
      read_torch(parameter, type.exchange);
      return;
    case Kind::kDlpack:
      read_dlpack(object, parameter, access);
      return;
    case Kind::kNone:
      require_array(object, parameter.name);
  }
}

Array::~Array() {
  if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
}

void Array::read_numpy(const Parameter& parameter, Access access) {
  if (PyObject_GetBuffer(object_.ptr(), &buffer_, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    buffer_.obj = nullptr;
    PyErr_Clear();
    raise_numpy_dtype(object_, parameter);
  }
  const std::optional<Dtype> dtype = dtype_of(buffer_);
  if (!dtype) raise_numpy_dtype(object_, parameter);
  if (access == Access::kWrite && buffer_.readonly != 0) {
    throw ValueError(fmt::format("{}: the array is read-only", parameter.name));
  }
  std::int64_t shape[kMaxRank];
  std::int64_t strides[kMaxRank];
  for (int axis = 0; axis < buffer_.ndim && axis < kMaxRank; ++axis) {
    shape[axis] = buffer_.shape[axis];
    strides[axis] = buffer_.strides[axis] / buffer_.itemsize;
    if (shape[axis] > 1 && buffer_.strides[axis] % buffer_.itemsize != 0) {
      throw ValueError(fmt::format("{}: axis {} has a stride of {} bytes, expected a multiple of the element size {}",
                                   parameter.name, axis, buffer_.strides[axis], buffer_.itemsize));
    }
  }
  view_ = TensorView(buffer_.buf, *dtype, extents(shape, buffer_.ndim, parameter),
                     extents(strides, buffer_.ndim, parameter));
}

void Array::read_torch(const Parameter& parameter, const DlpackExchangeApi* exchange) {
  if (exchange == nullptr) {
    nb::object detached = object_.attr("detach")();
    read_dlpack(detached, parameter, Access::kRead);
    return;
  }
  dlpack::dltensor tensor;
  if (exchange->dltensor_from_py_object_no_sync(object_.ptr(), &tensor) != 0) {
    raise_torch_memory(object_, parameter, take_python_error());
  }
  set_view(tensor, parameter);
}

void Array::read_dlpack(nb::handle exporter, const Parameter& parameter, Access access) {
  nb::ndarray<> writable;
  const bool found =
      access == Access::kWrite ? nb::try_cast(exporter, writable, false) : nb::try_cast(exporter, dlpack_, false);
  if (found && access == Access::kWrite) dlpack_ = nb::ndarray<nb::ro>(writable);
  if (!found) {
    if (kind_ == Kind::kTorch) raise_torch_memory(object_, parameter, "no DLPack export");
    throw nb::type_error(fmt::format("{}: this {} has no {}memory on the CPU that DLPack can hand over", parameter.name,
                                     full_type_name(object_), access == Access::kWrite ? "writable " : "")
                             .c_str());
  }
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
  const int device = tensor.device.device_type;
  if (device != nb::device::cpu::value && device != nb::device::cuda_host::value) {
    if (kind_ == Kind::kTorch) raise_torch_memory(object_, parameter, "not on the CPU");
    throw ValueError(fmt::format("{}: memory on DLPack device type {}, expected the CPU (1)", parameter.name, device));
  }
  const std::optional<Dtype> dtype = dtype_of(tensor.dtype);
  if (!dtype) {
    raise_dtype(parameter, kind_ == Kind::kTorch
                               ? text_of(object_, "dtype")
                               : fmt::format("code {} of {} bits", tensor.dtype.code, tensor.dtype.bits));
  }
  const Extents shape = extents(tensor.shape, tensor.ndim, parameter);
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
