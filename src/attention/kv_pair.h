#ifndef QKV_SRC_ATTENTION_KV_PAIR_H_
#define QKV_SRC_ATTENTION_KV_PAIR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "attention/kv_rows.h"
#include "attention/kv_turns.h"
#include "qkv/tensor.h"

namespace qkv::attention_detail {

/// Sizes of the memory of a cache: sequences of slots, or pages.
struct KVShape {
  std::int64_t entries = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t slots = 0;
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;
  Dtype k_dtype = Dtype::kFloat32;
  Dtype v_dtype = Dtype::kFloat32;

  /// Refuses what no cache can have, by the names of the options. `function` begins the errors.
  void check(std::string_view function) const;
};

/// The keys and values of a cache, which always hold the same tokens.
struct KVPair {
  KVRows k;
  KVRows v;
  std::optional<Rope> rope;            ///< of keys that are turned as they come in, by their positions
  std::unique_ptr<KVTurning> turning;  ///< made for the keys that came last

  KVPair() = default;
  explicit KVPair(const KVShape& shape);

  /// Takes what turning such keys needs, unless that is there.
  void prepare(const ConstTensorView& keys);

  void copy(const KVSlots& to, const KVPair& other, const KVSlots& from) {
    k.copy(to, other.k, from);
    v.copy(to, other.v, from);
  }
  std::int64_t nbytes() const noexcept { return k.nbytes() + v.nbytes(); }
};

/// What append was given, checked: k and v as [batch, num_kv_heads, n, columns], and how many of the n each sequence adds.
struct KVAddition {
  ConstTensorView k;
  ConstTensorView v;
  std::vector<std::int64_t> counts;

  /// @param pair  where it will go: k and v have the heads and columns of it, and share no memory with it
  KVAddition(std::string_view function, const ConstTensorView& given_k, const ConstTensorView& given_v,
             std::span<const std::int64_t> given_lengths, KVPair& pair, std::int64_t batch);

  /// Rounds tokens [first, first + to.count) of a sequence into slots; the first of them is at `position`. Does not throw.
  void write(std::int64_t sequence, std::int64_t first, std::int64_t position, const KVSlots& to, KVPair& pair);

 private:
  KVRounding round_k_;
  KVRounding round_v_;
};

/// Sequences of a cache: at least so many, and at most 2^31 - 1.
void check_batch(std::string_view function, std::int64_t batch, std::int64_t least);

/// New lengths of truncate: one a sequence, none longer than it is.
void check_lengths(std::string_view function, std::span<const std::int64_t> lengths,
                   std::span<const std::int64_t> present);

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_KV_PAIR_H_
