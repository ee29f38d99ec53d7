#include "bindings/arguments.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "bindings/frameworks.h"
#include "qkv/error.h"

namespace qkv::python {
namespace {

[[noreturn]] void raise_type(const char* name, const char* expected, nb::handle got) {
  const std::string kind = full_type_name(got);
  const bool show_value =
      nb::isinstance<nb::str>(got) || nb::isinstance<nb::int_>(got) || nb::isinstance<nb::float_>(got);
  const std::string value = show_value ? fmt::format(" {}", nb::repr(got).c_str()) : std::string();
  throw nb::type_error(fmt::format("{}: expected {}, got {}{}", name, expected, kind, value).c_str());
}

// The Python int that an object stands for, by __index__; null where it is none. Arrays with axes are none.
nb::object as_integer(nb::handle object) {
  if (nb::isinstance<nb::bool_>(object)) return {};
  if (PyLong_Check(object.ptr()) != 0) return nb::borrow(object);
  if (PyIndex_Check(object.ptr()) == 0) return {};
  PyObject* result = PyNumber_Index(object.ptr());
  if (result == nullptr) PyErr_Clear();
  return nb::steal(result);
}

std::int64_t to_int64_as(nb::handle object, const char* name, const char* expected) {
  const nb::object integer = as_integer(object);
  if (!integer.is_valid()) raise_type(name, expected, object);
  const long long value = PyLong_AsLongLong(integer.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw ValueError(fmt::format("{}: {} does not fit 64 bits", name, nb::repr(integer).c_str()));
  }
  return value;
}

}  // namespace

bool is_flag(nb::handle object) {
  if (nb::isinstance<nb::bool_>(object)) return true;
  const std::string type = full_type_name(object);
  return type == "numpy.bool" || type == "numpy.bool_";
}

bool to_flag(nb::handle object, const char* name) {
  if (object.ptr() == Py_False) return false;
  if (object.ptr() == Py_True) return true;
  if (!is_flag(object)) raise_type(name, "a bool", object);
  return nb::cast<bool>(nb::bool_(nb::borrow(object)));
}

double to_double(nb::handle object, const char* name) {
  if (PyFloat_Check(object.ptr()) != 0) return PyFloat_AsDouble(object.ptr());
  if (nb::isinstance<nb::bool_>(object)) raise_type(name, "a number", object);
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    raise_type(name, "a number", object);
  }
  return value;
}

std::int64_t to_int64(nb::handle object, const char* name) { return to_int64_as(object, name, "an int"); }

std::uint64_t to_uint64(nb::handle object, const char* name) {
  const nb::object integer = as_integer(object);
  if (!integer.is_valid()) raise_type(name, "an int", object);
  const unsigned long long value = PyLong_AsUnsignedLongLong(integer.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw ValueError(fmt::format("{}: {}, expected 0 to 2**64 - 1", name, nb::repr(integer).c_str()));
  }
  return value;
}

std::vector<std::int64_t> to_int64s(nb::handle object, const char* name) {
  constexpr const char* kExpected = "an int or a sequence of ints";
  if (const nb::object integer = as_integer(object); integer.is_valid()) return {to_int64(integer, name)};
  if (nb::isinstance<nb::str>(object) || nb::isinstance<nb::bytes>(object)) raise_type(name, kExpected, object);
  const nb::object iterator = nb::steal(PyObject_GetIter(object.ptr()));
  if (!iterator.is_valid()) {
    PyErr_Clear();
    raise_type(name, kExpected, object);
  }
  std::vector<std::int64_t> values;
  while (PyObject* item = PyIter_Next(iterator.ptr())) {
    values.push_back(to_int64_as(nb::steal(item), name, "ints in the sequence"));
  }
  if (PyErr_Occurred() != nullptr) nb::raise_python_error();
  return values;
}

Window to_window(nb::handle object) {
  if (object.is_none()) return {};
  constexpr const char* kExpected = "a pair (left, right), with None for a side without bound";
  if (!nb::isinstance<nb::tuple>(object) && !nb::isinstance<nb::list>(object)) {
    raise_type("window", kExpected, object);
  }
  if (nb::len(object) != 2) {
    throw ValueError(fmt::format("window: expected {}, got {} items", kExpected, nb::len(object)));
  }
  const auto side = [&](std::size_t index) -> std::optional<std::int64_t> {
    const nb::object value = object[index];
    if (value.is_none()) return std::nullopt;
    return to_int64_as(value, index == 0 ? "window[0]" : "window[1]", "an int or None");
  };
  return {side(0), side(1)};
}

LogitsStage to_logits_stage(nb::handle object) {
  constexpr const char* kExpected = "\"scaled\", \"capped\" or \"masked\"";
  if (!nb::isinstance<nb::str>(object)) raise_type("return_logits", kExpected, object);
  const std::string_view stage = nb::borrow<nb::str>(object).c_str();
  if (stage == "scaled") return LogitsStage::kScaled;
  if (stage == "capped") return LogitsStage::kCapped;
  if (stage == "masked") return LogitsStage::kMasked;
  throw ValueError(fmt::format("return_logits: expected {}, got \"{}\"", kExpected, stage));
}

}  // namespace qkv::python
