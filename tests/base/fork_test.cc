#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "base/parallel.h"
#include "qkv/runtime.h"

namespace qkv {
namespace {

/// Exit status of a child that runs the body; -1 if it died of a signal.
template <class Body>
int in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);  // a child that hangs dies
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool parallel_sum_is_right() {
  std::atomic<int> sum = 0;
  parallel_for(100, [&](std::size_t i) { sum += static_cast<int>(i); });
  return sum == 4950;
}

TEST(Fork, ChildHasThreadsOfItsOwn) {
  set_num_threads(3);
  ASSERT_TRUE(parallel_sum_is_right());
  EXPECT_EQ(in_child([] {
              // Three threads at once: the parent's helpers do not exist here.
              std::atomic<int> present = 0;
              parallel_for(3, [&](std::size_t) {
                ++present;
                while (present < 3) std::this_thread::yield();
              });
              return parallel_sum_is_right();
            }),
            0);
  EXPECT_TRUE(parallel_sum_is_right()) << "the parent goes on";
}

TEST(Fork, WhileAnotherThreadIsAtWork) {
  set_num_threads(3);
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0;
  std::thread busy([&] {
    while (!stop) wrong += parallel_sum_is_right() ? 0 : 1;
  });
  for (int round = 0; round < 20; ++round) EXPECT_EQ(in_child(parallel_sum_is_right), 0) << round;
  stop = true;
  busy.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Fork, WhileAnotherThreadIsAtWorkOnAnExecutor) {
  set_num_threads(2);
  set_executor([](std::size_t count, const std::function<void(std::size_t)>& task) {
    for (std::size_t i = 0; i < count; ++i) task(i);
  });
  std::atomic<bool> stop = false;
  std::thread busy([&] {
    while (!stop) parallel_sum_is_right();
  });
  for (int round = 0; round < 60; ++round) EXPECT_EQ(in_child(parallel_sum_is_right), 0) << round;
  stop = true;
  busy.join();
  set_executor({});
}

TEST(Fork, FromInsideATask) {
  set_num_threads(2);
  std::atomic<int> failed = 0;
  parallel_for(4, [&](std::size_t) { failed += in_child(parallel_sum_is_right) == 0 ? 0 : 1; });
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace qkv
