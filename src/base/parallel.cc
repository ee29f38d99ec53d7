#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/cpu.h"
#include "base/raise.h"
#include "base/thread_pool.h"
#include "qkv/runtime.h"

namespace qkv {
namespace {

std::atomic<int> g_num_threads = 0;  // 0 = not yet asked for

// No mutex: a child after fork() could find it taken. Nobody sets it while a call is running.
std::atomic<const Executor*> g_executor = nullptr;

thread_local bool t_inside_task = false;

/// Marks this thread as being inside a task, so that a parallel_for in it runs inline.
class InsideTask {
 public:
  InsideTask() noexcept : before_(t_inside_task) { t_inside_task = true; }
  ~InsideTask() { t_inside_task = before_; }
  InsideTask(const InsideTask&) = delete;
  InsideTask& operator=(const InsideTask&) = delete;

 private:
  const bool before_;
};

/// A positive number from the environment; 0 where the variable is not set or empty.
int threads_from(const char* variable, bool list) {
  const char* value = std::getenv(variable);
  const std::string_view whole = trimmed(value == nullptr ? "" : value);
  if (whole.empty()) return 0;
  // OMP_NUM_THREADS may have one number for each nested level: the outermost counts.
  const std::string_view number = trimmed(list ? whole.substr(0, whole.find(',')) : whole);
  int threads = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), threads);
  if (error != std::errc() || end != number.data() + number.size() || threads < 1) {
    raise<ValueError>("{}: expected a number of threads, at least 1, got '{}'", variable, whole);
  }
  return threads;
}

int default_num_threads() {
  int threads = threads_from("QKV_NUM_THREADS", false);
  if (threads == 0) threads = threads_from("OMP_NUM_THREADS", true);
  return threads == 0 ? num_usable_cpus() : threads;
}

/// The rounding mode and the flushing of denormals of the thread that called parallel_for, in a thread that helps it: a
/// result must not depend on who computes it.
class CallersArithmetic {
 public:
  explicit CallersArithmetic(const std::fenv_t& callers) noexcept {
    std::fegetenv(&own_);
    std::fesetenv(&callers);
  }
  ~CallersArithmetic() { std::fesetenv(&own_); }
  CallersArithmetic(const CallersArithmetic&) = delete;
  CallersArithmetic& operator=(const CallersArithmetic&) = delete;

 private:
  std::fenv_t own_ = {};
};

/// One parallel_for: what its threads share.
class Loop {
 public:
  Loop(std::size_t count, const std::function<void(std::size_t)>& task) : count_(count), task_(task) {
    std::fegetenv(&arithmetic_);
  }

  /// Begins no task any more and waits for those under way. @return whether all had begun.
  bool close() noexcept {
    const bool all_begun = next_.exchange(count_) >= count_;
    for (std::size_t busy = draining_.load(); busy != 0; busy = draining_.load()) draining_.wait(busy);
    return all_begun;
  }

  /// Takes tasks until none is left, here or on any number of threads at once.
  void drain() noexcept {
    const InsideTask inside;
    const CallersArithmetic arithmetic(arithmetic_);
    draining_.fetch_add(1);  // before next_ is read: close() either sees it or leaves nothing to take
    take_tasks();
    draining_.fetch_sub(1);
    draining_.notify_all();
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void take_tasks() noexcept {
    for (;;) {
      const std::size_t index = next_.fetch_add(1);
      if (index >= count_) return;
      try {
        task_(index);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
        next_.store(count_);
      }
    }
  }

  std::fenv_t arithmetic_ = {};
  const std::size_t count_;
  const std::function<void(std::size_t)>& task_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<std::size_t> draining_ = 0;
  std::mutex mutex_;
  std::exception_ptr error_;
};

/// An executor that returns too early, or throws, may still call its copy of the task: the loop outlives this function,
/// and the caller's task is not touched once the loop is closed.
void run_on(const Executor& executor, std::size_t count, std::size_t pieces,
            const std::function<void(std::size_t)>& task) {
  const auto loop = std::make_shared<Loop>(count, task);
  try {
    executor(pieces, [loop](std::size_t) { loop->drain(); });
  } catch (...) {
    loop->close();
    throw;
  }
  const bool all_begun = loop->close();
  loop->rethrow();
  if (!all_begun) raise<ValueError>("qkv::set_executor: the executor returned before it had run its tasks");
}

}  // namespace

void set_num_threads(int num_threads) {
  if (num_threads < 1) raise<ValueError>("qkv::set_num_threads: expected at least 1, got {}", num_threads);
  g_num_threads.store(num_threads, std::memory_order_relaxed);
}

int num_threads() {
  int threads = g_num_threads.load(std::memory_order_relaxed);
  if (threads > 0) return threads;
  const int wanted = default_num_threads();
  // A set_num_threads that came in between stays.
  return g_num_threads.compare_exchange_strong(threads, wanted, std::memory_order_relaxed) ? wanted : threads;
}

void set_executor(Executor executor) {
  auto next = executor ? std::make_unique<const Executor>(std::move(executor)) : nullptr;
  const std::unique_ptr<const Executor> before(g_executor.exchange(next.release(), std::memory_order_acq_rel));
}

void parallel_for(std::size_t count, const std::function<void(std::size_t)>& task) {
  const auto threads = t_inside_task ? 1 : static_cast<std::size_t>(std::min(num_threads(), kMostThreads));
  const std::size_t pieces = std::min(count, threads);
  if (pieces <= 1) {
    for (std::size_t index = 0; index < count; ++index) task(index);
    return;
  }
  if (const auto* executor = g_executor.load(std::memory_order_acquire)) return run_on(*executor, count, pieces, task);
  Loop loop(count, task);
  ThreadPool::instance().run(pieces - 1, [&loop] { loop.drain(); });
  loop.rethrow();
}

}  // namespace qkv
