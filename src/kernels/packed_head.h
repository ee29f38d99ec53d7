#ifndef QKV_SRC_KERNELS_PACKED_HEAD_H_
#define QKV_SRC_KERNELS_PACKED_HEAD_H_

#include <cstdint>
#include <optional>

#include "base/aligned.h"
#include "kernels/forward_problem.h"
#include "kernels/visibility.h"

namespace qkv::kernels {

/// K of one kv head in panels, ready for the register tile, and what is known about the numbers in it. The layout depends
/// on the target; words of 64 keys are packed independently of each other.
struct PackedHead {
  std::int64_t batch = 0;
  std::int64_t kv_head = 0;
  KeyRange range;                          ///< packed keys; begin is a multiple of 64
  float* keys = nullptr;                   ///< panels of [head_dim][panel keys], from range.begin on; null = not packed
  std::uint32_t* key_magnitude = nullptr;  ///< a word: bits of the largest |k|; NaN is above infinity

  std::int64_t word_of(std::int64_t key) const noexcept { return (key - range.begin) / kWordKeys; }
  std::int64_t num_words() const noexcept { return (range.end - range.begin + kWordKeys - 1) / kWordKeys; }
};

/// Bits of +infinity: a magnitude below is a finite number.
inline constexpr std::uint32_t kInfinityBits = 0x7f800000;

/// Memory for one PackedHead, reused from head to head.
class PackedHeadBuffer {
 public:
  /// Lays out a head for keys `range`; packs nothing yet.
  PackedHead layout(const ForwardProblem& problem, std::int64_t batch, std::int64_t kv_head, KeyRange range);

 private:
  float* reserve(std::optional<std::int64_t> floats, std::int64_t more);

  static constexpr std::size_t kSmall = 1024;  // floats: the smallest calls allocate nothing for their keys

  AlignedBytes memory_;
  std::size_t capacity_ = 0;  // floats
  alignas(kAlignment) float small_[kSmall];
};

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_PACKED_HEAD_H_
