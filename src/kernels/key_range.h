#ifndef QKV_SRC_KERNELS_KEY_RANGE_H_
#define QKV_SRC_KERNELS_KEY_RANGE_H_

#include <algorithm>
#include <cstdint>

namespace qkv::kernels {

/// Keys [begin, end); begin >= end where there are none.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool empty() const noexcept { return begin >= end; }
};

/// The keys that some rows see: a range, less a hole that none of them looks into (between the sinks and a window).
/// The hole is whole key blocks, or {0, 0}.
struct KeySpan {
  KeyRange range;
  KeyRange hole;

  /// Keys of the span before `key`, which is not in the hole.
  std::int64_t index_of(std::int64_t key) const noexcept {
    return key - range.begin - (key >= hole.end ? hole.end - hole.begin : 0);
  }
  /// The part within some keys.
  KeySpan within(KeyRange keys) const noexcept {
    KeySpan part{{std::max(range.begin, keys.begin), std::min(range.end, keys.end)},
                 {std::max(hole.begin, keys.begin), std::min(hole.end, keys.end)}};
    if (part.hole.empty()) {
      part.hole = {};
    } else if (part.hole.begin == part.range.begin) {
      part.range.begin = part.hole.end;
      part.hole = {};
    }
    return part;
  }
  std::int64_t size() const noexcept { return range.end - range.begin - (hole.end - hole.begin); }
  /// The key that has this index.
  std::int64_t key_at(std::int64_t index) const noexcept {
    const std::int64_t key = range.begin + index;
    return hole.empty() || key < hole.begin ? key : key + hole.end - hole.begin;
  }
};

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_KEY_RANGE_H_
