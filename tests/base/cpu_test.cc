#include "base/cpu.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <fstream>
#include <sstream>
#include <thread>

namespace qkv {
namespace {

TEST(Cpu, HasAName) {
  const std::string name = cpu_name();
  EXPECT_FALSE(name.empty());
  EXPECT_NE(name.front(), ' ');
  EXPECT_NE(name.back(), ' ');
  std::ifstream file("/proc/cpuinfo");
  std::stringstream text;
  text << file.rdbuf();
  if (text.str().find("model name") != std::string::npos) {
    EXPECT_NE(text.str().find(name), std::string::npos) << name << " is not what the kernel says";
  }
}

TEST(Cpu, CountFollowsTheAffinityMask) {
  EXPECT_GE(num_usable_cpus(), 1);
  int narrowed = 0;
  // In a thread of its own, so that the mask of the others stays.
  std::thread([&narrowed] {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    ASSERT_EQ(sched_getaffinity(0, sizeof(mask), &mask), 0);
    int first = 0;
    while (!CPU_ISSET(first, &mask)) ++first;
    CPU_ZERO(&mask);
    CPU_SET(first, &mask);
    ASSERT_EQ(sched_setaffinity(0, sizeof(mask), &mask), 0);
    narrowed = num_usable_cpus();
  }).join();
  EXPECT_EQ(narrowed, 1);
}

}  // namespace
}  // namespace qkv
