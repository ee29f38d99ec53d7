#ifndef QKV_SRC_KERNELS_KEY_PLACES_H_
#define QKV_SRC_KERNELS_KEY_PLACES_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/key_range.h"

namespace qkv::kernels {

/// Where a key lies in k and v: at [entry, kv_head, row].
struct KeyPlace {
  std::int64_t entry = 0;
  std::int64_t row = 0;
  std::int64_t count = 0;  ///< keys from this one on that lie in consecutive rows of the entry
};

/// Where the keys of each batch are kept: one after the other, in pages, or in a ring behind the first few (sinks). The
/// bits of a result depend on a key's position and never on its place.
class KeyPlaces {
 public:
  /// Key j of batch b at [b, kv_head, j].
  KeyPlaces() = default;

  /// Page p of a batch, keys from p * page_size on, is entry table[batch * pages_a_batch + p].
  static KeyPlaces in_pages(std::vector<std::int64_t> table, std::int64_t pages_a_batch, std::int64_t page_size) {
    KeyPlaces places;
    places.table_ = std::move(table);
    places.pages_a_batch_ = pages_a_batch;
    places.page_size_ = page_size;
    return places;
  }

  /// Keys from `fixed` on take turns in the `turns` rows behind those.
  static KeyPlaces in_ring(std::int64_t fixed, std::int64_t turns) {
    KeyPlaces places;
    places.fixed_ = fixed;
    places.turns_ = turns;
    return places;
  }

  /// Where one batch keeps its keys, as batch 0: pages stay entries of the pool, slots are then those of operands that
  /// begin with this batch.
  KeyPlaces of_batch(std::int64_t batch) const {
    KeyPlaces places = *this;
    if (!in_pages()) return places;
    const auto first = table_.begin() + static_cast<std::ptrdiff_t>(batch * pages_a_batch_);
    places.table_.assign(first, first + static_cast<std::ptrdiff_t>(pages_a_batch_));
    return places;
  }

  bool in_pages() const noexcept { return page_size_ > 0; }
  bool consecutive() const noexcept { return page_size_ == 0 && turns_ == 0; }

  KeyPlace operator()(std::int64_t batch, std::int64_t key) const noexcept {
    if (consecutive()) [[likely]]
      return {batch, key, std::numeric_limits<std::int64_t>::max()};
    if (page_size_ > 0) {
      const std::int64_t row = key % page_size_;
      return {table_[static_cast<std::size_t>(batch * pages_a_batch_ + key / page_size_)], row, page_size_ - row};
    }
    if (key < fixed_) return {batch, key, fixed_ - key};
    const std::int64_t turn = (key - fixed_) % turns_;
    return {batch, fixed_ + turn, turns_ - turn};
  }

  /// Calls visit(keys, place of the first) for the parts of a range that lie in consecutive rows, in order.
  template <class Visit>
  void for_each_part(std::int64_t batch, KeyRange keys, const Visit& visit) const {
    while (keys.begin < keys.end) {
      const KeyPlace place = (*this)(batch, keys.begin);
      const std::int64_t end = place.count < keys.end - keys.begin ? keys.begin + place.count : keys.end;
      visit(KeyRange{keys.begin, end}, place);
      keys.begin = end;
    }
  }

 private:
  std::vector<std::int64_t> table_;
  std::int64_t pages_a_batch_ = 0;
  std::int64_t page_size_ = 0;
  std::int64_t fixed_ = 0;
  std::int64_t turns_ = 0;
};

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_KEY_PLACES_H_
