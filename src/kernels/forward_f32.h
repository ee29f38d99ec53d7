#ifndef QKV_SRC_KERNELS_FORWARD_F32_H_
#define QKV_SRC_KERNELS_FORWARD_F32_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/chunk_state.h"
#include "kernels/forward_problem.h"
#include "kernels/packed_head.h"
#include "kernels/prefetch.h"

namespace qkv::kernels {

/// Attention forward in f32 for one instruction set. Its functions may run for several heads, words and rows at once,
/// on as many threads; the bits of a row do not depend on how the work is cut.
struct ForwardKernelF32 {
  std::string_view target;  ///< "avx2"
  std::int64_t lanes;       ///< floats a vector

  /// Packs words [word_begin, word_end) of a kv head's range.
  void (*pack)(const ForwardProblem& problem, const PackedHead& head, std::int64_t word_begin, std::int64_t word_end);

  /// Computes everything asked for of rows [row_begin, row_end) of the kv head's group_size * q_len query rows (head by
  /// head), at most rows_per_block(problem) of them. A head that is not packed they pack as they go. Meanwhile `next` is
  /// loaded.
  void (*run)(const ForwardProblem& problem, const PackedHead& head, std::int64_t row_begin, std::int64_t row_end,
              const NextHead& next);

  /// The two halves of run for a head that its rows pack block by block, and whose keys go beyond a chunk: what the rows
  /// make of one chunk (keys from chunk * kKeyChunk on), and everything asked for, from the states of all chunks that the
  /// rows see, in order.
  void (*run_chunk)(const ForwardProblem& problem, const PackedHead& head, std::int64_t chunk, ChunkState& state);
  void (*finish_chunks)(const ForwardProblem& problem, const PackedHead& head, std::span<const ChunkState> states);
};

/// Kernels that this build has and this CPU can run, best first.
std::span<const ForwardKernelF32> forward_kernels_f32();

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_FORWARD_F32_H_
