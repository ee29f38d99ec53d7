#include "output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace qkv::cli {
namespace {

/// A terminal of our own, and a variable of the environment for a while.
class OutputOnATerminal : public testing::Test {
 protected:
  void SetUp() override {
    int terminal = -1;
    // A bare container may have no /dev/pts.
    if (openpty(&controller_, &terminal, nullptr, nullptr, nullptr) != 0) GTEST_SKIP() << "no terminals here";
    file_ = fdopen(terminal, "w");
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
  }
  void TearDown() override {
    if (file_ != nullptr) std::fclose(file_);
    if (controller_ >= 0) close(controller_);
    unsetenv("NO_COLOR");
  }

  int controller_ = -1;
  std::FILE* file_ = nullptr;
};

TEST_F(OutputOnATerminal, HasColors) {
  EXPECT_TRUE(Output(file_).is_terminal());
  EXPECT_TRUE(Output(file_).has_color());
  EXPECT_EQ(Output(file_).paint(Color::kGreen, "ok"), "\x1b[32mok\x1b[0m");
}

TEST_F(OutputOnATerminal, NoColorIsRespectedUnlessEmpty) {
  setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(Output(file_).has_color());
  EXPECT_TRUE(Output(file_).is_terminal());
  EXPECT_EQ(Output(file_).paint(Color::kRed, "FAILED"), "FAILED");
  setenv("NO_COLOR", "", 1);
  EXPECT_TRUE(Output(file_).has_color());
}

TEST_F(OutputOnATerminal, DumbTerminalHasNoColors) {
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(Output(file_).has_color());
  unsetenv("TERM");
  EXPECT_FALSE(Output(file_).has_color());
}

TEST(Output, FileHasNoColors) {
  setenv("TERM", "xterm", 1);
  std::FILE* file = std::tmpfile();
  EXPECT_FALSE(Output(file).is_terminal());
  EXPECT_FALSE(Output(file).has_color());
  std::fclose(file);
}

TEST(Output, FullDiskIsNoticed) {
  std::FILE* file = std::fopen("/dev/full", "w");
  if (file == nullptr) GTEST_SKIP() << "no /dev/full here";
  try {
    Output(file).write("text");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const OutputError& error) {
    EXPECT_FALSE(error.is_broken_pipe());
    EXPECT_NE(std::string(error.what()).find("cannot write the output: "), std::string::npos);
  }
  std::fclose(file);
}

}  // namespace
}  // namespace qkv::cli
