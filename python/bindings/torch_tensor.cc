#include "bindings/torch_tensor.h"

#include <string>

#include "base/text.h"
#include "bindings/frameworks.h"
#include "bindings/text.h"
#include "qkv/error.h"

namespace qkv::python {
namespace {

// Method and attribute names as Python strings, made once; they live as long as the process.
nb::handle name_in(PyObject*& slot, const char* text) {
  if (slot == nullptr) slot = interned(text);
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

bool has_flag(nb::handle tensor, const char* name) {
  return nb::getattr(tensor, name, nb::none()).is(nb::handle(Py_True));
}

std::string printed_attribute(nb::handle object, const char* name) {
  return text_of(nb::str(nb::getattr(object, name, nb::str("?"))));
}

// detach() keeps a tangent, so it is not the way out here.
void refuse_lost_tangent(nb::handle tensor, const Parameter& parameter) {
  if (!torch_has_tangent(tensor)) return;
  throw ValueError(
      format_text("{0}: a dual tensor, and its tangent would be lost: qkv has no forward-mode derivative yet; pass "
                  "torch.autograd.forward_ad.unpack_dual({0}).primal",
                  parameter.name));
}

// A lazily negated or conjugated view shares the memory of what it stands for: the memory alone is not its value.
void refuse_lazy_view(nb::handle tensor, const Parameter& parameter) {
  static PyObject* is_neg = nullptr;
  if (method_is_true(tensor, name_in(is_neg, "is_neg"))) {
    throw ValueError(
        format_text("{0}: a lazily negated view (is_neg() is true); pass {0}.resolve_neg()", parameter.name));
  }
}

[[noreturn]] void raise_inside_transform(const Parameter& parameter) {
  throw ValueError(format_text(
      "{}: a tensor inside a torch.func transform (vmap, grad, jvp, functionalize), expected one with values; call qkv "
      "outside of the transform",
      parameter.name));
}

}  // namespace

void refuse_lost_gradient(nb::handle tensor, const char* name) {
  static PyObject* requires_grad = nullptr;
  if (attribute_is_true(tensor, name_in(requires_grad, "requires_grad")) && torch_grad_enabled()) {
    throw ValueError(
        format_text("{0}: requires grad, and its gradient would be lost: this function is none of autograd's; call "
                    "under torch.no_grad() or pass {0}.detach()",
                    name));
  }
}

void refuse_more_than_memory(nb::handle tensor, const Parameter& parameter) {
  refuse_lost_gradient(tensor, parameter.name);
  refuse_lost_tangent(tensor, parameter);
  refuse_lazy_view(tensor, parameter);
}

void refuse_trace(const char* name) {
  if (!torch_is_tracing()) return;
  throw ValueError(format_text(
      "{}: the call is traced (torch.jit.trace, make_fx, torch.func.linearize), which would record its result as a "
      "constant; run it eagerly, or under torch.compile",
      name));
}

void refuse_without_memory(nb::handle tensor, const Parameter& parameter) {
  const std::string device = printed_attribute(nb::getattr(tensor, "device", nb::none()), "type");
  if (device != "cpu") {
    throw ValueError(format_text("{}: a tensor on device {}, expected one on the CPU{}", parameter.name, device,
                                 device == "meta" ? " (meta tensors have no data)" : "; move it with .cpu()"));
  }
  if (torch_is_transformed(tensor)) raise_inside_transform(parameter);
  if (has_flag(tensor, "is_nested")) {
    throw ValueError(
        format_text("{}: a nested tensor, expected a dense one; convert it with .to_padded_tensor(0) and pass kv_lens",
                    parameter.name));
  }
  const std::string layout = printed_attribute(tensor, "layout");
  if (layout != "torch.strided") {
    throw ValueError(format_text("{}: a tensor of layout {}, expected torch.strided; convert it with .to_dense()",
                                 parameter.name, layout));
  }
  if (has_flag(tensor, "is_quantized")) {
    raise_dtype(parameter, printed_attribute(tensor, "dtype"), "; convert it with .dequantize()");
  }
}

void raise_without_memory(nb::handle tensor, const Parameter& parameter, nb::python_error& error) {
  refuse_without_memory(tensor, parameter);
  raise_type_from(error, format_text("{}: this {} has no memory that can be read ({})", parameter.name,
                                     full_type_name(tensor), one_line(error)));
}

void raise_without_data(nb::handle tensor, const Parameter& parameter) {
  refuse_without_memory(tensor, parameter);
  throw ValueError(format_text("{}: this {} has a shape but no data, expected a tensor with values", parameter.name,
                               full_type_name(tensor)));
}

}  // namespace qkv::python
