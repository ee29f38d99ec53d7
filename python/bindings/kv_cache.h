#ifndef QKV_PYTHON_BINDINGS_KV_CACHE_H_
#define QKV_PYTHON_BINDINGS_KV_CACHE_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <mutex>
#include <shared_mutex>

#include "qkv/kv_view.h"

namespace qkv::python {

namespace nb = nanobind;

/// A cache of either kind as Python holds it. Calls of attention in other threads, which run without the interpreter
/// lock, share it; who changes it waits for them.
class BoundCache {
 public:
  virtual ~BoundCache() = default;

  /// The length of kv, and of a row of v.
  virtual std::int64_t kv_len() const = 0;
  virtual std::int64_t value_dim() const = 0;
  virtual KVView view() const = 0;

  std::shared_mutex& users() const noexcept { return users_; }

 private:
  mutable std::shared_mutex users_;
};

/// Takes a lock while the interpreter lock is held. Who has it may wait for the interpreter: that one is let go until
/// both are free.
template <class Lock>
Lock locked(const BoundCache& cache) {
  Lock lock(cache.users(), std::try_to_lock);
  if (!lock.owns_lock()) {
    const nb::gil_scoped_release unlocked;
    lock.lock();
  }
  return lock;
}

/// The cache that an object is, or null.
const BoundCache* cache_of(nb::handle object);

}  // namespace qkv::python

#endif  // QKV_PYTHON_BINDINGS_KV_CACHE_H_
