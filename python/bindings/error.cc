#include "qkv/error.h"

#include <nanobind/nanobind.h>

#include <cstddef>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "bindings/bindings.h"

namespace qkv::python {
namespace {

namespace nb = nanobind;

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// merge_states takes one list of parts in C++ and two lists in Python: "parts[1].lse" is "lses[1]".
void split_parts(std::string& text) {
  constexpr std::string_view kParts = "parts[";
  for (std::size_t at = text.find(kParts); at != std::string::npos; at = text.find(kParts, at + 1)) {
    const std::size_t end = text.find(']', at);
    if (end == std::string::npos) return;
    const std::string_view member = std::string_view(text).substr(end + 1, 4);
    const bool is_lse = member == ".lse";
    if (is_lse || member == ".out") text.erase(end + 1, member.size());
    text.replace(at, kParts.size(), is_lse ? "lses[" : "outs[");
  }
}

// The library's text as Python users know the arguments: without the function, which the traceback names, and with
// Python's name for what C++ calls otherwise.
std::string in_python_words(std::string text) {
  if (text.starts_with("qkv::padding_mask: ")) replace_all(text, "kv_len", "n");
  if (text.starts_with("qkv::merge_states: ")) split_parts(text);
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"qkv::set_num_threads: ", "num_threads: "},  // one argument, which the library need not name
      {"qkv::set_target: ", "name: "},
      {"qkv::attention: stats.keys:", "stats_keys:"},
      {"qkv::attention_varlen: stats.keys:", "stats_keys:"},
      {"qkv::attention: weights.heads:", "return_weights: Select.heads:"},
      {"qkv::attention: kv.", "cache: "},
      {"qkv::PagedKVCache::share: from:", "source:"},
      {"qkv::PagedKVCache::share: to:", "target:"},
      {"qkv::KVCache: k_dtype:", "dtype:"},
      {"qkv::KVCache: v_dtype:", "dtype:"},
      {"qkv::PagedKVCache: k_dtype:", "dtype:"},
      {"qkv::PagedKVCache: v_dtype:", "dtype:"},
      {"qkv::attention: weights.rows:", "return_weights: Select.rows:"},
      {"qkv::Rope: scaling.original_max_position:", "scaling.original_max_position_embeddings:"},
  };
  for (const auto& [library, python] : kNames) {
    if (text.starts_with(library)) return text.replace(0, library.size(), python);
  }
  if (text.starts_with("qkv::")) text.erase(0, text.find(": ") + 2);
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

// What the operating system says, as open() would raise it: FileNotFoundError, PermissionError, ...
void raise_os_error(const std::filesystem::filesystem_error& error) {
  try {
    const nb::object arguments =
        nb::make_tuple(error.code().value(), error.code().message().c_str(), error.path1().string().c_str());
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
  } catch (nb::python_error& raised) {
    raised.restore();
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
  } catch (const std::filesystem::filesystem_error& error) {
    raise_os_error(error);
  }
}

}  // namespace

void bind_errors() { nb::register_exception_translator(translate); }

}  // namespace qkv::python
