#ifndef QKV_PYTHON_BINDINGS_ELEMENT_TYPE_H_
#define QKV_PYTHON_BINDINGS_ELEMENT_TYPE_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>
#include <string>
#include <string_view>

#include "base/element.h"
#include "bindings/numpy_array.h"
#include "qkv/dtype.h"

namespace qkv::python {

namespace nb = nanobind;

/// How an argument is called and what it may hold, for the texts of errors.
struct Parameter {
  const char* name;
  const char* dtypes;  ///< "float32 or float64"
};

/// An array that the call made itself.
inline constexpr Parameter kResult = {"result", ""};

inline constexpr const char* kFloatDtypes = "float32, float64, float16 or bfloat16";
inline constexpr const char* kIndexDtypes = "int32 or int64";

/// The qkv::Dtype of DLPack's code, or nothing where there is none.
std::optional<Dtype> dtype_of(const nb::dlpack::dtype& dtype);

/// The same for a NumPy dtype in the machine's byte order, bfloat16 (which NumPy lacks) apart.
std::optional<Dtype> dtype_of(const NumpyDescr& descr);

/// The same by name: "float32".
std::optional<Dtype> dtype_named(std::string_view name);

/// @throws DtypeError "<name>: dtype <seen> is not supported, expected <dtypes><advice>"
[[noreturn]] void raise_dtype(const Parameter& parameter, const std::string& seen, const std::string& advice = {});

/// The same for a NumPy array that has none of the dtypes of qkv, with the way to convert it.
[[noreturn]] void raise_numpy_dtype(nb::handle array, const Parameter& parameter);

}  // namespace qkv::python

#endif  // QKV_PYTHON_BINDINGS_ELEMENT_TYPE_H_
