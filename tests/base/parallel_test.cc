#include "base/parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "qkv/error.h"
#include "qkv/runtime.h"

namespace qkv {
namespace {

class Parallel : public ::testing::Test {
 protected:
  void TearDown() override {
    set_executor({});
    set_num_threads(1);
  }
};

/// Waits until `wanted` threads are inside at once; false if they do not come in time.
class Meeting {
 public:
  explicit Meeting(int wanted) : wanted_(wanted) {}
  bool wait() {
    std::unique_lock lock(mutex_);
    ++present_;
    all_here_.notify_all();
    return all_here_.wait_for(lock, std::chrono::seconds(20), [this] { return present_ >= wanted_; });
  }

 private:
  const int wanted_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  int present_ = 0;
};

TEST_F(Parallel, RunsEachTaskOnce) {
  for (const int threads : {1, 2, 5}) {
    set_num_threads(threads);
    for (const std::size_t count : {0U, 1U, 2U, 3U, 1000U}) {
      std::vector<std::atomic<int>> runs(count);
      parallel_for(count, [&](std::size_t i) { ++runs[i]; });
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(runs[i], 1) << i << " of " << count << ", threads " << threads;
    }
  }
}

TEST_F(Parallel, UsesAsManyThreadsAsAskedForAtTheSameTime) {
  set_num_threads(3);
  Meeting meeting(3);
  std::atomic<int> met = 0;
  parallel_for(3, [&](std::size_t) { met += meeting.wait() ? 1 : 0; });
  EXPECT_EQ(met, 3);
}

TEST_F(Parallel, UsesNoMoreThreadsThanAskedFor) {
  set_num_threads(6);
  parallel_for(6, [](std::size_t) {});  // there are helpers enough for more
  set_num_threads(2);
  std::mutex mutex;
  std::set<std::thread::id> ids;
  parallel_for(200, [&](std::size_t) {
    std::this_thread::yield();
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_LE(ids.size(), 2U);
}

TEST_F(Parallel, OneThreadOrOneTaskStaysOnTheCaller) {
  const auto caller = std::this_thread::get_id();
  set_num_threads(1);
  parallel_for(5, [&](std::size_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
  set_num_threads(4);
  parallel_for(1, [&](std::size_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
}

TEST_F(Parallel, HandsTasksOutInAscendingOrder) {
  set_num_threads(3);
  std::mutex mutex;
  std::map<std::thread::id, std::vector<std::size_t>> seen;
  parallel_for(300, [&](std::size_t i) {
    const std::lock_guard lock(mutex);
    seen[std::this_thread::get_id()].push_back(i);
  });
  for (const auto& [thread, tasks] : seen) EXPECT_TRUE(std::is_sorted(tasks.begin(), tasks.end()));
}

TEST_F(Parallel, RethrowsAfterTheTasksUnderWay) {
  for (const int threads : {1, 4}) {
    set_num_threads(threads);
    std::atomic<int> inside = 0;
    try {
      parallel_for(100, [&](std::size_t i) {
        ++inside;
        if (i == 7) {
          --inside;
          throw std::runtime_error("seven");
        }
        std::this_thread::yield();
        --inside;
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "seven");
      EXPECT_EQ(inside, 0);
    }
    // The pool works on.
    std::atomic<int> runs = 0;
    parallel_for(50, [&](std::size_t) { ++runs; });
    EXPECT_EQ(runs, 50);
  }
}

TEST_F(Parallel, NestedCallsRunInline) {
  set_num_threads(4);
  std::atomic<int> runs = 0;
  std::atomic<int> elsewhere = 0;
  // Two threads are left without work, and have time to take some of the inner tasks if these were handed out.
  parallel_for(2, [&](std::size_t) {
    const auto outer = std::this_thread::get_id();
    parallel_for(8, [&](std::size_t) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++runs;
      if (std::this_thread::get_id() != outer) ++elsewhere;
    });
  });
  EXPECT_EQ(runs, 16);
  EXPECT_EQ(elsewhere, 0);
}

TEST_F(Parallel, SeveralCallersAtOnce) {
  set_num_threads(3);
  std::vector<std::thread> callers;
  std::vector<long> sums(4);
  for (std::size_t caller = 0; caller < sums.size(); ++caller) {
    callers.emplace_back([caller, &sums] {
      for (int round = 0; round < 200; ++round) {
        std::atomic<long> sum = 0;
        parallel_for(20, [&](std::size_t i) { sum += static_cast<long>(i); });
        sums[caller] += sum;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const long sum : sums) EXPECT_EQ(sum, 200 * 190);
}

TEST_F(Parallel, ExecutorGetsThePieces) {
  set_num_threads(3);
  std::size_t pieces = 0;
  set_executor([&](std::size_t count, const std::function<void(std::size_t)>& task) {
    pieces = count;
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < count; ++i) threads.emplace_back([&task, i] { task(i); });
    for (std::thread& thread : threads) thread.join();
  });
  std::vector<std::atomic<int>> runs(100);
  parallel_for(100, [&](std::size_t i) { ++runs[i]; });
  EXPECT_EQ(pieces, 3U);
  for (const auto& count : runs) EXPECT_EQ(count, 1);

  pieces = 0;
  set_executor({});
  parallel_for(100, [&](std::size_t i) { ++runs[i]; });
  EXPECT_EQ(pieces, 0U) << "an empty executor takes the work back";
  for (const auto& count : runs) EXPECT_EQ(count, 2);
}

TEST_F(Parallel, ExecutorNeverSeesAnException) {
  set_num_threads(2);
  bool escaped = false;
  set_executor([&](std::size_t count, const std::function<void(std::size_t)>& task) {
    for (std::size_t i = 0; i < count; ++i) {
      try {
        task(i);
      } catch (...) {
        escaped = true;
      }
    }
  });
  EXPECT_THROW(parallel_for(10, [](std::size_t) { throw std::runtime_error("task"); }), std::runtime_error);
  EXPECT_FALSE(escaped);
}

TEST_F(Parallel, ExecutorThatRunsNothingIsAnError) {
  set_num_threads(2);
  set_executor([](std::size_t, const std::function<void(std::size_t)>&) {});
  EXPECT_THROW(parallel_for(10, [](std::size_t) {}), ValueError);
}

TEST_F(Parallel, ExecutorThatCallsTooLateFindsNothingToDo) {
  set_num_threads(2);
  std::function<void(std::size_t)> kept;
  set_executor([&](std::size_t, const std::function<void(std::size_t)>& task) { kept = task; });
  int runs = 0;
  EXPECT_THROW(parallel_for(10, [&](std::size_t) { ++runs; }), ValueError);
  kept(0);
  kept(1);
  EXPECT_EQ(runs, 0);

  set_executor([&](std::size_t, const std::function<void(std::size_t)>& task) {
    kept = task;
    throw std::runtime_error("the executor");
  });
  EXPECT_THROW(parallel_for(10, [&](std::size_t) { ++runs; }), std::runtime_error);
  kept(0);
  EXPECT_EQ(runs, 0);
}

TEST_F(Parallel, ExecutorThatReturnsWhileATaskRunsIsWaitedFor) {
  set_num_threads(2);
  Meeting begun(2);
  std::thread late;
  set_executor([&](std::size_t, const std::function<void(std::size_t)>& task) {
    late = std::thread([task] { task(0); });
    begun.wait();
  });
  std::atomic<bool> finished = false;
  parallel_for(2, [&](std::size_t i) {
    if (i == 0) return;
    begun.wait();  // the executor returns when the last task has begun
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    finished = true;
  });
  EXPECT_TRUE(finished) << "parallel_for returned while a task was running";
  late.join();
}

TEST_F(Parallel, EveryThreadRoundsAsTheCaller) {
  set_num_threads(3);
  Meeting all(3);
  std::atomic<int> upward = 0;
  parallel_for(3, [&](std::size_t) { all.wait(); });  // the helpers exist before the mode changes
  Meeting again(3);
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  parallel_for(3, [&](std::size_t) {
    again.wait();
    upward += std::fegetround() == FE_UPWARD ? 1 : 0;
  });
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(upward, 3);
  std::atomic<int> nearest = 0;
  Meeting last(3);
  parallel_for(3, [&](std::size_t) {
    last.wait();
    nearest += std::fegetround() == FE_TONEAREST ? 1 : 0;
  });
  EXPECT_EQ(nearest, 3) << "a helper keeps no mode of an earlier caller";
}

TEST_F(Parallel, AHundredThousandThreadsAreAThousandPieces) {
  set_num_threads(100'000);
  EXPECT_EQ(num_threads(), 100'000);
  const auto run_all = [] {
    std::vector<std::atomic<int>> runs(5000);
    parallel_for(runs.size(), [&](std::size_t i) { ++runs[i]; });
    for (std::size_t i = 0; i < runs.size(); ++i) ASSERT_EQ(runs[i], 1) << i;
  };
  std::size_t pieces = 0;
  set_executor([&](std::size_t count, const std::function<void(std::size_t)>& task) {
    pieces = count;
    for (std::size_t i = 0; i < count; ++i) task(i);
  });
  run_all();
  EXPECT_EQ(pieces, 1024U);
  set_executor({});
  run_all();
}

TEST_F(Parallel, NumThreadsIsWhatWasSet) {
  set_num_threads(7);
  EXPECT_EQ(num_threads(), 7);
  EXPECT_THROW(set_num_threads(0), ValueError);
  EXPECT_THROW(set_num_threads(-3), ValueError);
  EXPECT_EQ(num_threads(), 7);
}

}  // namespace
}  // namespace qkv
