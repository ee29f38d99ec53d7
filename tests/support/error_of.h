#ifndef QKV_TESTS_SUPPORT_ERROR_OF_H_
#define QKV_TESTS_SUPPORT_ERROR_OF_H_

#include <string>

#include "qkv/error.h"

namespace qkv::support {

/// What an error of this class says, or that there was none.
template <class Error, class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace qkv::support

#endif  // QKV_TESTS_SUPPORT_ERROR_OF_H_
