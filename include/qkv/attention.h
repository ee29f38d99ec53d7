#ifndef QKV_ATTENTION_H_
#define QKV_ATTENTION_H_

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "qkv/export.h"
#include "qkv/tensor.h"

namespace qkv {

/// Where query row 0 sits among the keys. Key j is at position j, query row i at `query_offset + i`; an offset may be
/// negative, from -2^60 to 2^60. The default is `filled - q_len`, where filled is kv_lens[b] if given, else kv_len: the
/// last query row is at the last filled key (bottom-right alignment). PyTorch's is_causal is 0 (top-left).
class QueryOffset {
 public:
  QueryOffset() = default;
  QueryOffset(std::int64_t offset) : value_(offset) {}  // NOLINT(google-explicit-constructor)
  /// One offset per batch: int32 or int64, shape [batch].
  QueryOffset(ConstTensorView per_batch) : value_(per_batch) {}  // NOLINT(google-explicit-constructor)

  bool is_default() const noexcept { return std::holds_alternative<std::monostate>(value_); }
  const std::int64_t* one() const noexcept { return std::get_if<std::int64_t>(&value_); }
  const ConstTensorView* per_batch() const noexcept { return std::get_if<ConstTensorView>(&value_); }

 private:
  std::variant<std::monostate, std::int64_t, ConstTensorView> value_;
};

/// Row at position p sees keys `p - left <= j <= p + right`, both ends included; an empty side is unbounded.
/// Neither side may be below 0. {255, 0} is a causal window of 256 keys, the row's own among them.
struct Window {
  std::optional<std::int64_t> left = {};   ///< keys before the row's own position
  std::optional<std::int64_t> right = {};  ///< keys after it
};

/// Makes weights 0 with probability p, after softmax, and divides the others by 1 - p. Which ones is a function of the
/// seed, the batch, the query head, the row's position and the key alone: the same call drops the same weights, however it
/// is cut and on any target. docs/op/dropout.md has the definition.
struct Dropout {
  double p = 0;                            ///< from 0 (off) to 1 (nothing is left, and out is 0)
  std::optional<std::uint64_t> seed = {};  ///< needed where p > 0; another one for each call that should differ
};

/// What attention computes beyond softmax(scale Q K^T) V. Every member has a default.
struct AttentionOptions {
  /// Multiplies Q K^T; default 1/sqrt(head_dim). Any finite number, 0 and negative ones included.
  std::optional<double> scale = {};
  /// Key j is visible to the row at position p only if j <= p.
  bool causal = false;
  /// Position of query row 0 among the keys.
  QueryOffset query_offset = {};
  /// Keys that are visible around the row's position.
  Window window = {};
  /// c > 0 turns each scaled logit x into c * tanh(x / c), before bias and masks; 0 is off.
  double softcap = 0;
  /// bool, true = attend; broadcasts onto [batch, num_heads, q_len, kv_len] by NumPy's rules, from 0 to 4 axes.
  std::optional<ConstTensorView> mask = {};
  /// Added to the logits; q's dtype, or float32 beside 16 bits; broadcasts like mask. -inf hides the key, finfo.min is an
  /// ordinary number.
  std::optional<ConstTensorView> bias = {};
  /// One extra logit per head that takes part in the sum but has no value: [num_heads] or [batch, num_heads], as bias.
  std::optional<ConstTensorView> sinks = {};
  /// ALiBi: adds -slope * |p - j|; [num_heads] or [batch, num_heads].
  std::optional<ConstTensorView> alibi_slopes = {};
  /// Keys at kv_lens[b] and beyond are hidden: int32 or int64, shape [batch], each in 0..kv_len.
  std::optional<ConstTensorView> kv_lens = {};
  /// Weights that do not meet V. lse, weights, logits and statistics are those without it.
  Dropout dropout = {};
};

/// The softmax weights of chosen heads and rows; hidden keys get exactly 0.
struct Weights {
  /// [batch, number of heads, number of rows, kv_len]; float32 (float64 where q is float64); any strides.
  TensorView out = {};
  /// Query heads, in the order wanted; empty = all.
  std::optional<std::vector<std::int64_t>> heads = {};
  /// Rows of q, in the order wanted; empty = all.
  std::optional<std::vector<std::int64_t>> rows = {};
};

/// A point on the way from Q K^T to softmax.
enum class LogitsStage : std::uint8_t {
  kScaled,  ///< scale * Q K^T, of every key, hidden or not
  kCapped,  ///< after softcap, of every key, hidden or not
  kMasked,  ///< after bias and ALiBi; -inf at hidden keys: what softmax sees (sinks apart)
};

/// The logits at one stage, of all heads and rows.
struct Logits {
  /// [batch, num_heads, q_len, kv_len]; float32 (float64 where q is float64); any strides.
  TensorView out = {};
  LogitsStage stage = LogitsStage::kScaled;  ///< which logits
};

/// One number a row, from the same pass; each written if given; each [batch, num_heads, q_len], float32 (float64 where
/// q is float64) but max_key, which is int64. Sinks are not keys. A row that sees nothing has -inf, -inf, -1, 0, 0, 0.
struct Stats {
  std::optional<TensorView> max_raw = {};     ///< largest scale * Q K^T among the visible keys; NaN if a logit is
  std::optional<TensorView> max_logit = {};   ///< largest logit among the visible keys, after softcap and bias
  std::optional<TensorView> max_key = {};     ///< the key of max_logit; the lowest, where several share it
  std::optional<TensorView> max_weight = {};  ///< largest weight
  std::optional<TensorView> entropy = {};     ///< -sum w ln w over the keys, in nats
  std::optional<TensorView> key_weight = {};  ///< sum of the weights of `keys`
  /// Keys for key_weight, each in 0..kv_len-1 and listed once.
  std::vector<std::int64_t> keys = {};
};

/// What attention can write beyond out; each written if given.
struct AttentionOutputs {
  /// ln(sum of exp of the logits, sinks included), natural logarithm: [batch, num_heads, q_len]; float32 (float64 where
  /// q is float64). -inf for a row that sees nothing (the sink's logit, where there is one).
  std::optional<TensorView> lse = {};
  std::optional<Weights> weights = {};  ///< n x n, where asked for
  std::optional<Logits> logits = {};    ///< n x n
  std::optional<Stats> stats = {};      ///< a few numbers a row
};

/// out = softmax(masked(softcap(scale * Q K^T) + bias)) V, per batch and head.
///
/// @param q    [batch, num_heads, q_len, head_dim]: float32, float64, float16 or bfloat16; any strides, as all operands
/// @param k    [batch, num_kv_heads, kv_len, head_dim]: q's dtype, or 16 bits beside a q of at most 32; num_heads %
///             num_kv_heads == 0, and query head h reads kv head h / (num_heads / num_kv_heads)
/// @param v    [batch, num_kv_heads, kv_len, value_dim]: as k, whatever k has; value_dim is free
/// @param out  [batch, num_heads, q_len, value_dim], q's dtype; shares no element with an input
/// Fewer than four axes: the missing leading ones are 1. Extents of 0 are legal but for heads and head_dim.
///
/// Rules. A key that a row may not see does not change one bit of the row, even if it holds NaN. A row that sees
/// nothing gives 0. A visible NaN makes its row NaN and no other. The bits of a row depend on its own query, its visible
/// keys at their positions and the options, on one target: not on batch, threads, the split of queries into calls, or
/// padding. docs/op/attention.md has the whole contract, docs/op/order.md the order of arithmetic.
///
/// @throws ShapeError, DtypeError, ValueError: naming the argument, what was seen and what was expected.
/// Accuracy: |error| <= c * eps * (sum of weights times |v|), measured against the double-precision reference. Below 64
/// bits arithmetic is that of float32, and a weight below 2^-126 of the largest counts as 0, whatever v it would meet; out
/// is rounded once. Where q, k and v are all bfloat16, weights and the sum they are divided by are of bfloat16 weights; on
/// the target avx512_bf16 what is summed of them counts as 0 below 2^-126, which is another 2^-126 a visible key.
/// Cost: q_len * visible keys * (head_dim + value_dim) multiply-adds a head; memory O(q_len + kv_len): 2 MiB a
/// thread and the packed keys of the heads in flight. Never q_len x kv_len, unless such an output is asked for.
/// Source: Vaswani et al. 2017 (arXiv:1706.03762); running softmax by blocks of keys after Dao et al. 2022
/// (arXiv:2205.14135), with blocks at absolute key positions so that the bits do not depend on the split.
QKV_API void attention(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                       const AttentionOptions& options = {}, const AttentionOutputs& outputs = {});

namespace reference {
/// The same contract in scalar double precision, one row at a time, written to be read: the yardstick of the tests.
/// Slow. QKV_TARGET=reference sends qkv::attention here.
QKV_API void attention(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                       const AttentionOptions& options = {}, const AttentionOutputs& outputs = {});
}  // namespace reference

}  // namespace qkv

#endif  // QKV_ATTENTION_H_
