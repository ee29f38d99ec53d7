#include "kernels/forward_f32.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/forward_plain.h"
#define QKV_WITH_PAIRS  // before highway_targets.h, which reads it
#include "kernels/highway_targets.h"
#include "kernels/key_order.h"
#include "kernels/packed_head.h"
#include "kernels/row_block.h"
#include "kernels/row_result.h"
#include "kernels/visibility.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/forward_f32.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets the target of each pass.
#include "hwy/highway.h"
#include "kernels/dropout-inl.h"
#include "kernels/outputs-inl.h"
#include "kernels/pack-inl.h"
#include "kernels/queries-inl.h"
#include "kernels/softmax-inl.h"
#include "kernels/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

/// One key block for one group of rows: Q K^T, softmax, P V.
template <int kR>
void group_step(RowBlock& block, std::int64_t first_row, std::int64_t base) {
  BlockView<kR> view(block, first_row, base);
  block_logits(block, view);
  if (view.num_runs == 0) return;
  for (int r = 0; r < kR; ++r) view.correction[r] = update_row(block, r, view);
  if (block.problem.dropout > 0) drop_weights(block, view);
  view.fresh = std::exchange(block.fresh[first_row], false);
  block_values(block, view);
}

template <int kR>
void group_finish(RowBlock& block, std::int64_t first_row) {
  // Rows that saw no key: their result is 0, whatever scratch memory holds. Totals of chunks begin at 0.
  if (block.fresh[first_row] && !block.several_chunks) {
    std::fill_n(block.chunk.values + first_row * block.value_stride, kR * block.value_stride, 0.0f);
  }
  float factors[kR];
  for (int r = 0; r < kR; ++r) {
    const std::int64_t row = first_row + r;
    Row& current = block.rows[row];
    current.careful = softmax_left_f32(block, row);
    if (current.careful) {
      factors[r] = 0;
      plain_rows(block.problem, block.head.batch, current.head, current.index, current.index + 1);
      continue;
    }
    factors[r] = finish_row(block, row);
  }
  if (wants_matrices(block, first_row, kR)) write_matrices<kR>(block, first_row, factors);
}

using GroupStep = void (*)(RowBlock&, std::int64_t, std::int64_t);
using GroupFinish = void (*)(RowBlock&, std::int64_t);
constexpr GroupStep kGroupStep[kTileRows] = {group_step<1>, group_step<2>, group_step<3>,
                                             group_step<4>, group_step<5>, group_step<6>};
constexpr GroupFinish kGroupFinish[kTileRows] = {group_finish<1>, group_finish<2>, group_finish<3>,
                                                 group_finish<4>, group_finish<5>, group_finish<6>};

void clear_state(const RowBlock& block, const SoftmaxState& state) {
  std::fill_n(state.max, block.num_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, block.num_rows, 0.0f);
  if (state.divisor != nullptr) std::fill_n(state.divisor, block.num_rows, 0.0f);
  if (state.entropy == nullptr) return;
  std::fill_n(state.entropy, block.num_rows, 0.0f);
  std::fill_n(state.chosen, block.num_rows, 0.0f);
}

void clear_states(const RowBlock& block) {
  clear_state(block, block.chunk);
  std::fill_n(block.fresh, block.num_rows, true);
  if (block.several_chunks) {
    clear_state(block, block.total);
    std::fill_n(block.total.values, block.num_rows * block.value_stride, 0.0f);
  }
  if (block.max_key == nullptr) return;
  std::fill_n(block.max_logit, block.num_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(block.max_raw, block.num_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(block.max_key, block.num_rows, std::int64_t{-1});
}

/// All key blocks of the span, one after the other; states of chunks go into the totals. Calls first_block(first row,
/// number of rows) for each group before its first block.
template <class FirstBlock>
void compute_blocks(RowBlock& block, const FirstBlock& first_block) {
  const KeySpan& span = block.span;
  const std::int64_t first_base = align_down(span.range.begin, kKeyBlock);
  std::int64_t next_base = first_base;
  for (std::int64_t base = first_base; base < span.range.end; base = next_base) {
    next_base = base + kKeyBlock;
    if (next_base == span.hole.begin) next_base = span.hole.end;
    if (block.own_keys != nullptr && !block.packs_panels) {
      const std::int64_t begin = align_down(std::max(base, span.range.begin), kWordKeys);
      pack_for_few(block, {begin, std::min(base + kKeyBlock, span.range.end)});
    }
    if (!block.values_in_place) pack_values(block, base);
    for_each_group(block.num_rows, [&](std::int64_t first, std::int64_t size) {
      if (base == first_base) first_block(first, size);
      kGroupStep[size - 1](block, first, base);
    });
    const bool chunk_ends = next_base / kKeyChunk != base / kKeyChunk || next_base >= span.range.end;
    if (!block.several_chunks || !chunk_ends) continue;
    for (std::int64_t row = 0; row < block.num_rows; ++row) merge_chunk(block, row);
    std::fill_n(block.fresh, block.num_rows, true);
  }
}

void finish_groups(RowBlock& block) {
  for_each_group(block.num_rows, [&](std::int64_t first, std::int64_t size) { kGroupFinish[size - 1](block, first); });
}

RowBlock begin_block(const ForwardProblem& problem, const PackedHead& head, std::int64_t row_begin,
                     std::int64_t row_end) {
  RowBlock block{problem, Formula(problem), head};
  block.pairs = multiplies_pairs(problem);
  block.depth = depth_of(problem);
  begin_rows(block, row_begin, row_end, kLanes, kPanel);
  return block;
}

void run_rows(const ForwardProblem& problem, const PackedHead& head, std::int64_t row_begin, std::int64_t row_end,
              const NextHead& next) {
  RowBlock block = begin_block(problem, head, row_begin, row_end);
  scale_queries(block);
  clear_states(block);
  compute_blocks(block, [&](std::int64_t first, std::int64_t size) {
    next.prefetch(row_begin + first, row_begin + first + size, problem.rows_of_head());
  });
  finish_groups(block);
}

void save_row(const RowBlock& block, std::int64_t row, ChunkState& state) {
  const SoftmaxState& chunk = block.chunk;
  ChunkState::Row& saved = state.rows[static_cast<std::size_t>(row)];
  saved.max = chunk.max[row];
  saved.sum = chunk.sum[row];
  if (chunk.divisor != nullptr) saved.divisor = chunk.divisor[row];
  saved.seen = block.rows[row].seen;
  saved.careful = block.rows[row].careful;
  std::copy_n(chunk.values + row * block.value_stride, block.value_stride,
              state.values.data() + row * block.value_stride);
  if (block.max_key == nullptr) return;
  saved.entropy = chunk.entropy[row];
  saved.chosen = chunk.chosen[row];
  saved.max_logit = block.max_logit[row];
  saved.max_raw = block.max_raw[row];
  saved.max_key = block.max_key[row];
}

/// As if the chunk's blocks had been computed here.
void restore_row(const ChunkState& state, std::int64_t row, RowBlock& block) {
  SoftmaxState& chunk = block.chunk;
  const ChunkState::Row& saved = state.rows[static_cast<std::size_t>(row)];
  chunk.max[row] = saved.max;
  chunk.sum[row] = saved.sum;
  if (chunk.divisor != nullptr) chunk.divisor[row] = saved.divisor;
  block.rows[row].seen |= saved.seen;
  block.rows[row].careful |= saved.careful;
  std::copy_n(state.values.data() + row * block.value_stride, block.value_stride,
              chunk.values + row * block.value_stride);
  if (block.max_key == nullptr) return;
  chunk.entropy[row] = saved.entropy;
  chunk.chosen[row] = saved.chosen;
  block.max_raw[row] = std::max(block.max_raw[row], saved.max_raw);
  if (!(saved.max_logit > block.max_logit[row])) return;  // of equal ones the lowest key's
  block.max_logit[row] = saved.max_logit;
  block.max_key[row] = saved.max_key;
}

void run_chunk(const ForwardProblem& problem, const PackedHead& head, std::int64_t chunk, ChunkState& state) {
  RowBlock block = begin_block(problem, head, 0, problem.rows_of_head());
  block.span = block.span.within({chunk * kKeyChunk, (chunk + 1) * kKeyChunk});
  block.several_chunks = false;
  scale_queries(block);
  clear_states(block);
  compute_blocks(block, [](std::int64_t, std::int64_t) {});
  state.rows.resize(static_cast<std::size_t>(block.num_rows));
  state.values.resize(static_cast<std::size_t>(block.num_rows * block.value_stride));
  for (std::int64_t row = 0; row < block.num_rows; ++row) save_row(block, row, state);
}

void finish_chunks(const ForwardProblem& problem, const PackedHead& head, std::span<const ChunkState> states) {
  RowBlock block = begin_block(problem, head, 0, problem.rows_of_head());
  clear_states(block);
  for (const ChunkState& state : states) {
    for (std::int64_t row = 0; row < block.num_rows; ++row) {
      restore_row(state, row, block);
      merge_chunk(block, row);
    }
  }
  finish_groups(block);
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "hwy/targets.h"

namespace qkv::kernels {
namespace {

struct Built {
  std::int64_t target_bit;
  ForwardKernelF32 kernel;
};

/// What the compiler's flags promise on any machine that runs this program.
constexpr std::string_view baseline_name() {
  if (HWY_STATIC_TARGET == HWY_SCALAR || HWY_STATIC_TARGET == HWY_EMU128) return "scalar";
#if HWY_ARCH_X86
#ifdef QKV_EMULATE_PAIRS
  if (HWY_STATIC_TARGET == HWY_AVX2) return "avx2_bf16";
#endif
  return HWY_STATIC_TARGET == HWY_AVX3_DL ? "avx512_bf16"
         : HWY_STATIC_TARGET == HWY_AVX3  ? "avx512"
         : HWY_STATIC_TARGET == HWY_AVX2  ? "avx2"
         : HWY_STATIC_TARGET == HWY_SSE4  ? "sse4"
                                          : "sse2";
#elif HWY_ARCH_ARM
  return "neon";
#else
  return "baseline";
#endif
}

#define QKV_KERNEL(NAMESPACE, NAME, BIT)                                                            \
  Built{BIT,                                                                                        \
        {NAME, NAMESPACE::kLanes, NAMESPACE::pack_words, NAMESPACE::run_rows, NAMESPACE::run_chunk, \
         NAMESPACE::finish_chunks}},
constexpr Built kBuilt[] = {
    QKV_TARGETS_ABOVE_BASELINE(QKV_KERNEL)  //
    Built{HWY_STATIC_TARGET,
          {baseline_name(), HWY_STATIC_DISPATCH(kLanes), HWY_STATIC_DISPATCH(pack_words), HWY_STATIC_DISPATCH(run_rows),
           HWY_STATIC_DISPATCH(run_chunk), HWY_STATIC_DISPATCH(finish_chunks)}},
};
#undef QKV_KERNEL

/// What this CPU can run.
std::int64_t supported_targets() {
  std::int64_t targets = hwy::SupportedTargets() | HWY_STATIC_TARGET;
#if HWY_ARCH_X86 && HWY_STATIC_TARGET != HWY_AVX3_DL
  if (!__builtin_cpu_supports("avx512bf16")) targets &= ~std::int64_t{HWY_AVX3_DL};
#endif
  return targets;
}

std::vector<ForwardKernelF32> runnable() {
  std::vector<ForwardKernelF32> kernels;
  const std::int64_t supported = supported_targets();
  for (const Built& built : kBuilt) {
    if ((supported & built.target_bit) != 0) kernels.push_back(built.kernel);
  }
  return kernels;
}

}  // namespace

std::span<const ForwardKernelF32> forward_kernels_f32() {
  // Never destroyed: threads and destructors of others may call while the process exits.
  static const auto& kernels = *new std::vector<ForwardKernelF32>(runnable());
  return kernels;
}

}  // namespace qkv::kernels
#endif  // HWY_ONCE
