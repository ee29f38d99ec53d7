#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include "base/text.h"

#include <fmt/format.h>

#include <cstddef>

namespace qkv {

std::string text_detail::vformatted(fmt::string_view text, fmt::format_args args) { return fmt::vformat(text, args); }

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks(" \t\r\n\v\f\0", 7);
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

}  // namespace qkv
