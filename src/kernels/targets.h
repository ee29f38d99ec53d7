#ifndef QKV_SRC_KERNELS_TARGETS_H_
#define QKV_SRC_KERNELS_TARGETS_H_

#include <span>
#include <string>
#include <string_view>

namespace qkv::kernels {

/// Names of the SIMD targets that this build and this CPU both have, best first.
std::span<const std::string_view> simd_targets();

/// The version of the SIMD library, "1.0.3".
std::string highway_version();

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_TARGETS_H_
