#include "qkv/error.h"

#include <nanobind/nanobind.h>

#include <cstddef>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "bindings/bindings.h"

namespace qkv::python {
namespace {

namespace nb = nanobind;

// The library's text as Python users know the arguments: without the function, which the traceback names, and with
// Python's name for what C++ calls otherwise.
std::string in_python_words(std::string text) {
  if (text.starts_with("qkv::")) text.erase(0, text.find(": ") + 2);
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"stats.keys:", "stats_keys:"},
      {"weights.heads:", "return_weights: Select.heads:"},
      {"weights.rows:", "return_weights: Select.rows:"},
  };
  for (const auto& [library, python] : kNames) {
    if (text.starts_with(library)) text.replace(0, library.size(), python);
  }
  if (const std::size_t end = text.find("]."); text.starts_with("parts[") && end != std::string::npos) {
    const std::string index = text.substr(5, end + 1 - 5);
    const bool is_out = text.compare(end + 2, 3, "out") == 0;
    text.replace(0, end + 5, (is_out ? "outs" : "lses") + index);
  }
  return text;
}

// Raises the class of that name; it is looked up where it is defined, since errors are rare and the package is in
// memory by then.
void raise_as(const char* class_name, const char* text) {
  try {
    const nb::object type = nb::module_::import_("qkv._errors").attr(class_name);
    PyErr_SetString(type.ptr(), in_python_words(text).c_str());
  } catch (nb::python_error& error) {
    error.restore();
  }
}

void translate(const std::exception_ptr& pointer, void* /*unused*/) {
  try {
    std::rethrow_exception(pointer);
  } catch (const ShapeError& error) {
    raise_as("ShapeError", error.what());
  } catch (const DtypeError& error) {
    raise_as("DtypeError", error.what());
  } catch (const ValueError& error) {
    raise_as("ValueError", error.what());
  }
}

}  // namespace

void bind_errors() { nb::register_exception_translator(translate); }

}  // namespace qkv::python
