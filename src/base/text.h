#ifndef QKV_SRC_BASE_TEXT_H_
#define QKV_SRC_BASE_TEXT_H_

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "qkv/dtype.h"
#include "qkv/tensor.h"

namespace qkv {

/// What an argument of format_text is printed as. A shape is "[2, 8, 16, 64]", a dtype "float32".
inline std::string printed(const Extents& extents) { return to_string(extents); }
inline std::string_view printed(Dtype dtype) { return name_of(dtype); }
inline std::string_view printed(std::string_view text) { return text; }
template <class T>
  requires std::is_arithmetic_v<T>
T printed(T number) {
  return number;
}

namespace text_detail {

/// fmt's whole implementation costs seconds of compile time a file: it stands behind this one function.
std::string vformatted(fmt::string_view text, fmt::format_args args);

template <class... Printed>
std::string format_printed(fmt::string_view text, const Printed&... args) {
  return vformatted(text, fmt::make_format_args(args...));
}

}  // namespace text_detail

/// The text that takes arguments of these types.
template <class... Args>
using TextFor = fmt::format_string<decltype(printed(std::declval<const Args&>()))...>;

/// The text with each {} replaced by an argument; fmt's syntax, checked when compiled.
template <class... Args>
std::string format_text(TextFor<Args...> text, const Args&... args) {
  return text_detail::format_printed(text, printed(args)...);
}

/// Without the blanks, tabs, line ends and zero bytes at both ends.
std::string_view trimmed(std::string_view text);

}  // namespace qkv

#endif  // QKV_SRC_BASE_TEXT_H_
