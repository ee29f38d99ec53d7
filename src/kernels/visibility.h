#ifndef QKV_SRC_KERNELS_VISIBILITY_H_
#define QKV_SRC_KERNELS_VISIBILITY_H_

#include <cstdint>

#include "kernels/forward_problem.h"
#include "kernels/key_range.h"

namespace qkv::kernels {

/// Which keys a row sees is asked for 64 keys at a time, at absolute multiples of 64: one word, bit j for key base + j.
/// Everything that hides a key (causal, window and the sinks beside it, kv_lens, mask) is decided in this file and nowhere
/// else in the kernels; -inf in the bias, which takes reading the bias, clears further bits once logits are formed.
inline constexpr std::int64_t kWordKeys = 64;

/// Whether the word that holds a key's bit has it set; the key may be counted from any multiple of 64.
inline bool has_key(std::uint64_t word, std::int64_t key) noexcept { return (word >> (key % kWordKeys) & 1) != 0; }

/// What one query row may see.
struct RowKeys {
  std::int64_t position = 0;           ///< of the row among the keys: query_offset + i
  KeyRange range = {};                 ///< by causal, window and kv_lens
  std::int64_t sinks = 0;              ///< keys [0, sinks) too, where the window has left them behind
  const std::uint8_t* mask = nullptr;  ///< of key 0 for this row, null without a mask
  std::int64_t mask_stride = 0;

  std::int64_t begin() const noexcept { return sinks > 0 ? 0 : range.begin; }
};

RowKeys row_keys(const ForwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row);

/// The keys that any row of [row_begin, row_end) of a batch sees by causal, window and kv_lens, sinks apart.
KeyRange rows_range(const ForwardProblem& problem, std::int64_t batch, std::int64_t row_begin, std::int64_t row_end);

/// The keys that any row of [row_begin, row_end) of a batch sees by causal, window and kv_lens (all heads alike).
KeySpan rows_span(const ForwardProblem& problem, std::int64_t batch, std::int64_t row_begin, std::int64_t row_end);

/// What lies between keys [0, sinks) and those from `begin` on and holds no block of either.
KeyRange hole_between(std::int64_t sinks, std::int64_t begin);

/// Bits of the keys base .. base + 63 that the row sees; base is a multiple of 64.
std::uint64_t visible_word(const RowKeys& row, std::int64_t base);

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_VISIBILITY_H_
