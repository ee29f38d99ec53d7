#ifndef QKV_PYTHON_BINDINGS_ARGUMENTS_H_
#define QKV_PYTHON_BINDINGS_ARGUMENTS_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "qkv/attention.h"
#include "qkv/kv_view.h"

/// Plain Python values as C++ values. Each throws nb::type_error for another type and qkv::ValueError for a number that
/// does not fit, naming the argument. NumPy's scalars count as numbers; True and False do not. What an object's own
/// methods raise beyond TypeError goes on to the caller.
namespace qkv::python {

namespace nb = nanobind;

/// Whether it is a Python or a NumPy bool.
bool is_flag(nb::handle object);
bool to_flag(nb::handle object, const char* name);
double to_double(nb::handle object, const char* name);
std::int64_t to_int64(nb::handle object, const char* name);
std::uint64_t to_uint64(nb::handle object, const char* name);
/// An int, or anything that gives ints in an order: no set, no dict.
std::vector<std::int64_t> to_int64s(nb::handle object, const char* name);
/// The same without the int alone.
std::vector<std::int64_t> to_int64_list(nb::handle object, const char* name);
/// A str; cut where it is longer than any word that the library knows.
std::string to_text(nb::handle object, const char* name);
/// None, or a pair of int or None.
Window to_window(nb::handle object);
/// "scaled", "capped" or "masked".
LogitsStage to_logits_stage(nb::handle object);
/// "absolute" or "cache".
CachePositions to_cache_positions(nb::handle object);

}  // namespace qkv::python

#endif  // QKV_PYTHON_BINDINGS_ARGUMENTS_H_
