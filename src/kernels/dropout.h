#ifndef QKV_SRC_KERNELS_DROPOUT_H_
#define QKV_SRC_KERNELS_DROPOUT_H_

#include <cstdint>

#include "base/philox.h"
#include "kernels/forward_problem.h"

namespace qkv::kernels {

// Which weights dropout keeps is a function of seed, batch, head, the row's position and the key, asked for 64 keys at
// a time like visibility: one word, bit j for key base + j. docs/op/dropout.md has the definition, which is part of the
// contract.

/// Rounds of Philox for the words, which take nearly all of dropout's time; docs/op/dropout.md says why not more. A row's
/// state takes Philox::kRounds.
inline constexpr int kWordRounds = 7;

/// Dropout of one query row.
struct RowDropout {
  Philox::Counter state = {};   ///< of seed, batch, head and position
  std::uint64_t threshold = 0;  ///< a key with a number below is dropped; 2^32: every key
};

RowDropout row_dropout(const ForwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t position);

/// Bits of the keys base .. base + 63 whose weight is kept; base is a multiple of 64.
std::uint64_t kept_word(const RowDropout& row, std::int64_t base);

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_DROPOUT_H_
