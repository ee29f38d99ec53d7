#include "c_api/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "c_api/status.h"
#include "qkv/attention.h"
#include "qkv/error.h"
#include "qkv/qkv.h"
#include "qkv/runtime.h"

namespace qkv::c_api {
namespace {

struct Calls {
  std::atomic<int> count = 0;
};

/// Runs the tasks backwards, each on a thread of its own.
void run_backwards(void* context, std::size_t count, qkv_task task, void* task_context) {
  ++static_cast<Calls*>(context)->count;
  for (std::size_t i = count; i-- > 0;) std::thread([&] { task(task_context, i); }).join();
}

TEST(CExecutor, RunsEveryTaskOnce) {
  Calls calls;
  std::vector<int> times(5, 0);
  make_executor(run_backwards, &calls)(times.size(), [&](std::size_t i) { ++times[i]; });
  EXPECT_EQ(times, std::vector<int>(5, 1));
  EXPECT_EQ(calls.count, 1);
}

TEST(CExecutor, FirstExceptionOfATaskComesOutAfterAllHaveRun) {
  Calls calls;
  std::vector<int> times(4, 0);
  const auto task = [&](std::size_t i) {
    ++times[i];
    if (i == 2) throw std::runtime_error("two");
    if (i == 1) throw std::runtime_error("one");
  };
  try {
    make_executor(run_backwards, &calls)(times.size(), task);
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "two");
  }
  EXPECT_EQ(times, std::vector<int>(4, 1));
}

/// Remembers the task instead of running it.
struct Kept {
  qkv_task task = nullptr;
  void* task_context = nullptr;
};

TEST(CExecutor, ACallThatComesTooLateFindsNothingToDo) {
  Kept kept;
  const auto keep = [](void* context, std::size_t, qkv_task task, void* task_context) {
    *static_cast<Kept*>(context) = {task, task_context};
  };
  ASSERT_EQ(qkv_set_num_threads(2), QKV_OK);
  ASSERT_EQ(qkv_set_executor(keep, &kept), QKV_OK);
  Tensor q({2, 8, 100, 64}, Dtype::kFloat32);
  Tensor out({2, 8, 100, 64}, Dtype::kFloat32);
  EXPECT_THROW(attention(q, q, q, out), ValueError);
  ASSERT_NE(kept.task, nullptr);
  out = Tensor();  // gone, as the caller's memory may be
  kept.task(kept.task_context, 0);
  kept.task(kept.task_context, 1);
  EXPECT_EQ(qkv_set_executor(nullptr, nullptr), QKV_OK);
}

TEST(CExecutor, NullIsTheEmptyExecutor) { EXPECT_FALSE(make_executor(nullptr, nullptr)); }

TEST(CExecutor, ServesAttentionUntilTakenBack) {
  constexpr std::int64_t kLen = 300;
  Tensor q({2, 8, kLen, 64}, Dtype::kFloat32);
  Tensor own(q.shape(), Dtype::kFloat32);
  Tensor lent(q.shape(), Dtype::kFloat32);
  for (std::int64_t i = 0; i < q.num_elements(); ++i) q.as<float>()[i] = static_cast<float>(i * 37 % 101) / 50.0F - 1;
  const int threads = num_threads();
  set_num_threads(2);
  attention(q, q, q, own);

  Calls calls;
  ASSERT_EQ(qkv_set_executor(run_backwards, &calls), QKV_OK);
  attention(q, q, q, lent);
  const int calls_while_set = calls.count;
  ASSERT_EQ(qkv_set_executor(nullptr, nullptr), QKV_OK);
  attention(q, q, q, own);
  set_num_threads(threads);

  EXPECT_GE(calls_while_set, 1);
  EXPECT_EQ(calls.count, calls_while_set);
  EXPECT_EQ(std::vector<float>(own.as<float>(), own.as<float>() + own.num_elements()),
            std::vector<float>(lent.as<float>(), lent.as<float>() + lent.num_elements()));
}

TEST(CStatus, EveryKindOfExceptionHasItsStatusAndText) {
  EXPECT_EQ(guarded([] {}), QKV_OK);
  EXPECT_EQ(guarded([] { throw ShapeError("a"); }), QKV_ERROR_SHAPE);
  EXPECT_STREQ(qkv_last_error(), "a");
  EXPECT_EQ(guarded([] { throw DtypeError("b"); }), QKV_ERROR_DTYPE);
  EXPECT_STREQ(qkv_last_error(), "b");
  EXPECT_EQ(guarded([] { throw ValueError("c"); }), QKV_ERROR_VALUE);
  EXPECT_STREQ(qkv_last_error(), "c");
  EXPECT_EQ(guarded([] { throw std::bad_alloc(); }), QKV_ERROR_OUT_OF_MEMORY);
  EXPECT_STREQ(qkv_last_error(), "out of memory");
  EXPECT_EQ(guarded([] { throw std::logic_error("d"); }), QKV_ERROR_INTERNAL);
  EXPECT_STREQ(qkv_last_error(), "d");
  EXPECT_EQ(guarded([] { throw 5; }), QKV_ERROR_INTERNAL);
  EXPECT_STREQ(qkv_last_error(), "an exception that is no std::exception");
}

TEST(CStatus, SuccessLeavesTheLastError) {
  EXPECT_EQ(guarded([] { throw ValueError("still here"); }), QKV_ERROR_VALUE);
  EXPECT_EQ(guarded([] {}), QKV_OK);
  EXPECT_STREQ(qkv_last_error(), "still here");
}

TEST(CStatus, EachThreadHasItsOwnLastError) {
  EXPECT_EQ(guarded([] { throw ValueError("mine"); }), QKV_ERROR_VALUE);
  std::string before;
  std::string after;
  std::thread([&] {
    before = qkv_last_error();
    static_cast<void>(guarded([] { throw ValueError("theirs"); }));
    after = qkv_last_error();
  }).join();
  EXPECT_EQ(before, "");
  EXPECT_EQ(after, "theirs");
  EXPECT_STREQ(qkv_last_error(), "mine");
}

}  // namespace
}  // namespace qkv::c_api
