#include "attention/run_backward.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "attention/bias_gradient.h"
#include "attention/forward.h"
#include "attention/useful_threads.h"
#include "attention/validate_parts.h"
#include "base/element.h"
#include "base/parallel.h"
#include "kernels/backward_f32.h"
#include "kernels/backward_plain.h"
#include "kernels/row_block.h"
#include "kernels/row_terms.h"
#include "qkv/tensor.h"

namespace qkv::attention_detail {
namespace {

using kernels::BackwardKernelF32;
using kernels::BackwardProblem;
using kernels::ForwardProblem;

using Calls = std::span<BackwardProblem>;

constexpr std::int64_t kPlainKeys = 16;
/// Below this many multiply-adds of the forward pass, waking a thread costs more than it saves.
constexpr double kSerialWork = 1e5;

/// Whether the rounding of lse shows: see RowTerms.
bool has_large_lse(const BackwardProblem& call) {
  const ForwardProblem& forward = call.forward;
  for (std::int64_t b = 0; b < forward.batch; ++b) {
    for (std::int64_t h = 0; h < forward.num_heads; ++h) {
      for (std::int64_t i = 0; i < forward.q_len; ++i) {
        const double lse = call.lse.number(b, h, i);
        if (std::fabs(lse) >= kernels::RowTerms::kLargeLse && std::isfinite(lse)) return true;
      }
    }
  }
  return false;
}

/// Of every row what the forward call has not left behind, and only few calls need: its softmax once more, without V.
class RowsAgain {
 public:
  RowsAgain(Calls calls, std::string_view target) {
    std::vector<ForwardProblem> forwards;
    for (BackwardProblem& call : calls) {
      const bool large = has_large_lse(call);
      if (!call.grad_entropy && !large) continue;
      ForwardProblem& again = forwards.emplace_back(call.forward);
      again.value_dim = 0;
      again.dropout = 0;  // what follows is of the weights before it
      if (call.grad_entropy) add_row(again, again.entropy, call.entropy);
      if (large) {
        add_row(again, again.lse, call.computed_lse);
        add_row(again, again.lse_rest, call.lse_rest);
      }
      if (again.q_len == 0) forwards.pop_back();
    }
    forward(forwards, target);
  }

 private:
  void add_row(const ForwardProblem& forward, kernels::Result& written, kernels::Operand& read) {
    const Extents shape{forward.batch, forward.num_heads, forward.q_len};
    const TensorView row = numbers_.emplace_back(shape, stats_dtype(forward.dtype)).view();
    written = result_of(row);
    read = operand_of(row);
  }

  std::vector<Tensor> numbers_;
};

void plain_operands(const BackwardProblem& call) {
  const ForwardProblem& forward = call.forward;
  const auto rows = static_cast<std::size_t>(forward.batch * forward.num_heads * forward.q_len);
  if (call.grad_q && rows > 0) {
    parallel_for(rows, [&](std::size_t item) {
      const auto index = static_cast<std::int64_t>(item);
      kernels::plain_grad_q(call, index / forward.q_len / forward.num_heads, index / forward.q_len % forward.num_heads,
                            index % forward.q_len);
    });
  }
  if (!call.grad_k && !call.grad_v) return;
  const std::int64_t blocks = (forward.kv_len + kPlainKeys - 1) / kPlainKeys;
  parallel_for(static_cast<std::size_t>(forward.batch * forward.num_kv_heads * blocks), [&](std::size_t item) {
    const auto index = static_cast<std::int64_t>(item);
    const std::int64_t first = index % blocks * kPlainKeys;
    kernels::plain_grad_kv(call, index / blocks / forward.num_kv_heads, index / blocks % forward.num_kv_heads, first,
                           std::min(first + kPlainKeys, forward.kv_len));
  });
}

void plain_bias(const BackwardProblem& call) {
  const BiasGradient bias(call);
  if (!bias) return bias.store();
  const ForwardProblem& forward = call.forward;
  const auto chains = bias.chains(forward.batch, forward.num_heads);
  parallel_for(chains.size(), [&](std::size_t item) {
    for (const std::int64_t head : chains[item]) {
      for (std::int64_t row = 0; row < forward.q_len; ++row) {
        kernels::plain_grad_bias(call, bias.sums(), head / forward.num_heads, head % forward.num_heads, row,
                                 {0, forward.kv_len});
      }
    }
  });
  bias.store();
}

/// Heads that one thread works on, one after the other, since they add to the same elements of a bias' gradient.
struct Chain {
  const kernels::BackwardCall* call = nullptr;
  std::vector<std::int64_t> heads;  ///< of [batch, num_kv_heads]
};

kernels::BackwardHead begin_head(const Chain& chain, std::int64_t index) {
  const std::int64_t num_heads = chain.call->problem.forward.num_kv_heads;
  return {*chain.call, index / num_heads, index % num_heads};
}

void compute_chain(const Chain& chain, const BackwardKernelF32& kernel) {
  for (const std::int64_t index : chain.heads) {
    kernels::BackwardHead head = begin_head(chain, index);
    kernel.begin(head);
    for (std::int64_t block = 0; block < head.num_key_blocks(); ++block) kernel.run(head, block);
    head.add_bias_rows();
    kernel.finish(head, 0, head.num_rows());
  }
}

/// Few heads: threads take blocks of keys of one head after the other, each a few rows behind the one before.
void compute_head(const Chain& chain, std::int64_t index, const BackwardKernelF32& kernel, int threads) {
  kernels::BackwardHead head = begin_head(chain, index);
  kernel.begin(head);
  std::atomic<std::int64_t> next = 0;  // an executor may run its tasks in any order: blocks are begun in theirs
  parallel_for(static_cast<std::size_t>(threads), [&](std::size_t) {
    for (std::int64_t block = next++; block < head.num_key_blocks(); block = next++) {
      try {
        kernel.run(head, block);
      } catch (...) {
        head.abandon(block);
        throw;
      }
    }
  });
  head.add_bias_rows();
  constexpr std::int64_t kRows = 256;
  parallel_for(static_cast<std::size_t>((head.num_rows() + kRows - 1) / kRows), [&](std::size_t item) {
    const std::int64_t first = static_cast<std::int64_t>(item) * kRows;
    kernel.finish(head, first, std::min(first + kRows, head.num_rows()));
  });
}

void operands_f32(std::span<const Chain> chains, const BackwardKernelF32& kernel, int threads) {
  if (threads == 1) {
    for (const Chain& chain : chains) compute_chain(chain, kernel);
  } else if (std::ssize(chains) >= 4 * threads) {
    parallel_for(chains.size(), [&](std::size_t item) { compute_chain(chains[item], kernel); });
  } else {
    for (const Chain& chain : chains) {
      for (const std::int64_t index : chain.heads) compute_head(chain, index, kernel, threads);
    }
  }
}

int threads_for(Calls calls) {
  double work = 0;
  for (const BackwardProblem& call : calls) work += multiply_adds(call.forward);
  return useful_threads(work, kSerialWork);
}

void backward_f32(Calls calls, const BackwardKernelF32& kernel) {
  // A ragged batch has no bias, and a call that has one is the only one.
  const BiasGradient bias(calls.front());
  std::vector<kernels::BackwardCall> of_kernel;
  of_kernel.reserve(calls.size());
  std::vector<Chain> chains;
  for (const BackwardProblem& call : calls) {
    kernels::BackwardCall& each = of_kernel.emplace_back(call);
    each.bias_sums = bias.sums();
    for (auto& heads : bias.chains(call.forward.batch, call.forward.num_kv_heads)) {
      chains.push_back({&each, std::move(heads)});
    }
  }
  operands_f32(chains, kernel, threads_for(calls));
  bias.store();
}

void backward_plain(Calls calls) {
  for (const BackwardProblem& call : calls) {
    plain_operands(call);
    plain_bias(call);
  }
}

/// The sum of what a head's rows give to its sink, for each head of a call's batch.
std::vector<double> sums_of_sinks(const BackwardProblem& call) {
  const ForwardProblem& forward = call.forward;
  std::vector<double> sums(static_cast<std::size_t>(forward.batch * forward.num_heads));
  parallel_for(sums.size(), [&](std::size_t item) {
    const auto index = static_cast<std::int64_t>(item);
    for (std::int64_t row = 0; row < forward.q_len; ++row) {
      sums[item] += kernels::plain_grad_sink(call, index / forward.num_heads, index % forward.num_heads, row);
    }
  });
  return sums;
}

/// Rounds sums, [batch, num_heads], to a gradient of sinks, once.
void store_sinks(const BackwardProblem& call, std::span<const double> sums) {
  for (std::size_t item = 0; item < sums.size(); ++item) {
    const std::int64_t b = static_cast<std::int64_t>(item) / call.forward.num_heads;
    const std::int64_t h = static_cast<std::int64_t>(item) % call.forward.num_heads;
    const double before = call.accumulate ? call.grad_sinks.number(b, h) : 0.0;
    call.grad_sinks.put(before + sums[item], b, h);
  }
}

/// The gradients of sinks: a sum over rows, then over the batch, or the calls, where those share sinks.
void sinks(Calls calls) {
  const BackwardProblem& first = calls.front();
  if (!first.grad_sinks) return;
  std::vector<double> shared(static_cast<std::size_t>(first.forward.num_heads), 0.0);
  for (const BackwardProblem& call : calls) {
    const std::vector<double> sums = sums_of_sinks(call);
    if (!call.shares_sinks) {
      store_sinks(call, sums);
      continue;
    }
    for (std::size_t item = 0; item < sums.size(); ++item) shared[item % shared.size()] += sums[item];
  }
  if (first.shares_sinks) store_sinks(first, shared);
}

}  // namespace

void run_backward(Calls calls, std::string_view target) {
  if (calls.empty()) return;
  const RowsAgain again(calls, target);
  const ForwardProblem& first = calls.front().forward;
  if (first.dtype == Dtype::kFloat64 || !kernels::Formula::representable(first)) {
    backward_plain(calls);
  } else {
    backward_f32(calls, kernels::backward_kernel_f32(target));
  }
  sinks(calls);
}

}  // namespace qkv::attention_detail
