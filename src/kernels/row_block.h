#ifndef QKV_SRC_KERNELS_ROW_BLOCK_H_
#define QKV_SRC_KERNELS_ROW_BLOCK_H_

#include <cstddef>
#include <cstdint>

#include "kernels/dropout.h"
#include "kernels/forward_problem.h"
#include "kernels/key_order.h"
#include "kernels/packed_head.h"
#include "kernels/tile_shape.h"
#include "kernels/visibility.h"

namespace qkv::kernels {

/// How Q K^T becomes the exponent of a weight. The power of two in the scale (and its sign) goes into q, which is exact;
/// what remains is in [1, 2), so that nothing overflows while the logit itself does not.
struct Formula {
  bool general = false;   ///< softcap, bias or ALiBi: logits are formed before the exponent
  float query_scale = 1;  ///< +-2^e, multiplies q
  double residual = 1;    ///< logit = residual * (q' k)
  float factor = 0;       ///< exponent of two = factor * (logit - maximum), where plain logits lack the residual
  float softcap = 0;

  explicit Formula(const ForwardProblem& problem);
  /// Whether the f32 kernels can take the scale and the softcap at all; beyond, rows go to the plain double kernel.
  static bool representable(const ForwardProblem& problem);
};

/// One query row in flight.
struct Row {
  std::int64_t head = 0;
  std::int64_t index = 0;  ///< row of q
  RowKeys keys;
  const void* bias = nullptr;  ///< of key 0
  float slope = 0;
  RowDropout dropout;    ///< where there is one
  bool seen = false;     ///< some key is visible
  bool careful = false;  ///< arithmetic left the range of f32: the plain double kernel decides this row
};

/// Running softmax of the rows of a block: sum and values are relative to the maximum.
struct SoftmaxState {
  float* max = nullptr;      ///< in units of q' k (plain) or nats (general)
  float* sum = nullptr;      ///< sum of 2^exponent
  float* divisor = nullptr;  ///< sum of the weights as they meet V, only where they are rounded before
  float* values = nullptr;   ///< [rows][value_stride]: sum of weights * v
  float* entropy = nullptr;  ///< sum of 2^exponent * exponent, only with statistics
  float* chosen = nullptr;   ///< sum of the weights as they meet V over stats_keys, only with statistics
};

/// A block of query rows that share one kv head, with everything it needs while the keys pass by. Rows are those of
/// the group's query heads, head by head; the key loop is outside, groups of rows inside, so that K and V come from L2
/// once a block and the logits of a group stay in L1.
struct RowBlock {
  const ForwardProblem& problem;
  const Formula formula;
  PackedHead head;  ///< packed as a whole, or the keys of one block after the other

  std::int64_t num_rows = 0;
  KeySpan span = {};            ///< union of the rows'
  bool several_chunks = false;  ///< span crosses a chunk boundary: states are merged into total
  std::int64_t value_stride = 0;
  Row* rows = nullptr;
  bool pairs = false;                ///< queries, keys, weights and values are pairs of bfloat16 (pairs-inl.h)
  std::int64_t depth = 0;            ///< rows of a panel of keys: head_dim, or half of it in pairs
  float* queries = nullptr;          ///< [rows][depth], scaled by query_scale
  float* query_magnitude = nullptr;  ///< largest |q'| a row, NaN where one is
  float* logits = nullptr;           ///< [tile rows][kLogitStride]; then the weights, in pairs at half the places
  float* own_keys = nullptr;         ///< memory for the keys of one block, where the head is not packed as a whole
  bool packs_panels = false;         ///< own_keys are those of a few panels: one group alone reads them
  bool values_in_place = false;      ///< V is read where it lies, unless a block has hidden keys
  float* values = nullptr;           ///< V of the key block, panels of [keys or pairs][panel columns], padded by 0
  std::uint32_t value_magnitude[kKeyBlock / kWordKeys] = {};  ///< bits of the largest |v| a word of the key block
  bool* fresh = nullptr;  ///< [rows], by a group's first row: nothing is in its chunk.values yet
  SoftmaxState chunk = {};
  SoftmaxState total = {};
  float* max_logit = nullptr;  ///< statistics: in units of q' k (plain) or nats (general)
  float* max_raw = nullptr;    ///< statistics, general formula: in nats
  std::int64_t* max_key = nullptr;
};

/// value_dim of a block is at most this, so that V of a key block fits in half a MiB of scratch.
inline constexpr std::int64_t kMostValueColumns = 512;

/// Whether rows of a head pack the keys of one block after the other themselves: one block of rows reads each key once,
/// so a packed copy of the whole head would only cost memory.
bool packs_by_block(const ForwardProblem& problem);

/// Rows that a block takes: many enough to use K and V from L2 often, few enough for 2 MiB of scratch.
std::int64_t rows_per_block(const ForwardProblem& problem);

/// Row row_of_head of the group_size * q_len that share a kv head.
Row make_row(const ForwardProblem& problem, std::int64_t batch, std::int64_t kv_head, std::int64_t row_of_head);

/// Lays a block with `pairs` and `depth` out in this thread's scratch memory and fills rows [row_begin, row_end) of
/// group_size * q_len, but not queries. A target has `lanes` floats a vector and `panel_columns` of V a panel.
void begin_rows(RowBlock& block, std::int64_t row_begin, std::int64_t row_end, std::int64_t lanes,
                std::int64_t panel_columns);

/// Between the logits of a group's rows: one key block, and a vector so that a power of two is no stride.
inline constexpr std::int64_t kLogitStride = kKeyBlock + kMostLanes;

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_ROW_BLOCK_H_
