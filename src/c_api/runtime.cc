#include "qkv/runtime.h"

#include <cstddef>
#include <string>
#include <vector>

#include "c_api/convert.h"
#include "c_api/executor.h"
#include "c_api/status.h"
#include "qkv/qkv.h"

using qkv::c_api::guarded;

const char* qkv_version(void) {
  // The view is of a string literal, which ends with a null byte.
  return qkv::version().data();
}

qkv_status qkv_set_num_threads(int num_threads) {
  return guarded([&] { qkv::set_num_threads(num_threads); });
}

int qkv_num_threads(void) {
  int num_threads = 0;
  static_cast<void>(guarded([&] { num_threads = qkv::num_threads(); }));
  return num_threads;
}

qkv_status qkv_set_target(const char* name) {
  return guarded([&] {
    qkv::c_api::require(name, "name");
    qkv::set_target(name);
  });
}

const char* qkv_target(void) {
  thread_local std::string name;
  return guarded([&] { name = qkv::target(); }) == QKV_OK ? name.c_str() : nullptr;
}

const char* qkv_available_target(size_t index) {
  thread_local std::string name;
  bool found = false;
  static_cast<void>(guarded([&] {
    const std::vector<std::string> names = qkv::available_targets();
    found = index < names.size();
    if (found) name = names[index];
  }));
  return found ? name.c_str() : nullptr;
}

qkv_status qkv_set_executor(qkv_executor executor, void* context) {
  return guarded([&] { qkv::set_executor(qkv::c_api::make_executor(executor, context)); });
}
