#ifndef QKV_SRC_ATTENTION_KV_CACHE_STATE_H_
#define QKV_SRC_ATTENTION_KV_CACHE_STATE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "attention/kv_pair.h"
#include "qkv/kv_cache.h"

namespace qkv {

struct KVCache::State {
  explicit State(const KVCacheOptions& given);

  attention_detail::KVShape shape() const;
  /// Keys that a sequence can have: a ring is never full, but positions end somewhere.
  std::int64_t most_keys() const noexcept;
  /// Slots that take turns: all behind the sinks.
  std::int64_t ring() const noexcept { return options.capacity - options.num_sinks; }
  /// What a ring holds of a sequence that grows to a length.
  std::int64_t lowest_kept(std::size_t sequence, std::int64_t length) const;
  attention_detail::KVSlots slots_of(std::size_t sequence, std::int64_t begin, std::int64_t end) const;
  void append(attention_detail::KVAddition& added);

  KVCacheOptions options;  ///< value_dim resolved
  attention_detail::KVPair pair;
  std::vector<std::int64_t> lengths;
  std::vector<std::int64_t> kept_from;  ///< of a ring: the lowest key behind the sinks that is still there
};

struct PagedKVCache::State {
  explicit State(const PagedKVCacheOptions& given);

  attention_detail::KVShape shape() const;
  std::int64_t pages_for(std::int64_t length) const noexcept {
    return length == 0 ? 0 : (length - 1) / options.page_size + 1;
  }
  std::int32_t& page(std::size_t sequence, std::int64_t index) { return table[place(sequence, index)]; }
  std::int32_t page(std::size_t sequence, std::int64_t index) const { return table[place(sequence, index)]; }
  /// Pages that a sequence must take to grow to a length, its own copy of a shared last one included. `leaving` counts
  /// the sequences that leave a page in this way: the last one that is left writes in place.
  std::int64_t pages_missing(std::size_t sequence, std::int64_t length, std::map<std::int32_t, std::int32_t>& leaving);
  void widen_table(std::int64_t pages);
  void take_pages(std::size_t sequence, std::int64_t length);
  void append(attention_detail::KVAddition& added);
  void shorten(std::size_t sequence, std::int64_t length);

  std::size_t place(std::size_t sequence, std::int64_t index) const noexcept {
    return sequence * static_cast<std::size_t>(table_width) + static_cast<std::size_t>(index);
  }

  PagedKVCacheOptions options;  ///< value_dim resolved
  attention_detail::KVPair pair;
  std::vector<std::int64_t> lengths;
  std::vector<std::int32_t> table;  ///< [batch][table_width]
  std::int64_t table_width = 0;
  std::vector<std::int32_t> users;  ///< sequences of each page
  std::vector<std::int32_t> free;   ///< pages without one, the next to be taken last
};

}  // namespace qkv

#endif  // QKV_SRC_ATTENTION_KV_CACHE_STATE_H_
