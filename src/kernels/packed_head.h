#ifndef QKV_SRC_KERNELS_PACKED_HEAD_H_
#define QKV_SRC_KERNELS_PACKED_HEAD_H_

#include <cstdint>
#include <optional>

#include "base/aligned.h"
#include "kernels/forward_problem.h"
#include "kernels/visibility.h"

namespace qkv::kernels {

/// K of one kv head in panels, ready for the register tile, V where the tile can read it, and what is known about the
/// numbers in them. The layout depends on the target; words of 64 keys are packed independently of each other.
struct PackedHead {
  KeyRange range;                 ///< packed keys; begin is a multiple of 64
  float* keys = nullptr;          ///< panels of [head_dim][panel keys], from range.begin on
  float* value_copy = nullptr;    ///< [keys][value_stride], where V cannot be read in place
  const float* values = nullptr;  ///< row of key first_value: value_copy or the caller's memory
  std::int64_t first_value = 0;
  std::int64_t value_stride = 0;             ///< between rows of `values`, in elements
  std::uint32_t* key_magnitude = nullptr;    ///< a word: bits of the largest |k|; NaN is above infinity
  std::uint32_t* value_magnitude = nullptr;  ///< a word: bits of the largest |v|

  std::int64_t value_columns = 0;  ///< of `values`: value_dim, or whole vectors in a copy

  const float* value_row(std::int64_t key) const noexcept { return values + (key - first_value) * value_stride; }
  std::int64_t word_of(std::int64_t key) const noexcept { return (key - range.begin) / kWordKeys; }
  std::int64_t num_words() const noexcept { return (range.end - range.begin + kWordKeys - 1) / kWordKeys; }
};

/// Bits of +infinity: a magnitude below is a finite number.
inline constexpr std::uint32_t kInfinityBits = 0x7f800000;

/// Memory for one PackedHead, reused from head to head.
class PackedHeadBuffer {
 public:
  /// Lays out a head for keys `range` on a target with `lanes` floats a vector; packs nothing yet.
  PackedHead layout(const ForwardProblem& problem, std::int64_t batch, std::int64_t kv_head, KeyRange range,
                    std::int64_t lanes);

 private:
  void reserve(std::optional<std::int64_t> floats, std::int64_t more);

  AlignedBytes memory_;
  std::size_t capacity_ = 0;  // floats
};

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_PACKED_HEAD_H_
