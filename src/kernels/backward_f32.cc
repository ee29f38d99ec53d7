#include "kernels/backward_f32.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/backward_plain.h"
#include "kernels/highway_targets.h"
#include "kernels/key_order.h"
#include "kernels/plain_logits.h"
#include "kernels/visibility.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/backward_f32.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets the target of each pass.
#include "hwy/highway.h"
#include "kernels/backward_rows-inl.h"
#include "kernels/backward_tiles-inl.h"
#include "kernels/queries-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

using GroupSlopes = void (*)(BackwardBlock&, Group&);
using KeyProducts = void (*)(const BackwardBlock&, std::int64_t, std::int64_t, std::int64_t);
using RowProducts = void (*)(const BackwardBlock&, const Group&);
constexpr GroupSlopes kGroupSlopes[kTileRows] = {group_slopes<1>, group_slopes<2>, group_slopes<3>,
                                                 group_slopes<4>, group_slopes<5>, group_slopes<6>};
constexpr KeyProducts kKeyProducts[kTileRows] = {key_products<1>, key_products<2>, key_products<3>,
                                                 key_products<4>, key_products<5>, key_products<6>};
constexpr RowProducts kRowProducts[kTileRows] = {row_products<1>, row_products<2>, row_products<3>,
                                                 row_products<4>, row_products<5>, row_products<6>};

std::int64_t panel_floats(std::int64_t columns, std::int64_t rows) { return align_up(columns, kPanel) * rows; }

BackwardBlock::BackwardBlock(BackwardHead& of, std::int64_t index)
    : head(of), rows{of.call.by_key, Formula(of.call.by_key), {}} {
  const BackwardProblem& problem = head.call.problem;
  const ForwardProblem& forward = head.call.by_key;
  most_keys = backward_keys(forward);
  most_rows = backward_rows(forward);
  keys = {index * most_keys, std::min((index + 1) * most_keys, forward.kv_len)};
  base = align_down(keys.begin, kKeyBlock);
  grad_stride = padded(forward.value_dim);
  pitch = most_keys + kMostLanes;  // so that a power of two is no stride

  ScratchArena arena;
  const auto pack_room = [&](std::int64_t depth) {
    PackedHead packed;
    packed.batch = head.batch;
    packed.kv_head = head.kv_head;
    packed.span = {keys, {}};
    packed.keys = arena.take<float>(most_keys * depth);
    packed.key_magnitude = arena.take<std::uint32_t>(kBlockWords);
    return packed;
  };
  rows.head = pack_room(forward.head_dim);
  values = pack_room(forward.value_dim);
  rows.depth = forward.head_dim;
  rows.rows = arena.take<Row>(most_rows);
  rows.queries = arena.take<float>(most_rows * forward.head_dim);
  rows.query_magnitude = arena.take<float>(most_rows);
  rows.logits = arena.take<float>(kTileRows * kLogitStride);
  grads = arena.take<float>(most_rows * grad_stride);
  weights = arena.take<float>(most_rows * pitch);
  slopes = arena.take<float>(most_rows * pitch);
  seen = arena.take<std::uint64_t>(most_rows * kBlockWords);
  groups = arena.take<Group>(most_rows);
  if (!head.bias_rows.empty()) bias_rows = arena.take<double>(most_rows);
  if (forward.dropout > 0) kept = arena.take<std::uint64_t>(kTileRows * kBlockWords);
  if (forward.softcap > 0) cap_slopes = arena.take<float>(kTileRows * kLogitStride);
  if (problem.grad_q) key_rows = arena.take<float>(panel_floats(forward.head_dim, most_keys));
  if (problem.grad_k) {
    query_rows = arena.take<float>(panel_floats(forward.head_dim, most_rows));
    key_sums = arena.take<float>(panel_floats(forward.head_dim, most_keys));
    std::fill_n(key_sums, panel_floats(forward.head_dim, most_keys), 0.0f);
  }
  if (problem.grad_v) {
    grad_rows = arena.take<float>(panel_floats(forward.value_dim, most_rows));
    value_sums = arena.take<float>(panel_floats(forward.value_dim, most_keys));
    std::fill_n(value_sums, panel_floats(forward.value_dim, most_keys), 0.0f);
  }
}

void pack_block(BackwardBlock& block) {
  const ForwardProblem& forward = block.head.call.by_key;
  pack_words(forward, block.rows.head, 0, block.rows.head.num_words());
  pack_words(block.head.call.by_value, block.values, 0, block.values.num_words());
  for (std::int64_t word = 0; word < block.rows.head.num_words(); ++word) {
    block.finite_keys &= block.rows.head.key_magnitude[word] < kInfinityBits;
  }
  if (block.key_rows == nullptr) return;
  for (std::int64_t key = block.keys.begin; key < block.keys.end; ++key) {
    stage_row(forward.k, forward.k.address(block.head.batch, block.head.kv_head, key), forward.head_dim,
              {block.key_rows + (key - block.keys.begin) * kPanel, block.most_keys * kPanel});
  }
}

/// @return whether a row sees a key of the block
bool find_rows(BackwardBlock& block, std::int64_t row_block) {
  const BackwardHead& head = block.head;
  block.row_begin = row_block * block.most_rows;
  RowBlock& rows = block.rows;
  rows.num_rows = std::min(block.most_rows, head.num_rows() - block.row_begin);
  bool any = false;
  for (std::int64_t r = 0; r < rows.num_rows; ++r) {
    Row& row = rows.rows[r] = make_row(head.call.by_key, head.batch, head.kv_head, block.row_begin + r);
    row.keys.range = {std::max(row.keys.range.begin, block.keys.begin), std::min(row.keys.range.end, block.keys.end)};
    if (row.keys.range.empty()) row.keys.range = {};
    any |= !row.keys.range.empty();
  }
  return any;
}

void load_rows(BackwardBlock& block) {
  const ForwardProblem& forward = block.head.call.by_key;
  const Operand& grad_out = block.head.call.problem.grad_out;
  RowBlock& rows = block.rows;
  scale_queries(rows);
  block.finite_rows = true;
  for (std::int64_t r = 0; r < rows.num_rows; ++r) {
    const Row& row = rows.rows[r];
    const std::uint32_t largest = stage_row(grad_out, grad_out.address(block.head.batch, row.head, row.index),
                                            forward.value_dim, {block.grads + r * block.grad_stride, kPanel});
    block.finite_rows &= largest < kInfinityBits && magnitude_bits(rows.query_magnitude[r]) < kInfinityBits;
  }
  if (block.query_rows != nullptr) {
    copy_to_panels(rows.queries, forward.head_dim, rows.num_rows, forward.head_dim, block.most_rows, block.query_rows);
  }
  if (block.grad_rows != nullptr) {
    copy_to_panels(block.grads, block.grad_stride, rows.num_rows, forward.value_dim, block.most_rows, block.grad_rows);
  }
}

/// Groups without a key of the block have written nothing: 0 for those that stand between others, which products of keys
/// read with them.
void clear_groups_between(const BackwardBlock& block) {
  const std::span<const Group> groups(block.groups, static_cast<std::size_t>(block.num_groups));
  const auto sees_some = [](const Group& group) { return group.begin < group.end; };
  const auto first = std::find_if(groups.begin(), groups.end(), sees_some);
  const auto end = std::find_if(groups.rbegin(), groups.rend(), sees_some).base();
  for (auto group = first; group < end; ++group) {
    if (sees_some(*group)) continue;
    std::fill_n(block.weights + group->first * block.pitch, group->size * block.pitch, 0.0f);
    std::fill_n(block.slopes + group->first * block.pitch, group->size * block.pitch, 0.0f);
  }
}

void add_slopes(BackwardBlock& block) {
  block.num_groups = 0;
  if (block.bias_rows != nullptr) std::fill_n(block.bias_rows, block.rows.num_rows, 0.0);
  for_each_group(block.rows.num_rows, [&](std::int64_t first, std::int64_t size) {
    Group& group = block.groups[block.num_groups++] = {first, size};
    kGroupSlopes[size - 1](block, group);
  });
  clear_groups_between(block);
}

void add_key_products(BackwardBlock& block) {
  const std::int64_t num_keys = block.keys.end - block.keys.begin;
  if (!block.finite_rows) {
    for (std::int64_t local = 0; local < num_keys; ++local) careful_key_products(block, local);
    return;
  }
  for_each_group(num_keys, [&](std::int64_t first, std::int64_t size) {
    std::int64_t begin = block.rows.num_rows;
    std::int64_t end = 0;
    for (std::int64_t g = 0; g < block.num_groups; ++g) {
      const Group& group = block.groups[g];
      if (group.begin >= first + size || group.end <= first) continue;
      begin = std::min(begin, group.first);
      end = group.first + group.size;
    }
    if (begin < end) kKeyProducts[size - 1](block, first, begin, end);
  });
}

void add_row_products(BackwardBlock& block) {
  for (std::int64_t g = 0; g < block.num_groups; ++g) {
    const Group& group = block.groups[g];
    if (group.begin >= group.end) continue;
    if (block.finite_keys) {
      kRowProducts[group.size - 1](block, group);
      continue;
    }
    for (std::int64_t row = group.first; row < group.first + group.size; ++row) careful_row_products(block, row);
  }
  for (std::int64_t r = 0; r < block.rows.num_rows; ++r) {
    if (block.rows.rows[r].careful) block.head.careful[block.row_begin + r] = 1;
  }
}

void add_bias_rows(const BackwardBlock& block) {
  double* to = block.head.bias_rows.data() + block.row_begin;
  for (std::int64_t r = 0; r < block.rows.num_rows; ++r) to[r] += block.bias_rows[r];
}

/// Rounds a row of sums, times a factor, to where it belongs.
template <class T>
void write_sums(const RowPlace& sums, float factor, std::int64_t count, T* to, std::int64_t stride, bool accumulate) {
  const VF factors = hn::Set(kF32, factor);
  for (std::int64_t c = 0; c < count; c += kLanes) {
    const VF sum = hn::Mul(hn::LoadU(kF32, sums.at(c)), factors);
    if (stride == 1 && c + kLanes <= count) {
      store(accumulate ? hn::Add(load(to + c), sum) : sum, to + c);
      continue;
    }
    float lanes[kLanes];
    hn::StoreU(sum, kF32, lanes);
    for (std::int64_t i = 0; i < kLanes && c + i < count; ++i) {
      T& each = to[(c + i) * stride];
      each = T(accumulate ? static_cast<float>(each) + lanes[i] : lanes[i]);
    }
  }
}

void write_sums(const Result& result, void* to, const RowPlace& sums, float factor, std::int64_t count,
                bool accumulate) {
  visit_storage(result.dtype, [&]<class T>(T) HWY_ATTR {
    write_sums(sums, factor, count, static_cast<T*>(to), result.col, accumulate);
  });
}

bool all_finite(const RowPlace& sums, std::int64_t count) {
  VI largest = hn::Zero(kI32);
  std::int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) largest = raise_magnitude(hn::LoadU(kF32, sums.at(c)), largest);
  std::uint32_t bits = largest_of(largest);
  for (; c < count; ++c) bits = std::max(bits, magnitude_bits(*sums.at(c)));
  return bits < kInfinityBits;
}

/// Whether what is not finite of a key's gradients may be so though nothing that goes into it is.
bool has_overflowed(const BackwardBlock& block, std::int64_t key) {
  const BackwardHead& head = block.head;
  const ForwardProblem& forward = head.call.by_key;
  if (!is_finite_row(forward.k, forward.k.address(head.batch, head.kv_head, key), forward.head_dim)) return false;
  if (!is_finite_row(forward.v, forward.v.address(head.batch, head.kv_head, key), forward.value_dim)) return false;
  return std::none_of(head.poisoned.begin(), head.poisoned.end(), [&](std::int64_t of_head) {
    const std::int64_t q_head = forward.query_head(head.kv_head, of_head);
    return PlainLogits(forward, head.batch, q_head, of_head % forward.q_len).visible(key);
  });
}

void write_keys(BackwardBlock& block) {
  const BackwardProblem& problem = block.head.call.problem;
  const std::int64_t step = block.most_keys * kPanel;
  for (std::int64_t key = block.keys.begin; key < block.keys.end; ++key) {
    const RowPlace of_key{block.key_sums + (key - block.keys.begin) * kPanel, step};
    const RowPlace of_value{block.value_sums + (key - block.keys.begin) * kPanel, step};
    const std::int64_t at = key - block.base;
    const bool careful = has_key(block.careful_keys[at / kWordKeys], at);
    const bool finite = (!problem.grad_k || all_finite(of_key, problem.forward.head_dim)) &&
                        (!problem.grad_v || all_finite(of_value, problem.forward.value_dim));
    if (careful || (!finite && has_overflowed(block, key))) {
      plain_grad_kv(problem, block.head.batch, block.head.kv_head, key, key + 1);
      continue;
    }
    if (problem.grad_k) {
      write_sums(problem.grad_k, problem.grad_k.address(block.head.batch, block.head.kv_head, key), of_key, 1,
                 problem.forward.head_dim, problem.accumulate);
    }
    if (problem.grad_v) {
      write_sums(problem.grad_v, problem.grad_v.address(block.head.batch, block.head.kv_head, key), of_value, 1,
                 problem.forward.value_dim, problem.accumulate);
    }
  }
}

void run_keys(BackwardHead& head, std::int64_t key_block) {
  BackwardBlock block(head, key_block);
  pack_block(block);
  const bool writes_rows = static_cast<bool>(head.call.problem.grad_q);
  for (std::int64_t row_block = 0; row_block < head.num_row_blocks(); ++row_block) {
    const bool any = find_rows(block, row_block);
    if (any) {
      load_rows(block);
      add_slopes(block);
      add_key_products(block);
    }
    head.wait_for_turn(key_block, row_block);
    if (any && writes_rows) add_row_products(block);
    if (any && block.bias_rows != nullptr) add_bias_rows(block);
    head.end_turn(key_block, row_block);
  }
  write_keys(block);
}

void finish_rows(BackwardHead& head, std::int64_t row_begin, std::int64_t row_end) {
  const BackwardProblem& problem = head.call.problem;
  if (!problem.grad_q) return;
  const ForwardProblem& forward = problem.forward;
  const float factor = Formula(head.call.by_key).query_scale;
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const std::int64_t q_head = forward.query_head(head.kv_head, row);
    const std::int64_t index = row % forward.q_len;
    const RowPlace sums{head.grad_q + row * head.grad_q_stride, kPanel};
    if (head.careful[row] != 0 || (!all_finite(sums, forward.head_dim) && !head.is_poisoned(row))) {
      plain_grad_q(problem, head.batch, q_head, index);
    } else {
      write_sums(problem.grad_q, problem.grad_q.address(head.batch, q_head, index), sums, factor, forward.head_dim,
                 problem.accumulate);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace qkv::kernels {

#define QKV_KERNEL(NAMESPACE, NAME, BIT) \
  BackwardKernelF32{NAME, NAMESPACE::begin_backward, NAMESPACE::run_keys, NAMESPACE::finish_rows},
const BackwardKernelF32& backward_kernel_f32(std::string_view target) {
  static constexpr BackwardKernelF32 kBuilt[] = {
      QKV_TARGETS_ABOVE_BASELINE(QKV_KERNEL)  //
      BackwardKernelF32{"", HWY_STATIC_DISPATCH(begin_backward), HWY_STATIC_DISPATCH(run_keys),
                        HWY_STATIC_DISPATCH(finish_rows)},
  };
  // Products of pairs are the forward pass's alone: "avx512_bf16" is "avx512" here, "avx2_bf16" AVX2.
  const auto serves = [&](const BackwardKernelF32& kernel) {
    return kernel.target == target || (target == "avx512_bf16" && kernel.target == "avx512");
  };
  for (const BackwardKernelF32& kernel : kBuilt) {
    if (serves(kernel)) return kernel;
  }
  return *std::rbegin(kBuilt);
}
#undef QKV_KERNEL

}  // namespace qkv::kernels
#endif  // HWY_ONCE
