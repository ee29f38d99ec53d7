#include "c_api/executor.h"

#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>

namespace qkv::c_api {
namespace {

class Job {
 public:
  explicit Job(const std::function<void(std::size_t)>& task) : task_(task) {}

  /// A qkv_task: self is a Job.
  static void run_one(void* self, std::size_t index) noexcept { static_cast<Job*>(self)->run(index); }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void run(std::size_t index) noexcept {
    try {
      task_(index);
    } catch (...) {
      const std::scoped_lock lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  const std::function<void(std::size_t)>& task_;
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

Executor make_executor(qkv_executor executor, void* context) {
  if (executor == nullptr) return {};
  return [executor, context](std::size_t count, const std::function<void(std::size_t)>& task) {
    Job job(task);
    executor(context, count, &Job::run_one, &job);
    job.rethrow();
  };
}

}  // namespace qkv::c_api
