#ifndef QKV_SRC_BASE_RAISE_H_
#define QKV_SRC_BASE_RAISE_H_

#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include <fmt/format.h>

#include <string>
#include <utility>

#include "qkv/dtype.h"
#include "qkv/error.h"
#include "qkv/tensor.h"

namespace qkv {

/// Throws Exception with a formatted text. Shapes and dtypes may be arguments: "[2, 8, 16, 64]", "float32".
template <class Exception, class... Args>
[[noreturn]] void raise(fmt::format_string<Args...> text, Args&&... args) {
  throw Exception(fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace qkv

template <>
struct fmt::formatter<qkv::Extents> : fmt::formatter<std::string> {
  template <class Context>
  auto format(const qkv::Extents& extents, Context& context) const {
    return fmt::formatter<std::string>::format(qkv::to_string(extents), context);
  }
};

template <>
struct fmt::formatter<qkv::Dtype> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(qkv::Dtype dtype, Context& context) const {
    return fmt::formatter<std::string_view>::format(qkv::name_of(dtype), context);
  }
};

#endif  // QKV_SRC_BASE_RAISE_H_
