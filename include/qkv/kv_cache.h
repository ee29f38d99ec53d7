#ifndef QKV_KV_CACHE_H_
#define QKV_KV_CACHE_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>

#include "qkv/dtype.h"
#include "qkv/export.h"
#include "qkv/kv_view.h"
#include "qkv/position.h"
#include "qkv/tensor.h"

namespace qkv {

/// What a cache is made for. Every member has a default, so that only what matters is named.
struct KVCacheOptions {
  std::int64_t batch = 1;                      ///< sequences; more later by grow()
  std::int64_t num_kv_heads = 1;               ///< heads of k and v, not of q: what GQA and MQA save
  std::int64_t head_dim = 64;                  ///< columns of k
  std::int64_t capacity = 0;                   ///< slots: keys that a sequence can hold
  std::optional<std::int64_t> value_dim = {};  ///< columns of v; default head_dim
  /// float32, float64, float16, bfloat16 or int8, k and v each for itself. Numbers are rounded once, as they come in. int8
  /// keeps a float32 scale for each token, head and tensor: scale = largest |x| / 127, without a floor, and x becomes
  /// round(x / scale), so that no number is off by more than 0.5001 * scale. A token with a number that is no finite
  /// float32 is NaN as a whole.
  Dtype k_dtype = Dtype::kFloat32;
  Dtype v_dtype = Dtype::kFloat32;
  /// Makes the cache a ring: a row sees this many keys, its own among them, and the oldest make room. The capacity is at
  /// least num_sinks + window; m slots more let m + 1 keys be appended between two calls of attention.
  std::optional<std::int64_t> window = {};
  /// The first keys of a sequence that are never dropped and that no window hides (StreamingLLM's attention sinks).
  std::int64_t num_sinks = 0;
  /// Rotary positions: append turns key j of a sequence by position j, and attention a row of q by its own. Of head_dim
  /// columns, with any scaling but the dynamic one, whose frequencies change with the length.
  std::optional<Rope> rope = {};
  /// kCache (StreamingLLM): append keeps keys as they come, and attention turns them by their places in the cache once
  /// a row's window has left others behind, as KVView::positions says. Needs a rope, which may then have dynamic
  /// scaling.
  CachePositions positions = CachePositions::kAbsolute;
};

/// Keys and values of a batch of sequences, each growing at its own pace: append, then attend.
///
///     qkv::KVCache cache({.num_kv_heads = 8, .head_dim = 128, .capacity = 4096});
///     cache.append(k, v);
///     qkv::attention(q, cache.view(), out, {.causal = true});
///
/// The bits are those of attention over k and v of the same numbers, however they were appended; with a rope those of
/// attention over rope.apply(q) and rope.apply(k). Keys are turned before they are rounded to the cache's dtype: once;
/// with CachePositions::kCache they are rounded as they come and turned as they are read.
/// Memory: batch * num_kv_heads * capacity * (head_dim * size(k_dtype) + value_dim * size(v_dtype)) bytes, and 4 bytes
/// more for each of k and v that is int8; all of it is taken when the cache is made. With a rope, the first append takes
/// room for 32 turns.
/// Moves, does not copy. Several threads may read; append, truncate and grow need the cache alone.
class QKV_API KVCache {
 public:
  /// @throws ValueError, DtypeError; std::bad_alloc without memory.
  explicit KVCache(const KVCacheOptions& options);
  KVCache(KVCache&&) noexcept;
  KVCache& operator=(KVCache&&) noexcept;
  ~KVCache();

  /// Adds keys and values to the end of every sequence: k [batch, num_kv_heads, n, head_dim], v [batch, num_kv_heads, n,
  /// value_dim], any real dtype and strides. `lengths`, one a sequence, says how many of the n are real; the default is
  /// all. Either everything is added or nothing.
  /// @throws ShapeError, DtypeError; ValueError where a sequence has no room: it says how full it is, and for memory of
  /// the cache itself; std::bad_alloc. Positions that turn end at 2^53, others, and those of a ring with
  /// CachePositions::kCache, at 2^60.
  void append(ConstTensorView k, ConstTensorView v, std::span<const std::int64_t> lengths = {});

  /// Drops the last keys of each sequence, down to these lengths. @throws ValueError for a length beyond the present one,
  /// or one whose window a ring has already overwritten.
  void truncate(std::span<const std::int64_t> lengths);

  /// Adds empty sequences, up to `batch` in all; those that are there keep their keys.
  /// @throws ValueError for fewer than there are; std::bad_alloc, and then nothing has changed.
  void grow(std::int64_t batch);

  /// Keys of each sequence, those that a ring has dropped counted.
  std::span<const std::int64_t> lengths() const;
  const KVCacheOptions& options() const;
  /// Bytes of keys, values and scales, by the formula above.
  std::int64_t nbytes() const;
  /// What attention reads. Valid until the cache is changed, moved from or destroyed.
  KVView view() const;

  /// Writes everything that a sequence holds to a safetensors file: k, v, their scales, lengths, the options of the
  /// rope and what it turns by; the bits of what is computed from it stay. The file appears whole or not at all.
  /// @throws std::filesystem::filesystem_error
  void save(const std::filesystem::path& path) const;
  /// @throws std::filesystem::filesystem_error; ValueError for a file that save has not written.
  static KVCache load(const std::filesystem::path& path);

 private:
  struct State;
  State& state() const;
  explicit KVCache(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

/// What a paged cache is made for.
struct PagedKVCacheOptions {
  std::int64_t batch = 1;                      ///< sequences; more later by grow()
  std::int64_t num_kv_heads = 1;               ///< heads of k and v
  std::int64_t head_dim = 64;                  ///< columns of k
  std::int64_t num_pages = 0;                  ///< pages that all sequences share
  std::int64_t page_size = 64;                 ///< keys a page; multiples of 16 are read fastest
  std::optional<std::int64_t> value_dim = {};  ///< columns of v; default head_dim
  Dtype k_dtype = Dtype::kFloat32;             ///< as in KVCacheOptions
  Dtype v_dtype = Dtype::kFloat32;
  std::optional<Rope> rope = {};  ///< as in KVCacheOptions
  /// As in KVCacheOptions. The window is that of a call: without one, places are positions.
  CachePositions positions = CachePositions::kAbsolute;
};

/// The same in pages: sequences take pages as they grow, give them back when they shrink, and share those of a common
/// prefix. A shared page is copied when one of its sequences writes to it.
/// Memory: num_pages * num_kv_heads * page_size times what a key of KVCache takes.
class QKV_API PagedKVCache {
 public:
  /// @throws ValueError, DtypeError; std::bad_alloc without memory.
  explicit PagedKVCache(const PagedKVCacheOptions& options);
  PagedKVCache(PagedKVCache&&) noexcept;
  PagedKVCache& operator=(PagedKVCache&&) noexcept;
  ~PagedKVCache();

  /// As KVCache::append. @throws ValueError where pages run out: it says how many are needed, free and there.
  void append(ConstTensorView k, ConstTensorView v, std::span<const std::int64_t> lengths = {});
  /// Drops the last keys of each sequence; 0 makes a sequence empty.
  void truncate(std::span<const std::int64_t> lengths);
  /// Adds empty sequences, up to `batch` in all.
  void grow(std::int64_t batch);
  /// Makes an empty sequence begin with the first `length` keys of another, whose pages it shares.
  /// @throws ValueError unless both exist, `to` is empty and `from` has as many keys.
  void share(std::int64_t from, std::int64_t to, std::int64_t length);

  /// Keys of each sequence.
  std::span<const std::int64_t> lengths() const;
  const PagedKVCacheOptions& options() const;
  /// Bytes of all pages, used or not.
  std::int64_t nbytes() const;
  std::int64_t num_free_pages() const;
  /// What attention reads. Valid until the cache is changed, moved from or destroyed.
  KVView view() const;

  /// As KVCache: the pages in use, shared ones once.
  void save(const std::filesystem::path& path) const;
  static PagedKVCache load(const std::filesystem::path& path);

 private:
  struct State;
  State& state() const;
  explicit PagedKVCache(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace qkv

#endif  // QKV_KV_CACHE_H_
