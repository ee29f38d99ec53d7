#ifndef QKV_SRC_C_API_EXECUTOR_H_
#define QKV_SRC_C_API_EXECUTOR_H_

#include "qkv/qkv.h"
#include "qkv/runtime.h"

namespace qkv::c_api {

/// A C++ executor that calls a C one; an empty one for null. What a task throws does not pass through the C code: it is
/// thrown again, the first of several, when the C executor has returned.
Executor make_executor(qkv_executor executor, void* context);

}  // namespace qkv::c_api

#endif  // QKV_SRC_C_API_EXECUTOR_H_
