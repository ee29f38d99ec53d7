#include "attention/run_backward.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/bias_gradient.h"
#include "attention/forward.h"
#include "attention/validate_parts.h"
#include "base/element.h"
#include "base/parallel.h"
#include "kernels/backward_plain.h"
#include "kernels/row_block.h"
#include "qkv/runtime.h"
#include "qkv/tensor.h"

namespace qkv::attention_detail {
namespace {

using kernels::BackwardProblem;
using kernels::ForwardProblem;

using Calls = std::span<BackwardProblem>;

constexpr std::int64_t kPlainRows = 16;

/// The entropy of every row, which the forward call may not have been asked for: its softmax once more, without V.
std::vector<Tensor> add_entropies(Calls calls, std::string_view target) {
  std::vector<Tensor> entropies;
  std::vector<ForwardProblem> forwards;
  entropies.reserve(calls.size());
  for (BackwardProblem& call : calls) {
    if (!call.grad_entropy) continue;
    ForwardProblem forward = call.forward;
    Tensor& entropy =
        entropies.emplace_back(Extents{forward.batch, forward.num_heads, forward.q_len}, stats_dtype(forward.dtype));
    forward.value_dim = 0;
    forward.entropy = result_of(entropy.view());
    call.entropy = operand_of(entropy.view());
    if (forward.q_len > 0) forwards.push_back(std::move(forward));
  }
  forward(forwards, target);
  return entropies;
}

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
  const std::int64_t blocks = (forward.kv_len + kPlainRows - 1) / kPlainRows;
  parallel_for(static_cast<std::size_t>(forward.batch * forward.num_kv_heads * blocks), [&](std::size_t item) {
    const auto index = static_cast<std::int64_t>(item);
    const std::int64_t first = index % blocks * kPlainRows;
    kernels::plain_grad_kv(call, index / blocks / forward.num_kv_heads, index / blocks % forward.num_kv_heads, first,
                           std::min(first + kPlainRows, forward.kv_len));
  });
}

void plain_bias(const BackwardProblem& call) {
  const BiasGradient bias(call);
  if (!bias) return bias.store();
  const ForwardProblem& forward = call.forward;
  const auto chains = bias.chains(forward.num_heads);
  parallel_for(chains.size(), [&](std::size_t item) {
    for (const std::int64_t head : chains[item]) {
      for (std::int64_t row = 0; row < forward.q_len; ++row) {
        kernels::plain_grad_bias(call, bias.sums(), head / forward.num_heads, head % forward.num_heads, row);
      }
    }
  });
  bias.store();
}

/// The gradients of sinks: a sum over rows, then over the batch, or the calls, where those share sinks.
void sinks(Calls calls) {
  if (!calls.front().grad_sinks) return;
  const std::int64_t num_heads = calls.front().forward.num_heads;
  std::vector<double> shared(static_cast<std::size_t>(num_heads), 0.0);
  bool has_shared = false;
  for (const BackwardProblem& call : calls) {
    const ForwardProblem& forward = call.forward;
    const bool shares = call.grad_sinks.batch == 0 && (calls.size() > 1 || forward.batch > 1);
    has_shared |= shares;
    std::vector<double> sums(static_cast<std::size_t>(forward.batch * num_heads));
    parallel_for(sums.size(), [&](std::size_t item) {
      const auto index = static_cast<std::int64_t>(item);
      for (std::int64_t row = 0; row < forward.q_len; ++row) {
        sums[item] += kernels::plain_grad_sink(call, index / num_heads, index % num_heads, row);
      }
    });
    for (std::size_t item = 0; item < sums.size(); ++item) {
      const auto index = static_cast<std::int64_t>(item);
      if (shares) {
        shared[item % static_cast<std::size_t>(num_heads)] += sums[item];
      } else {
        const double before = call.accumulate ? call.grad_sinks.number(index / num_heads, index % num_heads) : 0.0;
        call.grad_sinks.put(before + sums[item], index / num_heads, index % num_heads);
      }
    }
  }
  if (!has_shared) return;
  const BackwardProblem& call = calls.front();
  for (std::int64_t head = 0; head < num_heads; ++head) {
    const double before = call.accumulate ? call.grad_sinks.number(0, head) : 0.0;
    call.grad_sinks.put(before + shared[static_cast<std::size_t>(head)], 0, head);
  }
}

}  // namespace

void run_backward(Calls calls, std::string_view target) {
  if (calls.empty()) return;
  const std::vector<Tensor> entropies = add_entropies(calls, target);
  for (const BackwardProblem& call : calls) {
    plain_operands(call);
    plain_bias(call);
  }
  sinks(calls);
}

}  // namespace qkv::attention_detail
