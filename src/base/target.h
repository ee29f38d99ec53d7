#ifndef QKV_SRC_BASE_TARGET_H_
#define QKV_SRC_BASE_TARGET_H_

#include <span>
#include <string_view>

namespace qkv {

// Which instruction set is in use. The names come from above (the kernels know what was built); this holds the choice.
// `available` is never empty, best first, and lives as long as the process.

/// The name in use: what force_target set, else QKV_TARGET (read once), else the best.
/// @throws ValueError if QKV_TARGET names none of `available`.
std::string_view active_target(std::span<const std::string_view> available);

/// Forces one; "" goes back to the best. @throws ValueError for a name that is not in `available`.
void force_target(std::string_view name, std::span<const std::string_view> available);

}  // namespace qkv

#endif  // QKV_SRC_BASE_TARGET_H_
