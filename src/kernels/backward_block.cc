#include "kernels/backward_block.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <optional>
#include <thread>

#include "base/checked.h"
#include "kernels/key_order.h"
#include "kernels/tile_shape.h"

namespace qkv::kernels {
namespace {

/// Bytes, or std::bad_alloc where they do not fit.
AlignedBytes allocate(std::int64_t count, std::int64_t size) {
  const std::optional<std::int64_t> bytes = checked_mul(count, size);
  if (!bytes) throw std::bad_alloc();
  return allocate_aligned(static_cast<std::size_t>(std::max<std::int64_t>(*bytes, 1)));
}

std::int64_t columns_of(const ForwardProblem& problem) { return problem.head_dim + problem.value_dim; }

}  // namespace

std::int64_t backward_keys(const ForwardProblem& problem) {
  if (columns_of(problem) <= 256) return 128;
  return 64;
}

std::int64_t backward_rows(const ForwardProblem& problem) {
  if (columns_of(problem) <= 256) return 96;
  return columns_of(problem) <= 1024 ? 48 : 24;
}

BackwardCall::BackwardCall(const BackwardProblem& of) : problem(of), by_key(of.forward), by_value(of.forward) {
  by_key.dtype = by_value.dtype = Dtype::kFloat32;
  by_value.k = of.forward.v;
  by_value.head_dim = of.forward.value_dim;
}

BackwardHead::BackwardHead(const BackwardCall& of, std::int64_t in_batch, std::int64_t head)
    : call(of), batch(in_batch), kv_head(head), row_blocks_done_(static_cast<std::size_t>(num_key_blocks())) {
  const BackwardProblem& problem = call.problem;
  const std::int64_t rows = num_rows();
  std::vector<float**> wanted{&lse, &delta};
  if (problem.lse_rest) wanted.push_back(&lse_rest);
  if (problem.grad_lse || problem.grad_entropy) wanted.insert(wanted.end(), {&add, &entropy});
  memory_ = allocate(rows, std::ssize(wanted) * std::int64_t{sizeof(float)} + 1);
  auto* numbers = reinterpret_cast<float*>(memory_.get());
  for (float** each : wanted) {
    *each = numbers;
    numbers += rows;
  }
  careful = reinterpret_cast<unsigned char*>(numbers);
  std::fill_n(careful, rows, static_cast<unsigned char>(0));
  if (call.bias_sums && call.bias_sums.col == 0) bias_rows.resize(static_cast<std::size_t>(rows));
  if (problem.grad_q) place_grad_q();
}

void BackwardHead::add_bias_rows() const {
  const ForwardProblem& forward = call.problem.forward;
  for (std::size_t i = 0; i < bias_rows.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    const std::int64_t q_head = forward.query_head(kv_head, row);
    const double before = call.bias_sums.number(batch, q_head, row % forward.q_len);
    call.bias_sums.put(before + bias_rows[i], batch, q_head, row % forward.q_len);
  }
}

void BackwardHead::place_grad_q() {
  const BackwardProblem& problem = call.problem;
  const ForwardProblem& forward = problem.forward;
  const Result& to = problem.grad_q;
  const std::int64_t rows = num_rows();
  const bool evenly = forward.group_size() == 1 || to.head == forward.q_len * to.row;
  const bool in_place = to.dtype == Dtype::kFloat32 && to.col == 1 && evenly && !problem.accumulate && to.row > 0 &&
                        forward.head_dim % kMostLanes == 0;
  if (in_place) {
    grad_q = to.at<float>(batch, kv_head * forward.group_size());
    grad_q_stride = to.row;
  } else {
    grad_q_stride = align_up(forward.head_dim, kMostLanes);
    sums_ = allocate(rows, grad_q_stride * std::int64_t{sizeof(float)});
    grad_q = reinterpret_cast<float*>(sums_.get());
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    std::fill_n(grad_q + row * grad_q_stride, align_up(forward.head_dim, kMostLanes), 0.0f);
  }
}

std::int64_t BackwardHead::num_key_blocks() const noexcept {
  const ForwardProblem& forward = call.problem.forward;
  const std::int64_t keys = backward_keys(forward);
  return (forward.kv_len + keys - 1) / keys;
}

std::int64_t BackwardHead::num_row_blocks() const noexcept {
  const std::int64_t rows = backward_rows(call.problem.forward);
  return (num_rows() + rows - 1) / rows;
}

void BackwardHead::wait_for_turn(std::int64_t key_block, std::int64_t row_block) const {
  if (key_block == 0) return;
  const std::atomic<std::int64_t>& before = row_blocks_done_[static_cast<std::size_t>(key_block - 1)];
  // The thread before is a row block ahead as a rule, and a machine that has fewer CPUs than threads needs the yield.
  while (before.load(std::memory_order_acquire) <= row_block) std::this_thread::yield();
}

void BackwardHead::end_turn(std::int64_t key_block, std::int64_t row_block) {
  row_blocks_done_[static_cast<std::size_t>(key_block)].store(row_block + 1, std::memory_order_release);
}

}  // namespace qkv::kernels
