#ifndef QKV_SRC_KERNELS_FORWARD_PROBLEM_H_
#define QKV_SRC_KERNELS_FORWARD_PROBLEM_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

#include "base/element.h"
#include "kernels/key_places.h"
#include "kernels/slot_index.h"
#include "qkv/attention.h"
#include "qkv/dtype.h"

namespace qkv::kernels {

/// A [batch, head, row, column] array of a checked call: broadcast axes have stride 0, strides count elements.
template <class Byte>
struct Strided {
  template <class T>
  using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;

  Byte* data = nullptr;  ///< null = not given, or not asked for
  Dtype dtype = Dtype::kFloat32;
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t row = 0;
  std::int64_t col = 0;

  explicit operator bool() const noexcept { return data != nullptr; }
  template <class T>
  Element<T>* at(std::int64_t b, std::int64_t h, std::int64_t r = 0, std::int64_t c = 0) const noexcept {
    return static_cast<Element<T>*>(data) + b * batch + h * head + r * row + c * col;
  }
  /// Where an element lies, whatever its type.
  Byte* address(std::int64_t b, std::int64_t h, std::int64_t r = 0, std::int64_t c = 0) const noexcept {
    using Char = Element<char>;
    const auto item = static_cast<std::int64_t>(size_of(dtype));
    return static_cast<Char*>(data) + (b * batch + h * head + r * row + c * col) * item;
  }
  /// An element as a number, and a number as an element.
  double number(std::int64_t b, std::int64_t h, std::int64_t r = 0, std::int64_t c = 0) const noexcept {
    return number_at(address(b, h, r, c), dtype);
  }
  void put(double value, std::int64_t b, std::int64_t h, std::int64_t r = 0, std::int64_t c = 0) const noexcept {
    put_number(value, address(b, h, r, c), dtype);
  }
};
using Operand = Strided<const void>;  ///< what a call reads
using Result = Strided<void>;         ///< what it writes

/// One forward call after validation: plain numbers and pointers, every default resolved, nothing left to refuse.
/// src/attention/validate.cc makes it, the kernels read it.
struct ForwardProblem {
  static constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max();
  /// q_len, kv_len and |query_offset| are at most this, and a bounded window side is below four times this, so that
  /// positions and window edges (p - left, p + right) are computed without overflow.
  static constexpr std::int64_t kMostPosition = std::int64_t{1} << 60;
  /// Of head_dim and value_dim, so that sizes of a block of rows are computed without overflow.
  static constexpr std::int64_t kMostColumns = std::int64_t{1} << 40;

  Dtype dtype = Dtype::kFloat32;  ///< of q and out; float64: of every number of the call
  std::int64_t batch = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;

  Operand q;  ///< [batch, num_heads, q_len, head_dim]
  Operand k;  ///< [batch, num_kv_heads, kv_len, head_dim], or where key_places says
  Operand v;  ///< [batch, num_kv_heads, kv_len, value_dim]
  KeyPlaces key_places;
  std::optional<KeyPlaces> k_places;  ///< of k, where it is no longer kept beside v
  Operand k_scales;                   ///< float32, with the places of k and no columns: given where k is int8
  Operand v_scales;
  Result out;

  double scale = 1;
  double softcap = 0;
  bool causal = false;
  std::int64_t window_left = kUnbounded;
  std::int64_t window_right = kUnbounded;
  std::int64_t num_sink_keys = 0;          ///< keys that the window does not hide
  std::vector<std::int64_t> query_offset;  ///< one per batch
  std::vector<std::int64_t> kv_lens;       ///< one per batch, kv_len where not given
  Operand mask;                            ///< bool, [batch, num_heads, q_len, kv_len]
  Operand bias;                            ///< [batch, num_heads, q_len, kv_len]
  Operand sinks;                           ///< [batch, num_heads]
  Operand alibi_slopes;                    ///< [batch, num_heads]

  double dropout = 0;            ///< probability of a weight to become 0
  std::uint64_t seed = 0;        ///< of which weights do
  std::int64_t first_batch = 0;  ///< dropout's number of batch 0: a segment's place in a ragged batch

  Result lse;              ///< [batch, num_heads, q_len]
  Result lse_rest;         ///< the same, beside lse: what its rounding has left out
  Result weights;          ///< [batch, weight_heads, weight_rows, kv_len]
  SlotIndex weight_heads;  ///< places of a query head on axis 1 of weights
  SlotIndex weight_rows;   ///< places of a row on axis 2
  Result logits;           ///< [batch, num_heads, q_len, kv_len]
  LogitsStage logits_stage = LogitsStage::kScaled;

  Result max_raw;  ///< these six [batch, num_heads, q_len]
  Result max_logit;
  Result max_key;  ///< int64
  Result max_weight;
  Result entropy;
  Result key_weight;
  std::vector<std::int64_t> stats_keys;  ///< ascending

  const KeyPlaces& places_of_k() const noexcept { return k_places ? *k_places : key_places; }
  std::int64_t group_size() const noexcept { return num_heads / num_kv_heads; }
  /// The query head of a row of a kv head, of the group_size * q_len that share it, head by head.
  std::int64_t query_head(std::int64_t kv_head, std::int64_t row_of_head) const noexcept {
    return kv_head * group_size() + row_of_head / q_len;
  }
  /// Query rows that share a kv head.
  std::int64_t rows_of_head() const noexcept { return group_size() * q_len; }
  /// Whether weights are rounded to bfloat16 before they meet V: as everything is that they come from and go to.
  bool rounds_weights() const noexcept {
    return dtype == Dtype::kBFloat16 && k.dtype == Dtype::kBFloat16 && v.dtype == Dtype::kBFloat16;
  }
  bool wants_stats() const noexcept { return max_raw || max_logit || max_key || max_weight || entropy || key_weight; }
  /// What makes up for the weights that dropout takes away; 0 where it takes all.
  double kept_factor() const noexcept { return dropout < 1 ? 1 / (1 - dropout) : 0; }
  /// Whether a logit is more than scale * q k: then it takes the general formula.
  bool has_logit_terms() const noexcept { return softcap > 0 || bias || alibi_slopes; }
};

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_FORWARD_PROBLEM_H_
