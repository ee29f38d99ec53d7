#ifndef QKV_SRC_KERNELS_PACKED_HEAD_H_
#define QKV_SRC_KERNELS_PACKED_HEAD_H_

#include <algorithm>
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
  KeySpan span;                            ///< packed keys; begins at a multiple of 64
  float* keys = nullptr;                   ///< panels of [dims, or pairs of them][panel keys]; null = not packed
  std::uint32_t* key_magnitude = nullptr;  ///< a word: bits of the largest |k|; NaN is above infinity

  std::int64_t word_of(std::int64_t key) const noexcept { return span.index_of(key) / kWordKeys; }
  std::int64_t num_words() const noexcept { return (span.size() + kWordKeys - 1) / kWordKeys; }
  /// The keys of a word.
  KeyRange keys_of(std::int64_t word) const noexcept {
    const std::int64_t begin = span.key_at(word * kWordKeys);
    return {begin, std::min(begin + kWordKeys, span.range.end)};
  }
};

/// Bits of +infinity: a magnitude below is a finite number.
inline constexpr std::uint32_t kInfinityBits = 0x7f800000;

/// Memory for one PackedHead, reused from head to head.
class PackedHeadBuffer {
 public:
  /// Lays out a head for the keys of a span; packs nothing yet.
  PackedHead layout(const ForwardProblem& problem, std::int64_t batch, std::int64_t kv_head, KeySpan span);

 private:
  float* reserve(std::optional<std::int64_t> floats, std::int64_t more);

  static constexpr std::size_t kSmall = 1024;  // floats: the smallest calls allocate nothing for their keys

  AlignedBytes memory_;
  std::size_t capacity_ = 0;  // floats
  alignas(kAlignment) float small_[kSmall];
};

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_PACKED_HEAD_H_
