#include "attention/forward.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/parallel.h"
#include "kernels/forward_f32.h"
#include "kernels/forward_plain.h"
#include "kernels/packed_head.h"
#include "kernels/prefetch.h"
#include "kernels/row_block.h"
#include "kernels/tile_shape.h"
#include "qkv/runtime.h"

namespace qkv::attention_detail {
namespace {

using kernels::ForwardKernelF32;
using kernels::ForwardProblem;
using kernels::KeyRange;
using kernels::NextHead;
using kernels::PackedHead;
using kernels::PackedHeadBuffer;
using kernels::Result;

/// Below this many multiply-adds, waking a thread costs more than it saves.
constexpr double kSerialWork = 2e5;
constexpr std::int64_t kPlainRows = 16;
constexpr std::int64_t kPackWords = 8;

/// The kv heads of a call, numbered batch by batch.
struct Head {
  std::int64_t batch = 0;
  std::int64_t kv_head = 0;
};

Head head_at(const ForwardProblem& problem, std::int64_t index) {
  return {index / problem.num_kv_heads, index % problem.num_kv_heads};
}

std::int64_t num_heads(const ForwardProblem& problem) { return problem.batch * problem.num_kv_heads; }

int useful_threads(const ForwardProblem& problem) {
  // Asked for in every call: a bad QKV_NUM_THREADS is refused by the smallest.
  const int threads = std::min(num_threads(), kMostThreads);
  const double products = static_cast<double>(problem.batch * problem.num_heads) * static_cast<double>(problem.q_len) *
                          static_cast<double>(problem.kv_len);
  return products * static_cast<double>(problem.head_dim + problem.value_dim) < kSerialWork ? 1 : threads;
}

/// Keys that a head's rows can ask for: packing leaves the others alone.
KeyRange packed_range(const ForwardProblem& problem, std::int64_t batch) {
  if (problem.logits && problem.logits_stage != LogitsStage::kMasked) return {0, problem.kv_len};
  return rows_range(problem, batch, 0, problem.q_len);
}

PackedHead layout(const ForwardProblem& problem, std::int64_t index, PackedHeadBuffer& buffer) {
  const auto [batch, kv_head] = head_at(problem, index);
  return buffer.layout(problem, batch, kv_head, packed_range(problem, batch));
}

NextHead next_head_at(const ForwardProblem& problem, std::int64_t index) {
  const auto [batch, kv_head] = head_at(problem, index);
  return {problem, batch, kv_head, packed_range(problem, batch)};
}

void forward_plain(const ForwardProblem& problem, int threads) {
  const std::int64_t blocks = (problem.q_len + kPlainRows - 1) / kPlainRows;
  const auto compute = [&](std::size_t item) {
    const auto index = static_cast<std::int64_t>(item);
    const std::int64_t head = index / blocks % problem.num_heads;
    const std::int64_t batch = index / blocks / problem.num_heads;
    const std::int64_t begin = index % blocks * kPlainRows;
    const std::int64_t end = std::min(begin + kPlainRows, problem.q_len);
    kernels::plain_rows(problem, batch, head, begin, end);
    if (problem.logits) kernels::plain_logits(problem, batch, head, begin, end);
  };
  const auto items = static_cast<std::size_t>(problem.batch * problem.num_heads * blocks);
  if (threads > 1) return parallel_for(items, compute);
  for (std::size_t item = 0; item < items; ++item) compute(item);
}

/// Packs heads and computes all of their rows, one after the other, until `next` is beyond the last.
void compute_heads(const ForwardProblem& problem, const ForwardKernelF32& kernel, std::atomic<std::int64_t>& next) {
  const std::int64_t heads = num_heads(problem);
  const std::int64_t rows = problem.rows_of_head();
  const std::int64_t step = kernels::rows_per_block(problem);
  PackedHeadBuffer buffer;
  for (std::int64_t index = next++; index < heads;) {
    const std::int64_t following = next++;
    const PackedHead head = layout(problem, index, buffer);
    kernel.pack(problem, head, 0, head.num_words());
    const NextHead next_head = following < heads ? next_head_at(problem, following) : NextHead();
    for (std::int64_t row = 0; row < rows; row += step) {
      kernel.run(problem, head, row, std::min(row + step, rows), next_head);
    }
    index = following;
  }
}

/// Many heads: each thread takes whole heads, so that one packed head a thread is in flight.
void forward_by_heads(const ForwardProblem& problem, const ForwardKernelF32& kernel, int threads) {
  std::atomic<std::int64_t> next = 0;
  if (threads == 1) return compute_heads(problem, kernel, next);
  parallel_for(static_cast<std::size_t>(threads), [&](std::size_t) { compute_heads(problem, kernel, next); });
}

/// Few heads: as many as there are threads at a time, packed and computed by all threads together.
void forward_by_rows(const ForwardProblem& problem, const ForwardKernelF32& kernel, int threads) {
  const std::int64_t heads = num_heads(problem);
  const std::int64_t rows = problem.rows_of_head();
  std::vector<PackedHeadBuffer> buffers(static_cast<std::size_t>(std::min<std::int64_t>(threads, heads)));
  std::vector<PackedHead> packed(buffers.size());
  const auto wave_size = static_cast<std::int64_t>(buffers.size());
  for (std::int64_t first = 0; first < heads; first += wave_size) {
    const std::int64_t count = std::min(wave_size, heads - first);
    std::int64_t most_words = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto slot = static_cast<std::size_t>(i);
      packed[slot] = layout(problem, first + i, buffers[slot]);
      most_words = std::max(most_words, packed[slot].num_words());
    }
    const std::int64_t pieces = (most_words + kPackWords - 1) / kPackWords;
    parallel_for(static_cast<std::size_t>(count * pieces), [&](std::size_t item) {
      const auto slot = item / static_cast<std::size_t>(pieces);
      const std::int64_t begin = static_cast<std::int64_t>(item % static_cast<std::size_t>(pieces)) * kPackWords;
      const std::int64_t end = std::min(begin + kPackWords, packed[slot].num_words());
      if (begin < end) kernel.pack(problem, packed[slot], begin, end);
    });
    // Four pieces a thread even out a causal triangle; a piece of fewer rows than two tiles would read K for nothing.
    const std::int64_t even = (count * rows + 4 * threads - 1) / (4 * threads);
    const std::int64_t step =
        std::min(kernels::rows_per_block(problem), std::max<std::int64_t>(2 * kernels::kTileRows, even));
    const std::int64_t blocks = (rows + step - 1) / step;
    parallel_for(static_cast<std::size_t>(count * blocks), [&](std::size_t item) {
      const auto slot = item / static_cast<std::size_t>(blocks);
      const std::int64_t begin = static_cast<std::int64_t>(item) % blocks * step;
      kernel.run(problem, packed[slot], begin, std::min(begin + step, rows), NextHead());
    });
  }
}

void forward_f32(const ForwardProblem& problem, const ForwardKernelF32& kernel, int threads) {
  if (threads == 1 || num_heads(problem) >= 4 * threads) {
    forward_by_heads(problem, kernel, threads);
  } else {
    forward_by_rows(problem, kernel, threads);
  }
}

/// The call for some columns of V alone. Logits are formed again for each part, with the same bits; what else was asked
/// for is written with the first.
ForwardProblem value_columns(const ForwardProblem& problem, std::int64_t column) {
  ForwardProblem part = problem;
  part.value_dim = std::min(kernels::kMostValueColumns, problem.value_dim - column);
  part.v.data = problem.v.address(0, 0, 0, column);
  part.out.data = problem.out.address(0, 0, 0, column);
  if (column > 0) {
    for (Result* output : {&part.lse, &part.weights, &part.logits, &part.max_raw, &part.max_logit, &part.max_key,
                           &part.max_weight, &part.entropy, &part.key_weight}) {
      *output = {};
    }
  }
  return part;
}

const ForwardKernelF32& kernel_named(std::string_view target) {
  const auto all = kernels::forward_kernels_f32();
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& kernel) { return kernel.target == target; });
  return found != all.end() ? *found : all.front();
}

}  // namespace

void forward(const ForwardProblem& problem, std::string_view target) {
  const int threads = useful_threads(problem);
  if (problem.batch == 0 || problem.q_len == 0) return;
  if (problem.dtype == Dtype::kFloat64) return forward_plain(problem, threads);
  if (!kernels::Formula::representable(problem)) return forward_plain(problem, threads);
  const ForwardKernelF32& kernel = kernel_named(target);
  if (problem.value_dim <= kernels::kMostValueColumns) return forward_f32(problem, kernel, threads);
  for (std::int64_t column = 0; column < problem.value_dim; column += kernels::kMostValueColumns) {
    forward_f32(value_columns(problem, column), kernel, threads);
  }
}

}  // namespace qkv::attention_detail
