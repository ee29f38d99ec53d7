#ifndef QKV_PYTHON_BINDINGS_TORCH_TENSOR_H_
#define QKV_PYTHON_BINDINGS_TORCH_TENSOR_H_

#include <nanobind/nanobind.h>

#include "bindings/element_type.h"

/// Which PyTorch tensors are refused, and what the way out is.
namespace qkv::python {

/// Refuses a tensor whose memory is not all that there is to it: one with a gradient or a tangent that would be lost,
/// or a view that stands for the negation of its memory. Costs some 100 ns. @throws ValueError
void refuse_more_than_memory(nb::handle tensor, const Parameter& parameter);

/// Refuses a tensor (or a number in one) whose gradient would be lost. @throws ValueError
void refuse_lost_gradient(nb::handle tensor, const char* name);

/// Refuses a call that torch.jit.trace or make_fx is recording. @throws ValueError
void refuse_trace(const char* name);

/// Refuses a tensor that has no dense memory on the CPU, saying what it is instead; returns where it sees no reason.
/// @throws ValueError, DtypeError
void refuse_without_memory(nb::handle tensor, const Parameter& parameter);

/// PyTorch did not hand the memory over: refuse_without_memory, or what the exception says. @throws nb::type_error
[[noreturn]] void raise_without_memory(nb::handle tensor, const Parameter& parameter, nb::python_error& error);

/// The tensor has elements but no address.
[[noreturn]] void raise_without_data(nb::handle tensor, const Parameter& parameter);

}  // namespace qkv::python

#endif  // QKV_PYTHON_BINDINGS_TORCH_TENSOR_H_
