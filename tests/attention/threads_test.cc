// Numbers of threads that no system has, and environments that cannot be read: through whole calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "qkv/error.h"
#include "support/attend.h"
#include "support/call.h"

namespace qkv::support {
namespace {

/// More rows than the largest number of pieces that a call is cut into, and work enough to be cut.
class Threads : public ::testing::Test {
 protected:
  static Results run(Dtype dtype) {
    Random random(3);
    const Tensor q = random.normal_tensor({1, 1, 17'000, 4}, dtype);
    const Tensor k = random.normal_tensor({1, 1, 8, 4}, dtype);
    const Tensor v = random.normal_tensor({1, 1, 8, 4}, dtype);
    return attend(&attention, q, k, v);
  }
};

TEST_F(Threads, AHundredThousandGiveTheBitsOfOne) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    const ThreadScope one(1);
    const Results expected = run(dtype);
    const ThreadScope many(100'000);
    EXPECT_EQ(num_threads(), 100'000);
    expect_same_bits(run(dtype), expected);
  }
}

/// In processes of their own, begun anew: the environment is read once.
class ThreadsDeathTest : public Threads {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  /// A call of one row and key under this QKV_NUM_THREADS; prints its result, or what is wrong.
  [[noreturn]] static void tiny_call(const char* threads, Dtype dtype) {
    setenv("QKV_NUM_THREADS", threads, 1);
    const Tensor one = tensor_of({1, 1, 1, 1}, dtype, {7});
    Tensor out({1, 1, 1, 1}, dtype);
    try {
      attention(one, one, one, out);
      fprintf(stderr, "<%g>", read(out, {0, 0, 0, 0}));
    } catch (const ValueError& error) {
      fprintf(stderr, "<%s>", error.what());
    }
    _exit(0);
  }

  [[noreturn]] static void large_call(const char* threads, Dtype dtype) {
    setenv("QKV_NUM_THREADS", threads, 1);
    const Results many = run(dtype);
    const int read_from_environment = num_threads();
    set_num_threads(1);
    expect_same_bits(many, run(dtype));
    fprintf(stderr, "<%d threads, %s>", read_from_environment, HasFailure() ? "other bits" : "same bits");
    _exit(0);
  }
};

TEST_F(ThreadsDeathTest, ATinyCallRefusesABadEnvironment) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const std::string bad : {"0", "-1", "four", "2.5", "99999999999"}) {
      SCOPED_TRACE(bad);
      EXPECT_EXIT(
          tiny_call(bad.c_str(), dtype), ::testing::ExitedWithCode(0),
          ::testing::HasSubstr("<QKV_NUM_THREADS: expected a number of threads, at least 1, got '" + bad + "'>"));
    }
    EXPECT_EXIT(tiny_call("2", dtype), ::testing::ExitedWithCode(0), ::testing::HasSubstr("<7>"));
  }
}

TEST_F(ThreadsDeathTest, AHugeEnvironmentIsTaken) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    EXPECT_EXIT(large_call("999999", dtype), ::testing::ExitedWithCode(0),
                ::testing::HasSubstr("<999999 threads, same bits>"));
  }
}

/// A static object that outlives whatever the library keeps: it is made before the first call.
struct CallsWhenDestroyed {
  ~CallsWhenDestroyed() {
    const Tensor one = tensor_of({1, 1, 1, 1}, Dtype::kFloat32, {7});
    Tensor out({1, 1, 1, 1}, Dtype::kFloat32);
    attention(one, one, one, out);
    fprintf(stderr, "<%g at exit>", read(out, {0, 0, 0, 0}));
  }
};

TEST_F(ThreadsDeathTest, ACallWhileTheProcessExits) {
  EXPECT_EXIT(
      {
        static const CallsWhenDestroyed last;
        const ThreadScope two(2);
        run(Dtype::kFloat32);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "<7 at exit>");
}

}  // namespace
}  // namespace qkv::support
