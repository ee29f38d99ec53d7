#include "bindings/dlpack_import.h"

#include <string>

#include "base/text.h"
#include "bindings/text.h"
#include "qkv/error.h"

namespace qkv::python {
namespace {

[[noreturn]] void raise_device(const Parameter& parameter, int device_type) {
  throw ValueError(
      format_text("{}: memory on DLPack device type {}, expected the CPU (1)", parameter.name, device_type));
}

// Asked first, as the protocol wants it: an exporter need not cope with __dlpack__ for memory elsewhere.
void check_device(nb::handle exporter, const Parameter& parameter) {
  if (!nb::hasattr(exporter.type(), "__dlpack_device__")) return;
  const nb::object device = exporter.attr("__dlpack_device__")();
  const nb::object type = device[0];
  // An enumeration of the exporter's own is an int too.
  int device_type = 0;
  if (!nb::isinstance<nb::int_>(type) || !nb::try_cast(type, device_type)) {
    throw nb::type_error(format_text("{}: __dlpack_device__() gave {}, expected (device type, device id)",
                                     parameter.name, text_of(nb::repr(device), 60))
                             .c_str());
  }
  if (!is_cpu_device(device_type)) raise_device(parameter, device_type);
}

// The versioned form alone says whether memory may be written, and the older form is the quicker one. An exporter that
// knows only one of them refuses the other with one of two exceptions.
nb::object call_dlpack(nb::handle exporter, bool writable) {
  const nb::object method = exporter.attr("__dlpack__");
  const auto call = [&](bool versioned) {
    return versioned ? method(nb::arg("max_version") = nb::make_tuple(1, 0)) : method();
  };
  try {
    return call(writable);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_BufferError) && !error.matches(PyExc_TypeError)) throw;
  }
  return call(!writable);
}

std::string no_memory(nb::handle exporter, const Parameter& parameter, bool writable) {
  return format_text("{}: this {} has no {}memory on the CPU that DLPack can hand over", parameter.name,
                     full_type_name(exporter), writable ? "writable " : "");
}

}  // namespace

bool is_cpu_device(int device_type) noexcept {
  return device_type == nb::device::cpu::value || device_type == nb::device::cuda_host::value;
}

nb::ndarray<nb::ro> import_dlpack(nb::handle exporter, const Parameter& parameter, bool writable) {
  nb::object capsule;
  try {
    check_device(exporter, parameter);
    capsule = call_dlpack(exporter, writable);
  } catch (nb::python_error& error) {
    raise_type_from(error, format_text("{} ({})", no_memory(exporter, parameter, writable), one_line(error)));
  }
  nb::ndarray<nb::ro> memory;
  nb::ndarray<> written;
  const bool found = PyCapsule_CheckExact(capsule.ptr()) != 0 &&
                     (writable ? nb::try_cast(capsule, written, false) : nb::try_cast(capsule, memory, false));
  if (!found) throw nb::type_error(no_memory(exporter, parameter, writable).c_str());
  if (writable) memory = nb::ndarray<nb::ro>(written);
  if (!is_cpu_device(memory.device_type())) raise_device(parameter, memory.device_type());
  return memory;
}

}  // namespace qkv::python
