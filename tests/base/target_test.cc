#include "base/target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "qkv/error.h"

namespace qkv {
namespace {

constexpr std::array<std::string_view, 3> kTargets{"best", "middle", "reference"};

TEST(Target, IsTheBestUnlessForced) {
  force_target("", kTargets);
  EXPECT_EQ(active_target(kTargets), "best");
  force_target("middle", kTargets);
  EXPECT_EQ(active_target(kTargets), "middle");
  force_target("", kTargets);
  EXPECT_EQ(active_target(kTargets), "best");
}

TEST(Target, AnUnknownNameIsRefusedAndChangesNothing) {
  force_target("middle", kTargets);
  try {
    force_target("avx9", kTargets);
    FAIL() << "did not throw";
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(), "qkv::set_target: expected one of best, middle, reference, got 'avx9'");
  }
  EXPECT_EQ(active_target(kTargets), "middle");
}

/// In a process that has not yet asked: prints the first answer, and those when the variable has changed.
void print_targets(const char* variable) {
  setenv("QKV_TARGET", variable, 1);
  try {
    const std::string first(active_target(kTargets));
    setenv("QKV_TARGET", "reference", 1);
    const std::string second(active_target(kTargets));
    setenv("QKV_TARGET", "avx9", 1);
    fprintf(stderr, "<%s %s %s>", first.c_str(), second.c_str(), std::string(active_target(kTargets)).c_str());
  } catch (const ValueError& error) {
    fprintf(stderr, "<%s>", error.what());
  }
  _exit(0);
}

TEST(TargetDeathTest, EnvironmentIsReadOnce) {
  EXPECT_EXIT(print_targets("middle"), ::testing::ExitedWithCode(0), ::testing::HasSubstr("<middle middle middle>"));
  EXPECT_EXIT(print_targets(""), ::testing::ExitedWithCode(0), ::testing::HasSubstr("<best best best>"));
}

TEST(TargetDeathTest, BadEnvironmentIsNamed) {
  EXPECT_EXIT(print_targets("avx9"), ::testing::ExitedWithCode(0),
              ::testing::HasSubstr("<QKV_TARGET: expected one of best, middle, reference, got 'avx9'>"));
}

}  // namespace
}  // namespace qkv
