#ifndef QKV_SRC_BASE_RAISE_H_
#define QKV_SRC_BASE_RAISE_H_

#include "base/text.h"
#include "qkv/error.h"

namespace qkv {

/// Throws Exception with a text that format_text makes.
template <class Exception, class... Args>
[[noreturn]] void raise(TextFor<Args...> text, const Args&... args) {
  throw Exception(format_text<Args...>(text, args...));
}

}  // namespace qkv

#endif  // QKV_SRC_BASE_RAISE_H_
