#ifndef QKV_SRC_KERNELS_KEY_ORDER_H_
#define QKV_SRC_KERNELS_KEY_ORDER_H_

#include <cstdint>

namespace qkv::kernels {

/// Part of the contract (docs/op/order.md): the running softmax steps from one absolute multiple of kKeyBlock to the
/// next, and each absolute kKeyChunk keys have a state of their own; chunk states merge left to right. A change moves
/// the last bits of every result.
inline constexpr std::int64_t kKeyBlock = 256;
inline constexpr std::int64_t kKeyChunk = 4096;

inline constexpr std::int64_t align_down(std::int64_t value, std::int64_t step) { return value / step * step; }
inline constexpr std::int64_t align_up(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_KEY_ORDER_H_
