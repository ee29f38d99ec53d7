#include "base/thread_pool.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>

namespace qkv {
namespace {

constexpr std::size_t kMostHelpers = kMostThreads - 1;

std::mutex g_create;
std::atomic<ThreadPool*> g_pool = nullptr;

// fork() copies the pool but not its threads, and perhaps a mutex that one of them held: the child forgets the pool.
// Holding g_create across the fork keeps that one usable.
void before_fork() { g_create.lock(); }
void after_fork_in_parent() { g_create.unlock(); }
void after_fork_in_child() {
  g_pool.store(nullptr, std::memory_order_relaxed);
  g_create.unlock();
}
// When the library is loaded, not at the first call: a fork during that call would find nothing registered, and copy
// g_create locked.
[[maybe_unused]] const int g_registered = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);

/// A thread that takes no signals but those of its own faults: the embedder's handlers run on the embedder's threads.
/// @throws std::system_error
void start_thread(const std::function<void()>& body) {
  sigset_t blocked;
  sigset_t before;
  sigfillset(&blocked);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  try {
    std::thread(body).detach();
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

ThreadPool& ThreadPool::instance() {
  ThreadPool* pool = g_pool.load(std::memory_order_acquire);
  if (pool != nullptr) return *pool;
  const std::lock_guard lock(g_create);
  pool = g_pool.load(std::memory_order_relaxed);
  if (pool == nullptr) {
    // Never deleted: its threads sleep until the process ends, and joining them from a static destructor would hang a
    // process that leaves through another thread.
    pool = new ThreadPool();
    g_pool.store(pool, std::memory_order_release);
  }
  return *pool;
}

void ThreadPool::add_threads(std::size_t wanted) {
  for (wanted = std::min(wanted, kMostHelpers); num_threads_ < wanted; ++num_threads_) {
    try {
      start_thread([this] { serve(); });
    } catch (const std::system_error&) {
      return;  // the system gives no more: those that exist, and the caller, do the work
    }
  }
}

void ThreadPool::run(std::size_t num_helpers, const std::function<void()>& work) {
  Job job;
  job.work = &work;
  job.places = num_helpers;
  std::list<Job*>::iterator place;
  {
    const std::lock_guard lock(mutex_);
    add_threads(num_helpers);
    place = open_.insert(open_.end(), &job);
  }
  for (std::size_t i = 0; i < num_helpers; ++i) posted_.notify_one();
  work();
  std::unique_lock lock(mutex_);
  if (job.places > 0) open_.erase(place);
  job.done.wait(lock, [&job] { return job.running == 0; });
}

void ThreadPool::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    posted_.wait(lock, [this] { return !open_.empty(); });
    Job& job = *open_.front();
    if (--job.places == 0) open_.pop_front();
    ++job.running;
    lock.unlock();
    (*job.work)();
    lock.lock();
    if (--job.running == 0) job.done.notify_one();
  }
}

}  // namespace qkv
