#include "bindings/arguments.h"

#include <cstddef>
#include <string>

#include "base/text.h"
#include "bindings/frameworks.h"
#include "bindings/text.h"
#include "bindings/torch_tensor.h"
#include "qkv/error.h"

namespace qkv::python {
namespace {

constexpr std::size_t kLongestText = 60;  // longer than any word that the library knows

[[noreturn]] void raise_type(const char* name, const char* expected, nb::handle got) {
  throw nb::type_error(format_text("{}: expected {}, got {}", name, expected, described(got)).c_str());
}

// Arrays are numbers only where they have no axes and hold no bool; anything else may be one.
bool may_be_number(nb::handle object) {
  if (array_type_of(object).kind == Kind::kNone) return true;
  const nb::object axes = nb::getattr(object, "ndim", nb::none());
  if (!nb::isinstance<nb::int_>(axes) || nb::cast<int>(axes) != 0) return false;
  const std::string dtype = text_of(nb::str(nb::getattr(object, "dtype", nb::none())));
  return dtype != "bool" && dtype != "torch.bool";
}

// The Python int that an object stands for, by __index__; null where it is none.
nb::object as_integer(nb::handle object) {
  if (nb::isinstance<nb::bool_>(object)) return {};
  if (PyLong_Check(object.ptr()) != 0) return nb::borrow(object);
  // NumPy's bool has an __index__ up to NumPy 2.2.
  if (PyIndex_Check(object.ptr()) == 0 || is_flag(object) || !may_be_number(object)) return {};
  nb::object result = nb::steal(PyNumber_Index(object.ptr()));
  if (!result.is_valid()) drop_error(PyExc_TypeError);
  return result;
}

std::int64_t to_int64_as(nb::handle object, const char* name, const char* expected) {
  const nb::object integer = as_integer(object);
  if (!integer.is_valid()) raise_type(name, expected, object);
  const long long value = PyLong_AsLongLong(integer.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) {
    drop_error(PyExc_OverflowError);
    throw ValueError(format_text("{}: {} does not fit 64 bits", name, shown_int(integer)));
  }
  return value;
}

// What has no order, or is text although it can be walked through.
bool is_no_sequence(nb::handle object) {
  return PyAnySet_Check(object.ptr()) != 0 || PyDict_Check(object.ptr()) != 0 || PyUnicode_Check(object.ptr()) != 0 ||
         PyBytes_Check(object.ptr()) != 0 || PyByteArray_Check(object.ptr()) != 0;
}

std::vector<std::int64_t> to_list(nb::handle object, const char* name, const char* expected) {
  if (is_no_sequence(object)) raise_type(name, expected, object);
  const nb::object iterator = nb::steal(PyObject_GetIter(object.ptr()));
  if (!iterator.is_valid()) {
    drop_error(PyExc_TypeError);
    raise_type(name, expected, object);
  }
  std::vector<std::int64_t> values;
  while (PyObject* item = PyIter_Next(iterator.ptr())) {
    values.push_back(to_int64_as(nb::steal(item), name, "ints in the sequence"));
  }
  if (PyErr_Occurred() != nullptr) nb::raise_python_error();
  return values;
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
  if (is_flag(object) || !may_be_number(object)) raise_type(name, "a number", object);
  if (array_type_of(object).kind == Kind::kTorch) refuse_lost_gradient(object, name);
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) {
    if (PyLong_Check(object.ptr()) != 0 && PyErr_ExceptionMatches(PyExc_OverflowError) != 0) {
      PyErr_Clear();
      throw ValueError(format_text("{}: {} does not fit 64-bit floating point", name, shown_int(object)));
    }
    drop_error(PyExc_TypeError);
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
    drop_error(PyExc_OverflowError);
    throw ValueError(format_text("{}: {}, expected 0 to 2**64 - 1", name, shown_int(integer)));
  }
  return value;
}

std::vector<std::int64_t> to_int64s(nb::handle object, const char* name) {
  if (const nb::object integer = as_integer(object); integer.is_valid()) return {to_int64(integer, name)};
  return to_list(object, name, "an int or a sequence of ints");
}

std::vector<std::int64_t> to_int64_list(nb::handle object, const char* name) {
  return to_list(object, name, "a sequence of ints");
}

std::string to_text(nb::handle object, const char* name) {
  if (!nb::isinstance<nb::str>(object)) raise_type(name, "a str", object);
  // Line ends, zeros and the like would spoil the text of an error, and no word has them.
  const bool printable = nb::cast<bool>(object.attr("isprintable")());
  return text_of(printable ? nb::borrow(object) : nb::repr(object), kLongestText);
}

Window to_window(nb::handle object) {
  if (object.is_none()) return {};
  constexpr const char* kExpected = "a pair (left, right), with None for a side without bound";
  if (!nb::isinstance<nb::tuple>(object) && !nb::isinstance<nb::list>(object)) {
    raise_type("window", kExpected, object);
  }
  if (nb::len(object) != 2) {
    throw ValueError(format_text("window: expected {}, got {} items", kExpected, nb::len(object)));
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
  const std::string stage = to_text(object, "return_logits");
  if (stage == "scaled") return LogitsStage::kScaled;
  if (stage == "capped") return LogitsStage::kCapped;
  if (stage == "masked") return LogitsStage::kMasked;
  throw ValueError(format_text("return_logits: expected {}, got \"{}\"", kExpected, stage));
}

CachePositions to_cache_positions(nb::handle object) {
  const std::string positions = to_text(object, "positions");
  if (positions == "absolute") return CachePositions::kAbsolute;
  if (positions == "cache") return CachePositions::kCache;
  throw ValueError(format_text("positions: expected \"absolute\" or \"cache\", got \"{}\"", positions));
}

}  // namespace qkv::python
