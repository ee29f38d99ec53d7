#if defined(QKV_SRC_KERNELS_BACKWARD_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_BACKWARD_TILES_INL_H_
#undef QKV_SRC_KERNELS_BACKWARD_TILES_INL_H_
#else
#define QKV_SRC_KERNELS_BACKWARD_TILES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <vector>

#include "kernels/backward_block.h"
#include "kernels/backward_plain.h"
#include "kernels/block_view-inl.h"
#include "kernels/dropout-inl.h"
#include "kernels/exp2-inl.h"
#include "kernels/logits-inl.h"
#include "kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

/// A group of rows of the register tile, and the keys of the block from the first to the last that one of them sees.
struct Group {
  std::int64_t first = 0;
  std::int64_t size = 0;
  std::int64_t begin = 0;  ///< counted from the block's first key
  std::int64_t end = 0;
};

/// A block of keys and a block of rows, with everything that they make of each other.
struct BackwardBlock {
  BackwardBlock(BackwardHead& of, std::int64_t index);

  BackwardHead& head;
  RowBlock rows;      ///< queries, packed keys, logits
  PackedHead values;  ///< V packed as keys are
  KeyRange keys;
  std::int64_t base;       ///< of the forward pass's key block
  std::int64_t most_keys;  ///< what panels of keys, and
  std::int64_t most_rows;  ///< what panels of rows have room for
  std::int64_t row_begin = 0;
  std::int64_t grad_stride;       ///< of grads
  std::int64_t pitch;             ///< of weights and slopes
  float* key_rows = nullptr;      ///< panels of K's columns: [most_keys][kPanel]
  float* query_rows = nullptr;    ///< panels of q's, scaled
  float* grad_rows = nullptr;     ///< and of grad_out's
  float* grads = nullptr;         ///< grad_out, [rows][grad_stride]
  float* weights = nullptr;       ///< [rows][pitch]: as they meet V; 0 at hidden keys between a group's begin and end
  float* slopes = nullptr;        ///< the gradients of q' k
  float* cap_slopes = nullptr;    ///< of a softcap: [kTileRows][kLogitStride]
  double* bias_rows = nullptr;    ///< [rows], where a bias repeats along keys: the sum over the block's
  std::uint64_t* seen = nullptr;  ///< [rows][kBlockWords]
  std::uint64_t* kept = nullptr;  ///< of a group's rows, [kTileRows][kBlockWords]: the weights that dropout keeps
  float* key_sums = nullptr;      ///< panels of grad_k's columns: [most_keys][kPanel]
  float* value_sums = nullptr;    ///< and of grad_v's
  Group* groups = nullptr;
  std::int64_t num_groups = 0;
  bool finite_keys = true;
  bool finite_rows = true;
  std::uint64_t careful_keys[kBlockWords] = {};  ///< that a row sees whose arithmetic has left f32
};

/// Calls visit(std::integral_constant) with the number of vectors that are left of a panel.
template <int kW = kTileVectors, class Visit>
HWY_INLINE void visit_vectors(std::int64_t vectors, const Visit& visit) {
  if constexpr (kW > 1) {
    if (vectors < kW) return visit_vectors<kW - 1>(vectors, visit);
  }
  visit(std::integral_constant<int, kW>());
}

/// Calls visit(panel, its first column, vectors) for the panels of so many columns.
template <class Visit>
HWY_INLINE void for_each_panel(std::int64_t columns, const Visit& visit) {
  for (std::int64_t c = 0; c < columns; c += kPanel) {
    visit(c / kPanel, c, (std::min<std::int64_t>(kPanel, columns - c) + kLanes - 1) / kLanes);
  }
}

/// Adds a vector of logits' gradients to those of a bias; in double, where arithmetic has left the range of f32.
HWY_INLINE void add_bias_vector(const BackwardBlock& block, std::int64_t index, std::int64_t key, VF slope) {
  const BackwardHead& head = block.head;
  const Row& row = block.rows.rows[index];
  const std::int64_t of_head = block.row_begin + index;
  Result sums = head.call.bias_sums;
  // Threads on other keys add to the same element: it waits for its turn, as grad_q does.
  if (block.bias_rows != nullptr) sums = {block.bias_rows + index, Dtype::kFloat64};
  const std::int64_t count = std::min<std::int64_t>(kLanes, block.keys.end - key);
  const bool finite = hn::AllTrue(kF32, hn::Eq(hn::Sub(slope, slope), hn::Zero(kF32)));
  if (HWY_UNLIKELY(row.careful || (!finite && !head.is_poisoned(of_head)))) {
    return plain_grad_bias(head.call.problem, sums, head.batch, row.head, row.index, {key, key + count});
  }
  if (sums.dtype == Dtype::kFloat32 && sums.col == 1 && count == kLanes) {
    float* to = sums.at<float>(head.batch, row.head, row.index, key);
    return hn::StoreU(hn::Add(hn::LoadU(kF32, to), slope), kF32, to);
  }
  float lanes[kLanes];
  hn::StoreU(slope, kF32, lanes);
  for (std::int64_t i = 0; i < count; ++i) {
    const double before = sums.number(head.batch, row.head, row.index, key + i);
    sums.put(before + static_cast<double>(lanes[i]), head.batch, row.head, row.index, key + i);
  }
}

/// From the gradients of logits to those of q' k, by way of the bias and the softcap.
template <int kR>
void finish_slopes(BackwardBlock& block, std::int64_t key, std::int64_t vectors, const BlockView<kR>& view) {
  const VF of_product = hn::Set(kF32, static_cast<float>(block.rows.formula.residual));
  for (int r = 0; r < kR; ++r) {
    const std::int64_t row = view.first_row + r;
    float* slopes = block.slopes + row * block.pitch + (key - block.keys.begin);
    for (std::int64_t at = 0; at < vectors * kLanes; at += kLanes) {
      VF slope = hn::LoadU(kF32, slopes + at);
      if (block.head.call.bias_sums) {
        add_bias_vector(block, row, key + at, slope);
      }
      if (block.cap_slopes != nullptr) {
        // Where a key is hidden, its product may be anything.
        const VF cap = hn::LoadU(kF32, block.cap_slopes + r * kLogitStride + (key - view.base) + at);
        slope = hn::IfThenZeroElse(hn::Eq(slope, hn::Zero(kF32)), hn::Mul(slope, cap));
      }
      hn::StoreU(hn::Mul(slope, of_product), kF32, slopes + at);
    }
  }
}

/// Weights and slopes of kR rows and kW vectors of keys from `key` on: grad_out V^T, and what it makes of the logits.
template <int kR, int kW>
HWY_INLINE void slopes_tile(BackwardBlock& block, std::int64_t key, const BlockView<kR>& view) {
  const BackwardHead& head = block.head;
  const std::int64_t depth = head.call.by_value.head_dim;
  const std::int64_t local = key - block.keys.begin;
  const float* panel = block.values.keys + local / kPanel * kPanel * depth + local % kPanel;
  Accumulators<kR, kW> acc;
  clear(acc);
  multiply_add(Factors{block.grads + view.first_row * block.grad_stride, block.grad_stride, panel, kPanel, depth}, acc);

  const Formula& formula = block.rows.formula;
  const VF kept_factor = hn::Set(kF32, static_cast<float>(head.call.by_key.kept_factor()));
  const bool direct = !head.call.bias_sums && block.cap_slopes == nullptr;
  const VF residual = hn::Set(kF32, formula.general ? 1.0f : static_cast<float>(formula.residual));
  const VF of_product = hn::Set(kF32, direct ? static_cast<float>(formula.residual) : 1.0f);
  const VF log2e = hn::Set(kF32, std::numbers::log2e_v<float>);
  const auto word = (key - view.base) / kWordKeys;
  const auto shift = static_cast<int>(key % kWordKeys);
  const bool all = view.all[word];
  HWY_UNROLL(8)
  for (int r = 0; r < kR; ++r) {
    const std::int64_t row = view.first_row + r;
    const std::int64_t of_head = block.row_begin + row;
    const VF lse = hn::Set(kF32, head.lse[of_head]);
    const VF lse_rest = head.lse_rest != nullptr ? hn::Set(kF32, head.lse_rest[of_head]) : hn::Zero(kF32);
    const VF delta = hn::Set(kF32, head.delta[of_head]);
    const float* logits = view.logits + r * kLogitStride + (key - view.base);
    float* weights = block.weights + row * block.pitch + local;
    float* slopes = block.slopes + row * block.pitch + local;
    const TileMasks visible(view.words[word][r] >> shift);
    const std::uint64_t* kept = block.kept;
    const TileMasks left(kept != nullptr ? kept[r * kBlockWords + word] >> shift : 0);
    HWY_UNROLL(8)
    for (int w = 0; w < kW; ++w) {
      // Fused: a logit and lse are near each other, and what is left of them is small.
      const VF log_weight = hn::Sub(hn::MulSub(hn::LoadU(kF32, logits + w * kLanes), residual, lse), lse_rest);
      VF weight = exp2_nonpositive(hn::Mul(log2e, log_weight));
      // By a product, not by choice: a visible NaN is not hidden by dropping it.
      const VF factor = hn::IfThenElseZero(left[w], kept_factor);
      const VF product = kept != nullptr ? hn::Mul(factor, acc.v[r][w]) : acc.v[r][w];
      VF slope = hn::Sub(product, delta);
      if (head.add != nullptr) {
        // Of a weight of 0 nothing is left: its logarithm must not make NaN of it.
        const VF bounded = max_or_nan(hn::Set(kF32, -1e4f), log_weight);
        const VF add = hn::Set(kF32, head.add[of_head]);
        slope = hn::Add(slope, hn::NegMulAdd(hn::Set(kF32, head.entropy[of_head]), bounded, add));
      }
      if (!all) weight = hn::IfThenElseZero(visible[w], weight);
      slope = hn::Mul(hn::Mul(weight, slope), of_product);
      if (!all) slope = hn::IfThenElseZero(visible[w], slope);
      if (kept != nullptr) weight = hn::Mul(factor, weight);
      hn::StoreU(weight, kF32, weights + w * kLanes);
      hn::StoreU(slope, kF32, slopes + w * kLanes);
    }
  }
  if (!direct) finish_slopes<kR>(block, key, kW, view);
}

/// The slopes of a softcap, from the raw products of a run: 1 - tanh^2.
template <int kR>
void form_cap_slopes(BackwardBlock& block, const Run& run, const BlockView<kR>& view) {
  const Formula& formula = block.rows.formula;
  const VF factor = hn::Set(kF32, static_cast<float>(formula.residual) / formula.softcap);
  for (int r = 0; r < kR; ++r) {
    for (std::int64_t key = align_down(run.begin, kLanes); key < run.end; key += kLanes) {
      const std::int64_t at = r * kLogitStride + (key - view.base);
      const VF t = hn::CallTanh(kF32, hn::Mul(factor, hn::LoadU(kF32, view.logits + at)));
      hn::StoreU(hn::NegMulAdd(t, t, hn::Set(kF32, 1.0f)), kF32, block.cap_slopes + at);
    }
  }
}

/// Weights and slopes of a group. What it sees goes to block.seen, and 0 to hidden keys between those that it sees.
template <int kR>
void group_slopes(BackwardBlock& block, Group& group) {
  BlockView<kR> view(block.rows, group.first, block.base);
  block_logits(block.rows, view, [&](const Run& run) HWY_ATTR { form_cap_slopes<kR>(block, run, view); });
  for (int r = 0; r < kR; ++r) {
    Row& row = block.rows.rows[group.first + r];
    row.careful = row.careful && !block.head.is_poisoned(block.row_begin + group.first + r);
    for (int w = 0; w < kBlockWords; ++w) {
      block.seen[(group.first + r) * kBlockWords + w] = view.words[w][r];
      if (row.careful) block.careful_keys[w] |= view.words[w][r];
      if (block.kept == nullptr || view.words[w][r] == 0) continue;
      block.kept[r * kBlockWords + w] = kept_bits(row.dropout, block.base + w * kWordKeys);
    }
  }
  if (view.num_runs == 0) return;
  group.begin = view.runs[0].begin - block.keys.begin;
  group.end = view.runs[view.num_runs - 1].end - block.keys.begin;
  std::int64_t done = 0;  // keys with numbers
  for (int i = 0; i <= view.num_runs; ++i) {
    const std::int64_t first = i < view.num_runs ? align_down(view.runs[i].begin, kLanes) - block.keys.begin
                                                 : block.keys.end - block.keys.begin;
    for (int r = 0; r < kR && done < first; ++r) {
      const std::int64_t row = (group.first + r) * block.pitch;
      std::fill(block.weights + row + done, block.weights + row + first, 0.0f);
      std::fill(block.slopes + row + done, block.slopes + row + first, 0.0f);
    }
    if (i == view.num_runs) break;
    const Run& run = view.runs[i];
    for (std::int64_t panel = align_down(run.begin, kPanel); panel < run.end; panel += kPanel) {
      const std::int64_t key = std::max(panel, align_down(run.begin, kLanes));
      const std::int64_t end = std::min(panel + kPanel, run.end);
      visit_vectors((end - key + kLanes - 1) / kLanes,
                    [&](auto vectors) HWY_ATTR { slopes_tile<kR, vectors>(block, key, view); });
    }
    done = align_up(run.end, kLanes) - block.keys.begin;
  }
}

/// sums += weights^T grad_out and slopes^T q of kR keys from the `local`-th on, over rows [begin, end).
template <int kR>
void key_products(const BackwardBlock& block, std::int64_t local, std::int64_t begin, std::int64_t end) {
  const auto add = [&](const float* factors, const float* rows, std::int64_t columns, float* sums) HWY_ATTR {
    for_each_panel(columns, [&](std::int64_t panel, std::int64_t, std::int64_t vectors) HWY_ATTR {
      visit_vectors(vectors, [&](auto kW) HWY_ATTR {
        Accumulators<kR, kW> acc;
        clear(acc);
        multiply_add(Factors{factors + begin * block.pitch + local, 1,
                             rows + (panel * block.most_rows + begin) * kPanel, kPanel, end - begin, block.pitch},
                     acc);
        add_to(acc, sums + (panel * block.most_keys + local) * kPanel, kPanel);
      });
    });
  };
  const BackwardProblem& problem = block.head.call.problem;
  if (problem.grad_v) add(block.weights, block.grad_rows, problem.forward.value_dim, block.value_sums);
  if (problem.grad_k) add(block.slopes, block.query_rows, problem.forward.head_dim, block.key_sums);
}

/// grad_q += slopes K of a group.
template <int kR>
void row_products(const BackwardBlock& block, const Group& group) {
  const BackwardHead& head = block.head;
  float* to = head.grad_q + (block.row_begin + group.first) * head.grad_q_stride;
  for_each_panel(head.call.by_key.head_dim,
                 [&](std::int64_t panel, std::int64_t column, std::int64_t vectors) HWY_ATTR {
                   visit_vectors(vectors, [&](auto kW) HWY_ATTR {
                     Accumulators<kR, kW> acc;
                     clear(acc);
                     multiply_add(Factors{block.slopes + group.first * block.pitch + group.begin, block.pitch,
                                          block.key_rows + (panel * block.most_keys + group.begin) * kPanel, kPanel,
                                          group.end - group.begin},
                                  acc);
                     add_to(acc, to + column, head.grad_q_stride);
                   });
                 });
}

/// Whether row r of the block sees its `local`-th key.
HWY_INLINE bool sees(const BackwardBlock& block, std::int64_t row, std::int64_t local) {
  const std::int64_t at = local + block.keys.begin - block.base;
  return has_key(block.seen[row * kBlockWords + at / kWordKeys], at);
}

/// The same sums with the same bits, where 0 times something unknown would not be 0.
inline void careful_key_products(const BackwardBlock& block, std::int64_t local) {
  const std::int64_t num_rows = block.rows.num_rows;
  const auto add = [&](const float* factors, const float* rows, std::int64_t columns, float* sums) HWY_ATTR {
    for (std::int64_t c = 0; c < columns; c += kLanes) {
      const std::int64_t panel = c / kPanel;
      VF sum = hn::Zero(kF32);
      for (std::int64_t r = 0; r < num_rows; ++r) {
        if (!sees(block, r, local)) continue;
        const VF number = hn::LoadU(kF32, rows + (panel * block.most_rows + r) * kPanel + c % kPanel);
        sum = hn::MulAdd(hn::Set(kF32, factors[r * block.pitch + local]), number, sum);
      }
      float* to = sums + (panel * block.most_keys + local) * kPanel + c % kPanel;
      hn::StoreU(hn::Add(hn::LoadU(kF32, to), sum), kF32, to);
    }
  };
  const BackwardProblem& problem = block.head.call.problem;
  if (problem.grad_v) add(block.weights, block.grad_rows, problem.forward.value_dim, block.value_sums);
  if (problem.grad_k) add(block.slopes, block.query_rows, problem.forward.head_dim, block.key_sums);
}

inline void careful_row_products(const BackwardBlock& block, std::int64_t row) {
  const BackwardHead& head = block.head;
  float* to = head.grad_q + (block.row_begin + row) * head.grad_q_stride;
  for (std::int64_t c = 0; c < head.call.by_key.head_dim; c += kLanes) {
    VF sum = hn::Zero(kF32);
    for (std::int64_t local = 0; local < block.keys.end - block.keys.begin; ++local) {
      if (!sees(block, row, local)) continue;
      const float* number = block.key_rows + (c / kPanel * block.most_keys + local) * kPanel + c % kPanel;
      sum = hn::MulAdd(hn::Set(kF32, block.slopes[row * block.pitch + local]), hn::LoadU(kF32, number), sum);
    }
    hn::StoreU(hn::Add(hn::LoadU(kF32, to + c), sum), kF32, to + c);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
