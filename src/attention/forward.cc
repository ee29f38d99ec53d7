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
#include "kernels/row_block.h"
#include "kernels/tile_shape.h"
#include "qkv/runtime.h"

namespace qkv::attention_detail {
namespace {

using kernels::ForwardKernelF32;
using kernels::ForwardProblem;
using kernels::KeyRange;
using kernels::PackedHead;
using kernels::PackedHeadBuffer;

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

std::int64_t rows_of_head(const ForwardProblem& problem) { return problem.group_size() * problem.q_len; }

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

template <class T>
void forward_plain(const ForwardProblem& problem) {
  const std::int64_t blocks = (problem.q_len + kPlainRows - 1) / kPlainRows;
  parallel_for(static_cast<std::size_t>(problem.batch * problem.num_heads * blocks), [&](std::size_t item) {
    const auto index = static_cast<std::int64_t>(item);
    const std::int64_t head = index / blocks % problem.num_heads;
    const std::int64_t batch = index / blocks / problem.num_heads;
    const std::int64_t begin = index % blocks * kPlainRows;
    const std::int64_t end = std::min(begin + kPlainRows, problem.q_len);
    kernels::plain_rows<T>(problem, batch, head, begin, end);
    if (problem.logits) kernels::plain_logits<T>(problem, batch, head, begin, end);
  });
}

/// Many heads: each thread packs a head and computes all of its rows, so that one packed head a thread is in flight.
void forward_by_heads(const ForwardProblem& problem, const ForwardKernelF32& kernel, int threads) {
  const std::int64_t heads = num_heads(problem);
  const std::int64_t rows = rows_of_head(problem);
  const std::int64_t step = kernels::rows_per_block(problem);
  std::atomic<std::int64_t> next = 0;
  parallel_for(static_cast<std::size_t>(threads), [&](std::size_t) {
    PackedHeadBuffer buffer;
    for (std::int64_t index = next++; index < heads; index = next++) {
      const auto [batch, kv_head] = head_at(problem, index);
      const PackedHead head = buffer.layout(problem, batch, kv_head, packed_range(problem, batch), kernel.lanes);
      kernel.pack(problem, batch, kv_head, head, 0, head.num_words());
      for (std::int64_t row = 0; row < rows; row += step) {
        kernel.run(problem, batch, kv_head, head, row, std::min(row + step, rows));
      }
    }
  });
}

/// Few heads: as many as there are threads at a time, packed and computed by all threads together.
void forward_by_rows(const ForwardProblem& problem, const ForwardKernelF32& kernel, int threads) {
  const std::int64_t heads = num_heads(problem);
  const std::int64_t rows = rows_of_head(problem);
  std::vector<PackedHeadBuffer> buffers(static_cast<std::size_t>(std::min<std::int64_t>(threads, heads)));
  std::vector<PackedHead> packed(buffers.size());
  const auto wave_size = static_cast<std::int64_t>(buffers.size());
  for (std::int64_t first = 0; first < heads; first += wave_size) {
    const std::int64_t count = std::min(wave_size, heads - first);
    std::int64_t most_words = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto [batch, kv_head] = head_at(problem, first + i);
      const auto slot = static_cast<std::size_t>(i);
      packed[slot] = buffers[slot].layout(problem, batch, kv_head, packed_range(problem, batch), kernel.lanes);
      most_words = std::max(most_words, packed[slot].num_words());
    }
    const std::int64_t pieces = (most_words + kPackWords - 1) / kPackWords;
    parallel_for(static_cast<std::size_t>(count * pieces), [&](std::size_t item) {
      const auto slot = item / static_cast<std::size_t>(pieces);
      const std::int64_t begin = static_cast<std::int64_t>(item % static_cast<std::size_t>(pieces)) * kPackWords;
      const std::int64_t end = std::min(begin + kPackWords, packed[slot].num_words());
      const auto [batch, kv_head] = head_at(problem, first + static_cast<std::int64_t>(slot));
      if (begin < end) kernel.pack(problem, batch, kv_head, packed[slot], begin, end);
    });
    // Four pieces a thread even out a causal triangle; a piece of fewer rows than two tiles would read K for nothing.
    const std::int64_t even = (count * rows + 4 * threads - 1) / (4 * threads);
    const std::int64_t step =
        std::min(kernels::rows_per_block(problem), std::max<std::int64_t>(2 * kernels::kTileRows, even));
    const std::int64_t blocks = (rows + step - 1) / step;
    parallel_for(static_cast<std::size_t>(count * blocks), [&](std::size_t item) {
      const auto slot = static_cast<std::int64_t>(item) / blocks;
      const std::int64_t begin = static_cast<std::int64_t>(item) % blocks * step;
      const auto [batch, kv_head] = head_at(problem, first + slot);
      kernel.run(problem, batch, kv_head, packed[static_cast<std::size_t>(slot)], begin, std::min(begin + step, rows));
    });
  }
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
  if (problem.dtype == Dtype::kFloat64) return forward_plain<double>(problem);
  if (!kernels::Formula::representable(problem)) return forward_plain<float>(problem);
  const ForwardKernelF32& kernel = kernel_named(target);
  if (threads == 1 || num_heads(problem) >= 4 * threads) {
    forward_by_heads(problem, kernel, threads);
  } else {
    forward_by_rows(problem, kernel, threads);
  }
}

}  // namespace qkv::attention_detail
