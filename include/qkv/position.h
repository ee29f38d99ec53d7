#ifndef QKV_POSITION_H_
#define QKV_POSITION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <variant>
#include <vector>

#include "qkv/export.h"
#include "qkv/tensor.h"

namespace qkv {

namespace attention_detail {
class RopeRows;
}

/// Which two numbers of a row turn together.
enum class RopeLayout : std::uint8_t {
  kHalf,         ///< i and i + rotary_dim / 2: GPT-NeoX, Llama, Hugging Face's rotate_half
  kInterleaved,  ///< 2i and 2i + 1: GPT-J, and the article
};

/// All frequencies divided by `factor`.
struct LinearScaling {
  double factor = 1;  ///< from 1
};

/// Dynamic NTK: the base grows with the sequence once that is longer than max_position.
struct DynamicScaling {
  double factor = 1;  ///< from 1
};

/// YaRN: high frequencies stay, low ones are divided by `factor`, with a ramp between.
struct YarnScaling {
  double factor = 1;                       ///< from 1
  std::int64_t original_max_position = 0;  ///< what the model was trained with before it was stretched
  std::optional<double> attention_factor =
      {};                             ///< of cosines and sines; default 0.1 ln(factor) + 1, or from the two below
  double beta_fast = 32;              ///< turns within original_max_position from which a frequency stays
  double beta_slow = 1;               ///< turns up to which it is divided
  std::optional<double> mscale = {};  ///< both given: the quotient of 0.1 * mscale * ln(factor) + 1
  std::optional<double> mscale_all_dim = {};  ///< and the same with mscale_all_dim
  bool truncate = true;                       ///< the ramp begins and ends at whole pairs
};

/// Llama 3.1: as YaRN with a ramp in the frequency, and no attention factor.
struct Llama3Scaling {
  double factor = 1;                       ///< from 1
  double low_freq_factor = 1;              ///< turns within original_max_position up to which frequencies are divided
  double high_freq_factor = 4;             ///< turns from which they stay
  std::int64_t original_max_position = 0;  ///< what the model was trained with before it was stretched
};

/// How frequencies are changed for sequences longer than those of the training; none, where it is empty.
using RopeScaling = std::variant<std::monostate, LinearScaling, DynamicScaling, YarnScaling, Llama3Scaling>;

/// What rotations are made of. Every member has a default.
struct RopeOptions {
  double base = 10000;                          ///< rope_theta; above 1
  std::optional<std::int64_t> rotary_dim = {};  ///< columns that turn, an even number up to 65536; default head_dim
  RopeLayout layout = RopeLayout::kHalf;        ///< which columns make a pair
  RopeScaling scaling = {};                     ///< for longer sequences
  std::optional<std::int64_t> max_position =
      {};  ///< positions of the model (max_position_embeddings); dynamic needs it
};

/// Where the rows of a call are: at first, first + 1, ..., or at positions given one by one. Each from -2^53 to 2^53.
class Positions {
 public:
  Positions() = default;
  /// Row i is at first + i.
  Positions(std::int64_t first) : first_(first) {}  // NOLINT(google-explicit-constructor)
  /// int32 or int64, [n] or [batch, n].
  template <class View>
    requires std::is_convertible_v<const View&, ConstTensorView>
  Positions(const View& ids) : ids_(ids) {}  // NOLINT(google-explicit-constructor)

  std::int64_t first() const noexcept { return first_; }  ///< of row 0, without ids
  /// One position a row.
  const std::optional<ConstTensorView>& ids() const noexcept { return ids_; }

 private:
  std::int64_t first_ = 0;
  std::optional<ConstTensorView> ids_;
};

/// What is done to a pair (x, y) at the angle a, with the attention factor m (1 but for YaRN).
enum class RopePass : std::uint8_t {
  kForward,   ///< m * (x cos a - y sin a, y cos a + x sin a)
  kInverse,   ///< undoes it: the turn by -a, divided by m
  kBackward,  ///< the gradient of x from that of the result: the turn by -a, times m
};

/// How positions are applied. Every member has a default.
struct RopeCall {
  RopePass pass = RopePass::kForward;  ///< forward, or back
  /// Length of the sequence, at least the largest position of the call + 1, which is the default. Dynamic scaling goes by
  /// it, and calls of one sequence give the bits of one call if they name the same; to others it makes no difference.
  std::optional<std::int64_t> seq_len = {};
};

/// Rotary position embedding: pair i of a row at position p turns by the angle p * frequency i, where
///   frequency i = base^(-2i / rotary_dim), and then as the scaling says.
/// The logit of two rows so turned depends on the distance of their positions alone.
///
///     const qkv::Rope rope(128, {.base = 500000});
///     rope.apply(q, 0, q);  // in place, positions 0, 1, ...
///
/// Made once for a model: it holds tables of 4 KiB a pair. Copies share them; threads may use one at once.
/// Source: Su et al. 2021, arXiv:2104.09864; scalings as in Hugging Face transformers 5.24.
class QKV_API Rope {
 public:
  /// @throws ValueError naming the option; std::bad_alloc
  explicit Rope(std::int64_t head_dim, const RopeOptions& options = {});
  // Moves copy: one that was moved from still turns.
  Rope(const Rope&) = default;
  Rope& operator=(const Rope&) = default;
  ~Rope() = default;

  /// @param x          [batch, heads, n, head_dim], missing leading axes are 1; float32, float64, float16 or bfloat16;
  ///                   any strides
  /// @param positions  of the n rows, whatever the head; ids [batch, n] differ from batch to batch
  /// @param out        as x: x itself, or memory that shares no element with it. Columns from rotary_dim on are copied.
  /// The bits of a row depend on its numbers, its position and the frequencies: not on batch, strides, threads, target
  /// or how positions are split into calls.
  /// Accuracy: angles are f64, whatever the dtype: off by at most 1.1 |angle| * 2^-52 + 2^-50. float32 and float64 are
  /// turned in f64, 16 bits in f32; rounded once at the end.
  /// Cost: memory bandwidth; sines once a position for all heads.
  /// @throws ShapeError, DtypeError, ValueError
  void apply(ConstTensorView x, const Positions& positions, TensorView out, const RopeCall& call = {}) const;

  /// Radians a position, of each pair. `seq_len` is the length of the sequence, for dynamic scaling alone.
  /// @throws ValueError for a seq_len below 1
  std::vector<double> frequencies(std::optional<std::int64_t> seq_len = {}) const;
  /// What cosines and sines are multiplied by: 1 but for YaRN.
  double attention_factor() const noexcept;
  std::int64_t head_dim() const noexcept;  ///< columns of a row
  /// With rotary_dim and, of YaRN, attention_factor filled in.
  const RopeOptions& options() const noexcept;

 private:
  friend class attention_detail::RopeRows;
  struct State;
  std::shared_ptr<const State> state_;
};

/// Where a table begins, and how fast its waves are.
struct SinusoidalOptions {
  std::int64_t first = 0;  ///< position of row 0
  double base = 10000;     ///< the longest wave is 2 pi * base positions long; above 1
};

/// out[i][2j] = sin(p * base^(-2j / dim)), out[i][2j + 1] = cos(the same), p = first + i. The last column of an odd dim
/// is a sine without its cosine.
/// @param out  [n, dim]; float32, float64, float16 or bfloat16; any strides
/// Accuracy: angles in f64, rounded once.
/// @throws ShapeError, DtypeError, ValueError
/// Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
QKV_API void sinusoidal_positions(TensorView out, const SinusoidalOptions& options = {});

/// Rows of a learned table, bit for bit: out[..., i, :] = table[ids[..., i], :].
/// @param table  [size, dim]; float32, float64, float16 or bfloat16
/// @param ids    [n] or [batch, n]; int32 or int64, each from 0 to size - 1
/// @param out    [n, dim] or [batch, n, dim], the table's dtype
/// @throws ValueError for an id beyond the table: it names both; ShapeError, DtypeError
QKV_API void learned_positions(ConstTensorView table, ConstTensorView ids, TensorView out);

/// Slopes of ALiBi for any number of heads: with m the largest power of two in num_heads, 2^(-8 (h + 1) / m) for the first
/// m heads, and every second one of the slopes of 2m heads, from the first, for the rest. Exact to the dtype's rounding.
/// @param out  [num_heads], at least 1; float32, float64, float16 or bfloat16
/// Source: Press et al. 2022, arXiv:2108.12409, and its published code for other numbers than powers of two.
QKV_API void alibi_slopes(TensorView out);

/// How T5 shares its buckets among distances.
struct T5Options {
  bool bidirectional = true;        ///< half of the buckets for keys after the row; false: those are at distance 0
  std::int64_t max_distance = 128;  ///< from here on all distances share the last bucket
  std::int64_t query_offset = 0;    ///< position of row 0; key j is at j
};

/// The bucket of `relative` = position of the key - position of the row: distances below half of a side's buckets have
/// their own, larger ones share them by logarithm. In f32, as the models were trained.
/// @throws ValueError for too few buckets, or a max_distance within those of single distances
QKV_API std::int64_t t5_bucket(std::int64_t relative, std::int64_t num_buckets, const T5Options& options = {});

/// out[h][i][j] = table[bucket(j - (query_offset + i))][h]: what attention takes as bias, with scale 1 in T5.
/// @param table  [num_buckets, num_heads]; float32, float64, float16 or bfloat16
/// @param out    [num_heads, q_len, kv_len], the table's dtype
/// @throws ShapeError, DtypeError, ValueError
/// Source: Raffel et al. 2020, arXiv:1910.10683; buckets as in Hugging Face transformers.
QKV_API void t5_bias(ConstTensorView table, TensorView out, const T5Options& options = {});

}  // namespace qkv

#endif  // QKV_POSITION_H_
