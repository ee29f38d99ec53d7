#ifndef QKV_PYTHON_BINDINGS_DLPACK_IMPORT_H_
#define QKV_PYTHON_BINDINGS_DLPACK_IMPORT_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "bindings/element_type.h"

namespace qkv::python {

/// The memory of an object by its `__dlpack__`, kept alive by what is returned.
/// @throws ValueError for memory that is not on the CPU; nb::type_error, with the exporter's own exception as its
/// cause, where there is none to be had. KeyboardInterrupt and its like go through.
nb::ndarray<nb::ro> import_dlpack(nb::handle exporter, const Parameter& parameter, bool writable);

/// Whether DLPack's device type is memory that the CPU reads.
bool is_cpu_device(int device_type) noexcept;

}  // namespace qkv::python

#endif  // QKV_PYTHON_BINDINGS_DLPACK_IMPORT_H_
