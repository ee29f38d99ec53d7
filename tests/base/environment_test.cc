#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/cpu.h"
#include "qkv/error.h"
#include "qkv/runtime.h"

namespace qkv {
namespace {

/// What num_threads() says in a process that has never asked, under these variables; a text of the error if it throws.
/// Runs as a death test, since the variables are read once.
std::string threads_under(const char* qkv, const char* omp) {
  if (qkv != nullptr) setenv("QKV_NUM_THREADS", qkv, 1);
  if (qkv == nullptr) unsetenv("QKV_NUM_THREADS");
  if (omp != nullptr) setenv("OMP_NUM_THREADS", omp, 1);
  if (omp == nullptr) unsetenv("OMP_NUM_THREADS");
  try {
    return std::to_string(num_threads());
  } catch (const ValueError& error) {
    return error.what();
  }
}

#define EXPECT_THREADS(qkv, omp, expected)               \
  EXPECT_EXIT(                                           \
      {                                                  \
        const std::string got = threads_under(qkv, omp); \
        fprintf(stderr, "<%s>", got.c_str());            \
        _exit(0);                                        \
      },                                                 \
      ::testing::ExitedWithCode(0), ::testing::HasSubstr(expected))

TEST(EnvironmentDeathTest, OwnVariableComesFirst) {
  EXPECT_THREADS("3", "5", "<3>");
  EXPECT_THREADS(" 3 ", "5", "<3>");
  EXPECT_THREADS("3", "nonsense", "<3>");
}

TEST(EnvironmentDeathTest, ANumberThatNoSystemHasIsTaken) {
  EXPECT_THREADS("999999", nullptr, "<999999>");
  EXPECT_THREADS("2147483647", nullptr, "<2147483647>");
  EXPECT_THREADS("2147483648", nullptr, "QKV_NUM_THREADS");
}

TEST(EnvironmentDeathTest, ThenTheFirstNumberOfOpenMP) {
  EXPECT_THREADS(nullptr, "5", "<5>");
  EXPECT_THREADS("", "4,2", "<4>");
  EXPECT_THREADS(nullptr, " 4 , 2", "<4>");
}

TEST(EnvironmentDeathTest, ThenTheUsableCpus) {
  EXPECT_THREADS(nullptr, nullptr, "<" + std::to_string(num_usable_cpus()) + ">");
  EXPECT_THREADS("", "", "<" + std::to_string(num_usable_cpus()) + ">");
}

TEST(EnvironmentDeathTest, BadValuesAreNamed) {
  EXPECT_THREADS("0", nullptr, "QKV_NUM_THREADS: expected a number of threads, at least 1, got '0'");
  EXPECT_THREADS("-1", nullptr, "QKV_NUM_THREADS");
  EXPECT_THREADS("2,3", nullptr, "QKV_NUM_THREADS: expected a number of threads, at least 1, got '2,3'");
  EXPECT_THREADS("99999999999", nullptr, "QKV_NUM_THREADS");
  EXPECT_THREADS(nullptr, "four", "OMP_NUM_THREADS: expected a number of threads, at least 1, got 'four'");
  EXPECT_THREADS(nullptr, ",2", "OMP_NUM_THREADS");
}

TEST(EnvironmentDeathTest, SetNumThreadsNeedsNoEnvironment) {
  EXPECT_EXIT(
      {
        setenv("QKV_NUM_THREADS", "bad", 1);
        set_num_threads(2);
        _exit(num_threads() == 2 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace qkv
