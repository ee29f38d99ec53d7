#ifndef QKV_SRC_ATTENTION_TARGETS_H_
#define QKV_SRC_ATTENTION_TARGETS_H_

#include <string_view>

namespace qkv::attention_detail {

inline constexpr std::string_view kReferenceTarget = "reference";

/// The target that a call started now runs on: a name of kernels::simd_targets(), or kReferenceTarget.
/// @throws ValueError if QKV_TARGET names none.
std::string_view current_target();

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_TARGETS_H_
