#ifndef QKV_SRC_ATTENTION_KV_TURNS_H_
#define QKV_SRC_ATTENTION_KV_TURNS_H_

#include <cstdint>

#include "attention/kv_rows.h"
#include "attention/rope_rows.h"
#include "base/aligned.h"
#include "qkv/position.h"
#include "qkv/tensor.h"

namespace qkv::attention_detail {

/// Keys on their way into a cache, each turned by its position and rounded once. Takes its memory when it is made, so that
/// nothing fails once keys are being written, and is kept from call to call: a token costs no allocation.
class KVTurning {
 public:
  /// @param keys  [batch, num_kv_heads, n, head_dim]: for all of this dtype
  /// @param to    the dtype of the cache
  KVTurning(const Rope& rope, const ConstTensorView& keys, Dtype to);

  bool is_for(const ConstTensorView& keys) const noexcept { return keys.dtype() == from_; }

  /// Keys [first, first + to.count) of a sequence, [num_kv_heads, n, head_dim], of which the first one is at `position`.
  void write(const ConstTensorView& keys, std::int64_t first, std::int64_t position, const KVSlots& to, KVRows& rows);

 private:
  /// The first of so many turns are those of positions from this one on.
  void set_turns(std::int64_t position, std::int64_t count);
  /// All heads of tokens [first, first + count).
  void rotate(const ConstTensorView& keys, std::int64_t first, std::int64_t count, KVRows::Place to);

  Dtype from_;
  Dtype turned_;  ///< what the kernel writes: the cache's dtype, or what pairs are turned in
  bool direct_;   ///< into the cache itself
  std::int64_t block_;
  RopeRows rows_;
  std::int64_t position_ = -1;  ///< of the first turn; the tokens of a batch are often at the same one
  std::int64_t num_turns_ = 0;
  AlignedBytes scratch_;  ///< a block of turned rows, before they are rounded
  KVRounding round_;
};

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_KV_TURNS_H_
