#ifndef QKV_SRC_KERNELS_SLOT_INDEX_H_
#define QKV_SRC_KERNELS_SLOT_INDEX_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace qkv::kernels {

/// The inverse of a list of chosen numbers (heads or rows, in any order, repeats allowed): at which places of the list
/// does a number stand?
class SlotIndex {
 public:
  struct Slot {
    std::int64_t chosen = 0;
    std::int64_t place = 0;
    friend auto operator<=>(const Slot&, const Slot&) = default;
  };

  SlotIndex() = default;
  explicit SlotIndex(std::span<const std::int64_t> list) {
    slots_.reserve(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) slots_.push_back({list[i], static_cast<std::int64_t>(i)});
    std::sort(slots_.begin(), slots_.end());
  }

  std::span<const Slot> of(std::int64_t chosen) const {
    const auto first = std::lower_bound(slots_.begin(), slots_.end(), Slot{chosen, 0});
    auto last = first;
    while (last != slots_.end() && last->chosen == chosen) ++last;
    return {first, last};
  }

  /// The slots of numbers [begin, end), counted from `begin`.
  SlotIndex within(std::int64_t begin, std::int64_t end) const {
    SlotIndex part;
    for (auto slot = std::lower_bound(slots_.begin(), slots_.end(), Slot{begin, 0});
         slot != slots_.end() && slot->chosen < end; ++slot) {
      part.slots_.push_back({slot->chosen - begin, slot->place});
    }
    return part;
  }

 private:
  std::vector<Slot> slots_;
};

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_SLOT_INDEX_H_
