#ifndef QKV_SRC_C_API_STATUS_H_
#define QKV_SRC_C_API_STATUS_H_

#include <utility>

#include "qkv/qkv.h"

namespace qkv::c_api {

/// Turns the exception in flight into a status and keeps its text for qkv_last_error(). Call it in a catch block.
qkv_status status_of_current_exception() noexcept;

/// Runs body(); what it throws becomes the status. Every function of the C interface that can fail goes through here.
template <class Body>
qkv_status guarded(Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return QKV_OK;
  } catch (...) {
    return status_of_current_exception();
  }
}

}  // namespace qkv::c_api

#endif  // QKV_SRC_C_API_STATUS_H_
