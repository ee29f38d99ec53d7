#ifndef QKV_PYTHON_BINDINGS_TEXT_H_
#define QKV_PYTHON_BINDINGS_TEXT_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <string>

/// Python's objects and exceptions in the texts of errors: short, one line, and safe whatever the object is.
namespace qkv::python {

namespace nb = nanobind;

/// The text of a Python str as UTF-8; what UTF-8 cannot hold (lone surrogates) is escaped. At most `most` characters,
/// the last three of them dots where it was cut.
std::string text_of(nb::handle str, std::size_t most = static_cast<std::size_t>(-1));

/// A str for the names of attributes and arguments: made once by the caller, never destroyed.
PyObject* interned(const char* text);

/// "numpy.ma.MaskedArray", "list": the full name of an object's type, builtins without their module.
std::string full_type_name(nb::handle object);

/// What was seen instead of what was expected: "list", "str 'x'", "float 0.5", "int 3", "int of 1329 bits".
std::string described(nb::handle object);

/// A Python int: its digits, or "an int of 1329 bits" where they would fill the line.
std::string shown_int(nb::handle integer);

/// Clears the Python exception that is set, if it is of this class; any other is thrown on.
void drop_error(nb::handle exception_class);

/// "BufferError: readonly array": the first line of what an exception says.
std::string one_line(const nb::python_error& error);

/// Throws a TypeError that has the exception as its cause. What is no error of the object goes on as it is:
/// KeyboardInterrupt, SystemExit and their like, and MemoryError.
[[noreturn]] void raise_type_from(nb::python_error& error, const std::string& text);

}  // namespace qkv::python

#endif  // QKV_PYTHON_BINDINGS_TEXT_H_
