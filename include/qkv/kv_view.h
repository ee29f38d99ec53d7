#ifndef QKV_KV_VIEW_H_
#define QKV_KV_VIEW_H_

#include <cstdint>
#include <optional>

#include "qkv/attention.h"
#include "qkv/export.h"
#include "qkv/position.h"
#include "qkv/tensor.h"

namespace qkv {

/// What a rope turns keys and rows by.
enum class CachePositions : std::uint8_t {
  /// Key j of a sequence is at j for ever: it is turned once, as it comes in.
  kAbsolute,
  /// The places of StreamingLLM: keys are numbered as they lie in the cache once the row's window has left the others
  /// behind, sinks first. They are kept as they came and turned as they are read, and no position is ever beyond the
  /// cache.
  kCache,
};

/// Keys and values where a cache keeps them: what qkv::attention reads instead of k and v. Never owns. The caches of
/// qkv/kv_cache.h give theirs by view(); a pool of pages of your own can be described by hand.
///
/// Key j of a sequence is at position j, wherever it is kept: positions go on counting when early keys are dropped, and
/// no bit of a result depends on where a key is kept. What a rope turns by is the affair of `positions`.
struct KVView {
  /// [batch, num_kv_heads, slots, head_dim]: key j in slot j; or, with a page table, [num_pages, num_kv_heads, page_size,
  /// head_dim]. q's dtype, or 16 bits beside a q of at most 32, or int8 with scales; any strides.
  ConstTensorView k = {};
  /// The same of value_dim columns, whatever dtype k has.
  ConstTensorView v = {};
  /// Of an int8 k: float32, k's shape without the last axis. The key is float(int8) * scale, in float32.
  std::optional<ConstTensorView> k_scales = {};
  /// Of an int8 v.
  std::optional<ConstTensorView> v_scales = {};
  /// Keys of each sequence: int32 or int64, [batch].
  ConstTensorView lengths = {};
  /// int32 or int64, [batch, most pages]: entry p of a sequence is the page that holds its keys from p * page_size on.
  /// Pages may be shared and lie in any order; entries behind a sequence's last page are not looked at.
  std::optional<ConstTensorView> page_table = {};
  /// The first keys of a sequence that a window does not hide (StreamingLLM's attention sinks); causal, kv lengths and
  /// masks do.
  std::int64_t num_sinks = 0;
  /// Keys that a row sees where a call gives no window: its own and those before it, {window - 1, unbounded}.
  std::optional<std::int64_t> window = {};
  /// Makes a ring of the slots behind the sinks, key j >= num_sinks in slot num_sinks + (j - num_sinks) % (slots -
  /// num_sinks): int32 or int64, [batch], the lowest of those keys that has not been overwritten.
  std::optional<ConstTensorView> kept_from = {};
  /// Turns row i of q by its position, query_offset + i, before it meets a key: the keys have been turned by theirs. With
  /// any scaling but the dynamic one.
  std::optional<Rope> rope = {};
  /// kCache: the keys have not been turned. With L the left side of the window (the call's, or window - 1; unbounded: L
  /// is) and S = num_sinks, a row at p has left `shift = max(0, p - L - S)` keys behind. The row turns as one at p -
  /// shift, sinks as j, other keys as j - shift, and with dynamic scaling a row and all it sees as in a sequence of p -
  /// shift + 1. Which keys a row sees, and what outputs call them, is by absolute positions as ever. Needs a rope.
  CachePositions positions = CachePositions::kAbsolute;
};

/// attention over the keys of a cache: the same contract, the same bits as over k and v that hold the same numbers.
///
/// @param q    [batch, num_heads, q_len, head_dim]
/// @param kv   whose batch, num_kv_heads and head_dim fit q; kv_len is the longest of its lengths
/// @param out  [batch, num_heads, q_len, value_dim]
/// @param options  without kv_lens: the lengths are the view's. By default the last row of q is at a sequence's last key:
///                 append first, then attend.
/// @throws ShapeError, DtypeError, ValueError; where a row would see keys that a ring has overwritten, or logits of
///         dropped keys are asked for, an error says what is left
/// With a rope the bits are those of a call without it over rope.apply(q); positions of rows are from -2^53 to 2^53.
/// With CachePositions::kCache a row has the bits of a call in which it and every key were turned by their places for
/// that row, as rope.apply turns them, and hidden keys stay hidden. Keys of float32 and int8 are turned in f64 and
/// rounded to float32, those of 16 bits in f32 and not rounded again. Refused beside it: alibi_slopes, and logits
/// before masks of rows whose window has left keys behind.
/// Cost: as attention, and with a rope scratch of q's size. Few rows read K and V once, in the order in which they lie;
/// rows of a group of query heads share that. CachePositions::kCache turns the keys that a row sees, once for all rows
/// of the same shift: all that have left nothing behind, else each by itself. Scratch: these keys, turned, of each
/// sequence.
QKV_API void attention(ConstTensorView q, const KVView& kv, TensorView out, const AttentionOptions& options = {},
                       const AttentionOutputs& outputs = {});

namespace reference {
/// The same contract in scalar double precision.
QKV_API void attention(ConstTensorView q, const KVView& kv, TensorView out, const AttentionOptions& options = {},
                       const AttentionOutputs& outputs = {});
}  // namespace reference

}  // namespace qkv

#endif  // QKV_KV_VIEW_H_
