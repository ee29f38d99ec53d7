#include "base/target.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>

#include "base/raise.h"

namespace qkv {
namespace {

/// Points into the caller's list; null until the first use has read the environment.
std::atomic<const std::string_view*> g_active = nullptr;

const std::string_view* find_target(std::string_view source, std::string_view name,
                                    std::span<const std::string_view> available) {
  if (name.empty()) return available.data();
  const auto found = std::find(available.begin(), available.end(), name);
  if (found == available.end()) {
    std::string names;
    for (const std::string_view one : available) names += (names.empty() ? "" : ", ") + std::string(one);
    raise<ValueError>("{}: expected one of {}, got '{}'", source, names, name);
  }
  return &*found;
}

}  // namespace

std::string_view active_target(std::span<const std::string_view> available) {
  const std::string_view* active = g_active.load(std::memory_order_acquire);
  if (active != nullptr) return *active;
  const char* wanted = std::getenv("QKV_TARGET");
  active = find_target("QKV_TARGET", wanted == nullptr ? "" : wanted, available);
  const std::string_view* none = nullptr;
  // Another thread may have been faster, with a target that was forced since.
  if (!g_active.compare_exchange_strong(none, active, std::memory_order_acq_rel)) active = none;
  return *active;
}

void force_target(std::string_view name, std::span<const std::string_view> available) {
  g_active.store(find_target("qkv::set_target", name, available), std::memory_order_release);
}

}  // namespace qkv
