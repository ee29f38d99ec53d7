#include "c_api/executor.h"

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace qkv::c_api {
namespace {

class Job {
 public:
  explicit Job(std::function<void(std::size_t)> task) : task_(std::move(task)) {}

  /// A qkv_task: self is a Job.
  static void run_one(void* self, std::size_t index) noexcept { static_cast<Job*>(self)->run(index); }

  std::size_t finished() const noexcept { return finished_; }
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
    ++finished_;
  }

  const std::function<void(std::size_t)> task_;
  std::atomic<std::size_t> finished_ = 0;
  std::mutex mutex_;
  std::exception_ptr error_;
};

/// An executor that has left something out may still call it: the job stays for good, and finds nothing to do.
const Job* keep_for_late_calls(std::unique_ptr<Job> job) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::unique_ptr<Job>>;
  const std::scoped_lock lock(mutex);
  return kept.emplace_back(std::move(job)).get();
}

}  // namespace

Executor make_executor(qkv_executor executor, void* context) {
  if (executor == nullptr) return {};
  return [executor, context](std::size_t count, const std::function<void(std::size_t)>& task) {
    auto job = std::make_unique<Job>(task);
    executor(context, count, &Job::run_one, job.get());
    const Job* ended = job->finished() < count ? keep_for_late_calls(std::move(job)) : job.get();
    ended->rethrow();
  };
}

}  // namespace qkv::c_api
