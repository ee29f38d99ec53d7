#include "attention/forward.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/useful_threads.h"
#include "base/parallel.h"
#include "kernels/forward_f32.h"
#include "kernels/forward_plain.h"
#include "kernels/key_order.h"
#include "kernels/packed_head.h"
#include "kernels/prefetch.h"
#include "kernels/row_block.h"
#include "kernels/tile_shape.h"

namespace qkv::attention_detail {
namespace {

using kernels::align_down;
using kernels::ChunkState;
using kernels::ForwardKernelF32;
using kernels::ForwardProblem;
using kernels::KeySpan;
using kernels::kKeyChunk;
using kernels::NextHead;
using kernels::PackedHead;
using kernels::PackedHeadBuffer;
using kernels::Result;

/// Below this many multiply-adds, waking a thread costs more than it saves.
constexpr double kSerialWork = 2e5;
constexpr std::int64_t kPlainRows = 16;
constexpr std::int64_t kPackWords = 8;

using Calls = std::span<const ForwardProblem>;

/// A kv head and the query heads that share it.
struct Head {
  const ForwardProblem& problem;
  std::int64_t batch = 0;
  std::int64_t kv_head = 0;
};

/// The kv heads of all calls, numbered call by call, batch by batch.
class Heads {
 public:
  explicit Heads(Calls calls) : calls_(calls) {
    if (calls.size() == 1) {  // nothing to look up, and nothing to allocate
      size_ = count(calls.front());
      return;
    }
    ends_.reserve(calls.size());
    for (const ForwardProblem& call : calls) ends_.push_back(size_ += count(call));
  }

  std::int64_t size() const noexcept { return size_; }

  Head operator[](std::int64_t index) const {
    std::size_t at = 0;
    if (!ends_.empty()) {
      at = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
      if (at > 0) index -= ends_[at - 1];
    }
    const ForwardProblem& problem = calls_[at];
    return {problem, index / problem.num_kv_heads, index % problem.num_kv_heads};
  }

 private:
  static std::int64_t count(const ForwardProblem& call) { return call.batch * call.num_kv_heads; }

  Calls calls_;
  std::int64_t size_ = 0;
  std::vector<std::int64_t> ends_;  ///< by call
};

int threads_for(Calls calls) {
  double work = 0;
  for (const ForwardProblem& call : calls) work += multiply_adds(call);
  return useful_threads(work, kSerialWork);
}

/// Keys that a head's rows can ask for: packing leaves the others alone.
KeySpan packed_span(const ForwardProblem& problem, std::int64_t batch) {
  if (problem.logits && problem.logits_stage != LogitsStage::kMasked) return {{0, problem.kv_len}, {}};
  return rows_span(problem, batch, 0, problem.q_len);
}

PackedHead layout(const Head& head, PackedHeadBuffer& buffer) {
  return buffer.layout(head.problem, head.batch, head.kv_head, packed_span(head.problem, head.batch));
}

/// For rows that pack the keys themselves.
PackedHead not_packed(const Head& head) {
  PackedHead packed;
  packed.batch = head.batch;
  packed.kv_head = head.kv_head;
  return packed;
}

NextHead next_head(const Head& head) {
  return {head.problem, head.batch, head.kv_head, packed_span(head.problem, head.batch).range};
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
void compute_heads(const Heads& heads, const ForwardKernelF32& kernel, std::atomic<std::int64_t>& next) {
  PackedHeadBuffer buffer;
  for (std::int64_t index = next++; index < heads.size();) {
    const std::int64_t following = next++;
    const Head head = heads[index];
    PackedHead packed = not_packed(head);
    if (!kernels::packs_by_block(head.problem)) {
      packed = layout(head, buffer);
      kernel.pack(head.problem, packed, 0, packed.num_words());
    }
    const NextHead then = following < heads.size() ? next_head(heads[following]) : NextHead();
    const std::int64_t rows = head.problem.rows_of_head();
    const std::int64_t step = kernels::rows_per_block(head.problem);
    for (std::int64_t row = 0; row < rows; row += step) {
      kernel.run(head.problem, packed, row, std::min(row + step, rows), then);
    }
    index = following;
  }
}

/// Many heads: each thread takes whole heads, so that one packed head a thread is in flight.
void forward_by_heads(const Heads& heads, const ForwardKernelF32& kernel, int threads) {
  std::atomic<std::int64_t> next = 0;
  if (threads == 1) return compute_heads(heads, kernel, next);
  parallel_for(static_cast<std::size_t>(threads), [&](std::size_t) { compute_heads(heads, kernel, next); });
}

/// Words [begin, end) of a packed head, or rows of it.
struct Piece {
  std::size_t slot = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

void add_pieces(std::size_t slot, std::int64_t count, std::int64_t step, std::vector<Piece>& pieces) {
  for (std::int64_t begin = 0; begin < count; begin += step) {
    pieces.push_back({slot, begin, std::min(begin + step, count)});
  }
}

/// Few heads: as many as there are threads at a time, packed and computed by all threads together.
void forward_by_rows(const Heads& heads, const ForwardKernelF32& kernel, int threads) {
  std::vector<PackedHeadBuffer> buffers(static_cast<std::size_t>(std::min<std::int64_t>(threads, heads.size())));
  const auto wave_size = static_cast<std::int64_t>(buffers.size());
  for (std::int64_t first = 0; first < heads.size(); first += wave_size) {
    const std::int64_t count = std::min(wave_size, heads.size() - first);
    std::vector<PackedHead> packed;
    std::vector<Piece> words;
    std::vector<Piece> rows;
    std::int64_t all_rows = 0;
    for (std::int64_t i = 0; i < count; ++i) all_rows += heads[first + i].problem.rows_of_head();
    // Four pieces a thread even out a causal triangle; a piece of fewer rows than two tiles would read K for nothing.
    const std::int64_t even = (all_rows + 4 * threads - 1) / (4 * threads);
    const std::int64_t least = std::max<std::int64_t>(2 * kernels::kTileRows, even);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto slot = static_cast<std::size_t>(i);
      const Head head = heads[first + i];
      packed.push_back(layout(head, buffers[slot]));
      add_pieces(slot, packed[slot].num_words(), kPackWords, words);
      add_pieces(slot, head.problem.rows_of_head(), std::min(kernels::rows_per_block(head.problem), least), rows);
    }
    const auto problem_of = [&](const Piece& piece) -> const ForwardProblem& {
      return heads[first + static_cast<std::int64_t>(piece.slot)].problem;
    };
    parallel_for(words.size(), [&](std::size_t item) {
      const Piece& piece = words[item];
      kernel.pack(problem_of(piece), packed[piece.slot], piece.begin, piece.end);
    });
    parallel_for(rows.size(), [&](std::size_t item) {
      const Piece& piece = rows[item];
      kernel.run(problem_of(piece), packed[piece.slot], piece.begin, piece.end, NextHead());
    });
  }
}

/// The chunks that a head's rows see a key of.
std::vector<std::int64_t> chunks_of(const Head& head) {
  const KeySpan span = packed_span(head.problem, head.batch);
  std::vector<std::int64_t> chunks;
  for (std::int64_t first = align_down(span.range.begin, kKeyChunk); first < span.range.end; first += kKeyChunk) {
    const KeySpan part = span.within({first, first + kKeyChunk});
    if (!part.range.empty()) {
      chunks.push_back(first / kKeyChunk);
    } else {  // in the hole
      first = align_down(span.hole.end, kKeyChunk) - kKeyChunk;
    }
  }
  return chunks;
}

/// Few heads of a few rows, which read their keys once: threads take chunks of keys.
void forward_by_chunks(const Heads& heads, const ForwardKernelF32& kernel) {
  struct Part {
    std::int64_t head = 0;
    std::int64_t chunk = 0;
  };
  std::vector<Part> parts;
  std::vector<std::size_t> ends;  // of a head's parts
  for (std::int64_t index = 0; index < heads.size(); ++index) {
    for (const std::int64_t chunk : chunks_of(heads[index])) parts.push_back({index, chunk});
    ends.push_back(parts.size());
  }
  const auto first_of = [&](std::size_t index) { return index == 0 ? 0 : ends[index - 1]; };
  const auto has_several = [&](std::size_t index) { return ends[index] - first_of(index) > 1; };
  std::vector<ChunkState> states(parts.size());
  parallel_for(parts.size(), [&](std::size_t item) {
    const Part& part = parts[item];
    const Head head = heads[part.head];
    if (!has_several(static_cast<std::size_t>(part.head))) return;
    kernel.run_chunk(head.problem, not_packed(head), part.chunk, states[item]);
  });
  parallel_for(ends.size(), [&](std::size_t index) {
    const Head head = heads[static_cast<std::int64_t>(index)];
    if (has_several(index)) {
      const std::span<const ChunkState> of_head(states.data() + first_of(index), ends[index] - first_of(index));
      kernel.finish_chunks(head.problem, not_packed(head), of_head);
    } else {
      kernel.run(head.problem, not_packed(head), 0, head.problem.rows_of_head(), NextHead());
    }
  });
}

bool pack_by_block(Calls calls) { return std::all_of(calls.begin(), calls.end(), kernels::packs_by_block); }

void forward_f32(Calls calls, const ForwardKernelF32& kernel, int threads) {
  const Heads heads(calls);
  if (threads == 1 || heads.size() >= 4 * threads) {
    forward_by_heads(heads, kernel, threads);
  } else if (pack_by_block(calls)) {
    forward_by_chunks(heads, kernel);
  } else {
    forward_by_rows(heads, kernel, threads);
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

void forward(Calls calls, std::string_view target) {
  const int threads = threads_for(calls);
  if (calls.empty()) return;
  const ForwardProblem& first = calls.front();
  if (first.batch == 0 || first.q_len == 0) return;
  if (first.dtype == Dtype::kFloat64 || !kernels::Formula::representable(first)) {
    for (const ForwardProblem& call : calls) forward_plain(call, threads);
    return;
  }
  const ForwardKernelF32& kernel = kernel_named(target);
  if (first.value_dim <= kernels::kMostValueColumns) return forward_f32(calls, kernel, threads);
  for (std::int64_t column = 0; column < first.value_dim; column += kernels::kMostValueColumns) {
    std::vector<ForwardProblem> parts;
    for (const ForwardProblem& call : calls) parts.push_back(value_columns(call, column));
    forward_f32(parts, kernel, threads);
  }
}

}  // namespace qkv::attention_detail
