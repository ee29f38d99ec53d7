#include "qkv/runtime.h"

#include <span>

#include "attention/targets.h"
#include "base/build_info.h"
#include "base/cpu.h"
#include "base/target.h"
#include "kernels/targets.h"

namespace qkv {
namespace {

std::span<const std::string_view> all_targets() {
  // Never destroyed: threads and destructors of others may call while the process exits.
  static const auto& targets = *[] {
    const auto simd = kernels::simd_targets();
    auto* names = new std::vector<std::string_view>(simd.begin(), simd.end());
    names->push_back(attention_detail::kReferenceTarget);
    return names;
  }();
  return targets;
}

}  // namespace

std::string_view attention_detail::current_target() { return active_target(all_targets()); }

std::string_view version() noexcept { return kVersion; }

std::vector<std::string> available_targets() {
  const auto targets = all_targets();
  return {targets.begin(), targets.end()};
}

std::string target() { return std::string(attention_detail::current_target()); }

void set_target(std::string_view name) { force_target(name, all_targets()); }

Config config() {
  return {.version = std::string(version()),
          .target = target(),
          .targets = available_targets(),
          .threads = num_threads(),
          .compiler = std::string(kCompiler),
          .build_type = std::string(kBuildType),
          .cpu = cpu_name(),
          .highway = kernels::highway_version()};
}

}  // namespace qkv
