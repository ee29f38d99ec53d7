#ifndef QKV_SRC_BASE_THREAD_POOL_H_
#define QKV_SRC_BASE_THREAD_POOL_H_

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <list>
#include <mutex>

#include "base/parallel.h"

namespace qkv {

/// Persistent helper threads. A caller posts a piece of work, does it too, and waits for the helpers that joined.
/// Several callers share the helpers. Threads are created when first wanted and sleep between calls.
class ThreadPool {
 public:
  /// The pool of this process, made on first use; a child after fork() gets a new one.
  static ThreadPool& instance();

  /// Calls work() on this thread and on up to num_helpers others at the same time; returns when each has returned.
  /// A helper that finds no thread free is left out: work() must finish the job whoever runs it, and must not throw.
  void run(std::size_t num_helpers, const std::function<void()>& work);

 private:
  struct Job {
    const std::function<void()>* work = nullptr;
    std::size_t places = 0;   // for helpers that may still join
    std::size_t running = 0;  // helpers that joined and have not returned
    std::condition_variable done = {};
  };

  void add_threads(std::size_t wanted);
  void serve();

  std::mutex mutex_;
  std::condition_variable posted_;
  std::list<Job*> open_;  // jobs with places left
  std::size_t num_threads_ = 0;
};

}  // namespace qkv

#endif  // QKV_SRC_BASE_THREAD_POOL_H_
