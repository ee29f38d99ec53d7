#include "base/cpu.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <string_view>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

#include "base/text.h"

namespace qkv {
namespace {

#if defined(__x86_64__) || defined(__i386__)
std::string name_from_cpu() {
  constexpr unsigned kFirstLeaf = 0x80000002U;
  constexpr unsigned kNumLeaves = 3;
  std::array<unsigned, 4 * kNumLeaves> registers = {};
  for (unsigned i = 0; i < kNumLeaves; ++i) {
    unsigned* r = registers.data() + 4 * static_cast<std::size_t>(i);
    if (__get_cpuid(kFirstLeaf + i, r, r + 1, r + 2, r + 3) == 0) return {};
  }
  std::array<char, sizeof(registers) + 1> text = {};
  std::memcpy(text.data(), registers.data(), sizeof(registers));
  return std::string(trimmed(text.data()));
}
#else
std::string name_from_cpu() { return {}; }
#endif

std::string name_from_kernel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string_view key = trimmed(std::string_view(line).substr(0, colon));
    if (key == "model name" || key == "Hardware") return std::string(trimmed(std::string_view(line).substr(colon + 1)));
  }
  return {};
}

}  // namespace

std::string cpu_name() {
  std::string name = name_from_cpu();
  if (name.empty()) name = name_from_kernel();
  return name.empty() ? "unknown" : name;
}

int num_usable_cpus() noexcept {
#if defined(__linux__)
  // A cpu_set_t holds 1024 CPUs; the kernel refuses a mask that is smaller than its own.
  for (std::size_t sets = 1; sets <= 64; sets *= 2) {
    cpu_set_t* mask = CPU_ALLOC(sets * CPU_SETSIZE);
    if (mask == nullptr) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(sets * CPU_SETSIZE);
    const bool known = sched_getaffinity(0, bytes, mask) == 0;
    const int count = known ? CPU_COUNT_S(bytes, mask) : 0;
    CPU_FREE(mask);
    if (known) return std::max(1, count);
  }
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace qkv
