#include "bindings/text.h"

#include <algorithm>
#include <string_view>

#include "base/text.h"

namespace qkv::python {
namespace {

constexpr std::size_t kLongestValue = 60;
constexpr std::size_t kLongestName = 100;
constexpr std::size_t kLongestReason = 200;
constexpr std::size_t kMostBitsShown = 192;  // 58 digits

std::size_t bit_length(nb::handle integer) {
  const nb::handle type(reinterpret_cast<PyObject*>(&PyLong_Type));
  return nb::cast<std::size_t>(type.attr("bit_length")(integer));
}

// repr() is the object's own code, which may fail.
std::string cut_repr(nb::handle object) {
  const nb::object repr = nb::steal(PyObject_Repr(object.ptr()));
  if (repr.is_valid()) return text_of(repr, kLongestValue);
  drop_error(PyExc_Exception);
  return "without repr()";
}

std::string attribute_text(nb::handle object, const char* name) {
  const nb::object value = nb::getattr(object, name, nb::none());
  return nb::isinstance<nb::str>(value) ? text_of(value, kLongestName) : std::string();
}

}  // namespace

std::string text_of(nb::handle str, std::size_t most) {
  constexpr std::string_view kDots = "...";
  nb::object text = nb::borrow(str);
  const bool cut = nb::len(text) > most;
  if (cut) {
    text = nb::steal(PyUnicode_Substring(str.ptr(), 0, static_cast<Py_ssize_t>(most - kDots.size())));
    if (!text.is_valid()) nb::raise_python_error();
  }
  const nb::object bytes = nb::steal(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  if (!bytes.is_valid()) nb::raise_python_error();
  std::string result(PyBytes_AsString(bytes.ptr()), static_cast<std::size_t>(PyBytes_Size(bytes.ptr())));
  return cut ? result.append(kDots) : result;
}

PyObject* interned(const char* text) {
  PyObject* made = PyUnicode_InternFromString(text);
  if (made == nullptr) nb::raise_python_error();
  return made;
}

std::string full_type_name(nb::handle object) {
  const nb::handle type = object.type();
  const std::string module = attribute_text(type, "__module__");
  const std::string name = attribute_text(type, "__qualname__");
  return module.empty() || module == "builtins" ? name : module + "." + name;
}

std::string described(nb::handle object) {
  const std::string kind = full_type_name(object);
  if (nb::isinstance<nb::int_>(object) && bit_length(object) > kMostBitsShown) {
    return format_text("{} of {} bits", kind, bit_length(object));
  }
  const bool has_value =
      nb::isinstance<nb::str>(object) || nb::isinstance<nb::int_>(object) || nb::isinstance<nb::float_>(object);
  return has_value ? format_text("{} {}", kind, cut_repr(object)) : kind;
}

std::string shown_int(nb::handle integer) {
  const std::size_t bits = bit_length(integer);
  return bits > kMostBitsShown ? format_text("an int of {} bits", bits) : cut_repr(integer);
}

void drop_error(nb::handle exception_class) {
  if (PyErr_ExceptionMatches(exception_class.ptr()) == 0) nb::raise_python_error();
  PyErr_Clear();
}

std::string one_line(const nb::python_error& error) {
  const std::string kind = attribute_text(error.type(), "__name__");
  const nb::object said = nb::steal(PyObject_Str(error.value().ptr()));
  if (!said.is_valid()) {
    drop_error(PyExc_Exception);
    return kind;
  }
  std::string text = text_of(said, kLongestReason);
  text.resize(std::min(text.size(), text.find('\n')));
  return text.empty() ? kind : format_text("{}: {}", kind, text);
}

void raise_type_from(nb::python_error& error, const std::string& text) {
  if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw error;
  nb::raise_from(error, PyExc_TypeError, "%s", text.c_str());
}

}  // namespace qkv::python
