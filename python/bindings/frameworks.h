#ifndef QKV_PYTHON_BINDINGS_FRAMEWORKS_H_
#define QKV_PYTHON_BINDINGS_FRAMEWORKS_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>

#include "bindings/dlpack_exchange.h"
#include "bindings/numpy_array.h"
#include "qkv/dtype.h"

/// What is known of the array libraries of the process. NumPy is imported by the first call; PyTorch never: it is
/// looked up once somebody hands over one of its tensors.
namespace qkv::python {

namespace nb = nanobind;

/// Whose array it is. All arrays of one call are of one kind, and so are its results (kDlpack gets NumPy arrays).
enum class Kind : std::uint8_t { kNone, kNumpy, kTorch, kDlpack };

/// "a NumPy array", "a PyTorch tensor", "a DLPack object"
const char* describe(Kind kind) noexcept;

struct ArrayType {
  Kind kind = Kind::kNone;
  const DlpackExchangeApi* exchange = nullptr;  ///< the fast way to its memory, where it has one
  bool has_data = true;                         ///< false for PyTorch's fake tensors: shapes without values
};

/// What an object is, by its type; types seen before are remembered. Masked arrays are kNone.
ArrayType array_type_of(nb::handle object);

/// Whether it is a numpy.ma.MaskedArray.
bool is_masked_array(nb::handle object);

/// Whether a NumPy dtype is the bfloat16 of the package ml_dtypes.
bool is_bfloat16(const NumpyDescr& descr);

/// torch.is_grad_enabled()
bool torch_grad_enabled();

/// Whether it is a dual tensor, of forward-mode differentiation.
bool torch_has_tangent(nb::handle tensor);

/// Whether it is what a function sees inside a torch.func transform: a stand-in without values of its own.
bool torch_is_transformed(nb::handle tensor);

/// Whether torch.jit.trace or make_fx records what is computed: they would take the result for a constant.
bool torch_is_tracing();

/// Tells autograd that a tensor's memory was written behind its back.
void torch_mark_written(nb::handle tensor);

/// A new uninitialised array: a tensor for kTorch, else a NumPy array. @throws nb::import_error for a NumPy array of
/// bfloat16 without the package ml_dtypes
nb::object new_array(Kind kind, std::span<const std::int64_t> shape, Dtype dtype);

}  // namespace qkv::python

#endif  // QKV_PYTHON_BINDINGS_FRAMEWORKS_H_
