#ifndef QKV_SRC_KERNELS_BACKWARD_BLOCK_H_
#define QKV_SRC_KERNELS_BACKWARD_BLOCK_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "base/aligned.h"
#include "kernels/backward_problem.h"
#include "kernels/packed_head.h"
#include "kernels/row_block.h"

namespace qkv::kernels {

// The way back goes over blocks of keys, and for each over blocks of query rows: keys, values and the sums of their
// gradients stay in the cache while the rows pass by, logits and what reaches them are formed once, and of a row only its
// numbers and the sum of its gradient have to be kept for the whole head. Part of the contract (docs/op/order.md): the
// gradient of a row is summed over the keys of a block, then over blocks in order; that of a key over the rows of a block,
// then over blocks of the group's rows, head by head.

/// Keys that are in flight, a power of two from 64 to kKeyBlock, and rows, by the columns that are.
std::int64_t backward_keys(const ForwardProblem& problem);
std::int64_t backward_rows(const ForwardProblem& problem);

/// One call as the f32 kernels read it.
struct BackwardCall {
  explicit BackwardCall(const BackwardProblem& of);

  const BackwardProblem& problem;
  ForwardProblem by_key;    ///< the forward call, its arithmetic in f32
  ForwardProblem by_value;  ///< the same with V for K: what is packed for the products of V and grad_out
  Result bias_sums;         ///< as BackwardProblem::grad_bias, float32 or float64; null if there is none
};

/// What is kept of a kv head from block to block: a few numbers a row, and the sum of its gradient.
class BackwardHead {
 public:
  /// Makes room; the kernel's begin() fills it.
  BackwardHead(const BackwardCall& of, std::int64_t in_batch, std::int64_t head);

  std::int64_t num_rows() const noexcept { return call.problem.forward.rows_of_head(); }
  std::int64_t num_key_blocks() const noexcept;
  std::int64_t num_row_blocks() const noexcept;

  /// A row's gradient is summed block by block of keys in order, whoever computes them: waits for the blocks before, and
  /// lets those behind go on. Blocks are begun in order, so that what is waited for is under way.
  void wait_for_turn(std::int64_t key_block, std::int64_t row_block) const;
  void end_turn(std::int64_t key_block, std::int64_t row_block);
  /// After a failure: nobody waits for this block any longer.
  void abandon(std::int64_t key_block) { end_turn(key_block, num_row_blocks()); }

  const BackwardCall& call;
  std::int64_t batch;
  std::int64_t kv_head;
  float* lse = nullptr;       ///< these five: [rows], see RowTerms
  float* lse_rest = nullptr;  ///< null where no lse is large
  float* delta = nullptr;
  float* add = nullptr;  ///< null without gradients of lse and entropy, as the next
  float* entropy = nullptr;
  float* grad_q = nullptr;  ///< [rows][grad_q_stride]: the gradient itself where it can be summed in place
  std::int64_t grad_q_stride = 0;
  /// Of a bias that repeats along keys: the sums over each row's keys, which wait for their turn as grad_q does. Rows may
  /// share an element of the gradient, so that it is one thread's business to add them up, after all blocks.
  std::vector<double> bias_rows;
  void add_bias_rows() const;
  /// Arithmetic left the range of f32: the plain double kernel decides this row.
  unsigned char* careful = nullptr;
  /// Rows whose own numbers are not finite, ascending: what they spoil is as it should be.
  std::vector<std::int64_t> poisoned;
  bool is_poisoned(std::int64_t row) const { return std::binary_search(poisoned.begin(), poisoned.end(), row); }

 private:
  void place_grad_q();

  AlignedBytes memory_;
  AlignedBytes sums_;
  std::vector<std::atomic<std::int64_t>> row_blocks_done_;  ///< by key block
};

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_BACKWARD_BLOCK_H_
