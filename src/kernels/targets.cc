#include "kernels/targets.h"

#include <vector>

#include "kernels/forward_f32.h"
#include "kernels/highway_targets.h"
// After highway_targets.h, which says what is built.
#include "hwy/base.h"
#include "hwy/highway.h"

namespace qkv::kernels {

std::span<const std::string_view> simd_targets() {
  // Never destroyed: threads and destructors of others may call while the process exits.
  static const auto& names = *[] {
    auto* list = new std::vector<std::string_view>;
    for (const ForwardKernelF32& kernel : forward_kernels_f32()) list->push_back(kernel.target);
    return list;
  }();
  return names;
}

std::string highway_version() {
  return std::to_string(HWY_MAJOR) + "." + std::to_string(HWY_MINOR) + "." + std::to_string(HWY_PATCH);
}

}  // namespace qkv::kernels
