#if defined(QKV_SRC_KERNELS_LOGITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_LOGITS_INL_H_
#undef QKV_SRC_KERNELS_LOGITS_INL_H_
#else
#define QKV_SRC_KERNELS_LOGITS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "kernels/key_order.h"
#include "kernels/row_block.h"
#include "kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

inline constexpr int kBlockWords = static_cast<int>(kKeyBlock / kWordKeys);

/// Keys [begin, end) that at least one row of the group sees, without a word of 64 between that no row sees.
struct Run {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// What a group of kR rows sees of one key block, and its largest logits there.
template <int kR>
struct BlockView {
  std::int64_t base = 0;  ///< first key of the block, a multiple of kKeyBlock
  int num_runs = 0;
  Run runs[kBlockWords / 2 + 1];
  bool all[kBlockWords];                 ///< every row sees every key of the word
  std::uint64_t words[kBlockWords][kR];  ///< visible bits; all ones where all[]
  VF max[kR];                            ///< lanewise maximum of the visible logits
};

/// Decides what the group sees of the block, and cuts it into runs.
template <int kR>
void look(const Row* rows, std::int64_t base, BlockView<kR>& view) {
  view.base = base;
  view.num_runs = 0;
  std::int64_t all_begin = std::numeric_limits<std::int64_t>::min();
  std::int64_t all_end = std::numeric_limits<std::int64_t>::max();
  std::int64_t any_begin = all_end;
  std::int64_t any_end = 0;
  bool masked = false;
  for (int r = 0; r < kR; ++r) {
    const KeyRange range = rows[r].keys.range;
    all_begin = std::max(all_begin, range.begin);
    all_end = std::min(all_end, range.end);
    if (range.empty()) continue;
    any_begin = std::min(any_begin, range.begin);
    any_end = std::max(any_end, range.end);
    masked |= rows[r].keys.mask != nullptr;
  }
  bool in_run = false;
  for (int w = 0; w < kBlockWords; ++w) {
    const std::int64_t key = base + w * kWordKeys;
    view.all[w] = !masked && key >= all_begin && key + kWordKeys <= all_end;
    std::uint64_t any = 0;
    if (view.all[w]) {
      any = ~std::uint64_t{0};
      for (int r = 0; r < kR; ++r) view.words[w][r] = any;
    } else if (key < any_end && key + kWordKeys > any_begin) {
      for (int r = 0; r < kR; ++r) any |= view.words[w][r] = visible_word(rows[r].keys, key);
    } else {
      for (int r = 0; r < kR; ++r) view.words[w][r] = 0;
    }
    if (any == 0) {
      in_run = false;
      continue;
    }
    if (!in_run) view.runs[view.num_runs++].begin = key + std::countr_zero(any);
    in_run = true;
    view.runs[view.num_runs - 1].end = key + kWordKeys - std::countl_zero(any);
  }
}

/// Whether q' k may leave the range of f32 somewhere between the group and the words of a run. Looks at hidden keys
/// too: it only decides whether to look closer, which changes no bit.
template <int kR>
bool may_overflow(const RowBlock& block, std::int64_t first_row, const Run& run) {
  std::uint32_t bits = 0;
  for (std::int64_t w = block.head.word_of(run.begin); w <= block.head.word_of(run.end - 1); ++w) {
    bits = std::max(bits, block.head.key_magnitude[w]);
  }
  if (bits >= kInfinityBits) return true;
  const double key = static_cast<double>(std::bit_cast<float>(bits));
  for (int r = 0; r < kR; ++r) {
    const double query = static_cast<double>(block.query_magnitude[first_row + r]);
    if (!(key * query * static_cast<double>(block.problem.head_dim) < 0x1p126)) return true;
  }
  return false;
}

enum class Epilogue { kAll, kMasked, kRaw };

/// Logits of kR rows and kW vectors of keys from `key` on, into the group's rows of block.logits. kAll and kMasked also
/// raise the running maxima, kMasked with -inf at hidden keys; kRaw leaves both to form_logits.
template <int kR, int kW, Epilogue kEpilogue>
HWY_INLINE void logits_tile(const RowBlock& block, std::int64_t first_row, std::int64_t key, BlockView<kR>& view) {
  const std::int64_t dims = block.problem.head_dim;
  const std::int64_t local = key - block.head.range.begin;
  const float* panel = block.head.keys + local / kPanel * kPanel * dims + local % kPanel;
  Accumulators<kR, kW> acc;
  clear(acc);
  multiply_add(block.queries + first_row * dims, dims, panel, kPanel, dims, acc);
  if constexpr (kEpilogue == Epilogue::kMasked) {
    const std::uint64_t* words = view.words[(key - view.base) / kWordKeys];
    const VF hidden = hn::Set(kF32, -std::numeric_limits<float>::infinity());
    const int shift = static_cast<int>(key % kWordKeys);
    HWY_UNROLL(8)
    for (int r = 0; r < kR; ++r) {
      HWY_UNROLL(8)
      for (int w = 0; w < kW; ++w) {
        acc.v[r][w] = hn::IfThenElse(mask_from_bits(words[r] >> (shift + w * kLanes)), acc.v[r][w], hidden);
      }
    }
  }
  store(acc, block.logits + (key - view.base), kLogitStride);
  if constexpr (kEpilogue != Epilogue::kRaw) {
    HWY_UNROLL(8)
    for (int r = 0; r < kR; ++r) {
      VF largest = view.max[r];
      HWY_UNROLL(8)
      for (int w = 0; w < kW; ++w) largest = hn::Max(largest, acc.v[r][w]);
      view.max[r] = largest;
    }
  }
}

/// logits_tile for a number of vectors known at run time.
template <int kR, Epilogue kEpilogue, int kW = kTileVectors>
HWY_INLINE void logits_panel(const RowBlock& block, std::int64_t first_row, std::int64_t key, int vectors,
                             BlockView<kR>& view) {
  if constexpr (kW > 1) {
    if (vectors < kW) return logits_panel<kR, kEpilogue, kW - 1>(block, first_row, key, vectors, view);
  }
  logits_tile<kR, kW, kEpilogue>(block, first_row, key, view);
}

/// Q K^T of a run. Panels are cut to the vectors that some row sees.
template <int kR>
void multiply_keys(const RowBlock& block, std::int64_t first_row, const Run& run, bool raw, BlockView<kR>& view) {
  for (std::int64_t panel = align_down(run.begin, kPanel); panel < run.end; panel += kPanel) {
    const std::int64_t key = std::max(panel, align_down(run.begin, kLanes));
    const std::int64_t end = std::min(panel + kPanel, run.end);
    const int vectors = static_cast<int>((end - key + kLanes - 1) / kLanes);
    if (raw) {
      logits_panel<kR, Epilogue::kRaw>(block, first_row, key, vectors, view);
    } else if (view.all[(key - view.base) / kWordKeys]) {
      logits_panel<kR, Epilogue::kAll>(block, first_row, key, vectors, view);
    } else {
      logits_panel<kR, Epilogue::kMasked>(block, first_row, key, vectors, view);
    }
  }
}

/// c * tanh(x / c), NaN for NaN.
HWY_INLINE VF cap(VF x, float softcap) {
  const VF c = hn::Set(kF32, softcap);
  const VF capped = hn::Mul(c, hn::CallTanh(kF32, hn::Div(x, c)));
  return hn::IfThenElse(hn::Eq(x, x), capped, x);
}

/// Bias of `lanes` keys from `key` on; the caller knows how many of them exist.
HWY_INLINE VF load_bias(const RowBlock& block, const Row& row, std::int64_t key, std::int64_t end) {
  const std::int64_t stride = block.problem.bias.col;
  if (stride == 0) return hn::Set(kF32, *row.bias);
  if (stride == 1 && key + kLanes <= end) return hn::LoadU(kF32, row.bias + key);
  float staged[kLanes] = {};
  for (int i = 0; i < kLanes && key + i < end; ++i) staged[i] = row.bias[(key + i) * stride];
  return hn::LoadU(kF32, staged);
}

/// |p - j| for the keys j from `key` on. Exact to 2^24; beyond, rounded like any other operand.
HWY_INLINE VF distances(const Row& row, std::int64_t key) {
  const double first = static_cast<double>(row.keys.position) - static_cast<double>(key);
  return hn::Abs(hn::Sub(hn::Set(kF32, static_cast<float>(first)), hn::Iota(kF32, 0.0f)));
}

/// The general formula for one vector: softcap, bias, ALiBi. `visible` loses the keys that the bias hides.
HWY_INLINE VF form_logit(const RowBlock& block, const Row& row, std::int64_t key, VF scaled, MF& visible) {
  VF x = scaled;
  if (block.formula.softcap > 0) x = cap(x, block.formula.softcap);
  if (row.bias != nullptr) {
    const VF bias = load_bias(block, row, key, block.problem.kv_len);
    // Not Ne: on x86 that is false for NaN, which would hide it.
    visible = hn::AndNot(hn::Eq(bias, hn::Set(kF32, -std::numeric_limits<float>::infinity())), visible);
    x = hn::Add(x, bias);
  }
  if (block.problem.alibi_slopes) x = hn::NegMulAdd(hn::Set(kF32, row.slope), distances(row, key), x);
  return x;
}

/// From raw products to logits in place, for one row and run: the general formula, masks, maxima, and the look at
/// overflow that the tiles leave out. Raises view.max by the visible logits.
template <int kR>
void form_logits(RowBlock& block, std::int64_t first_row, int r, const Run& run, bool check, BlockView<kR>& view) {
  Row& row = block.rows[first_row + r];
  float* logits = block.logits + r * kLogitStride;
  const VF hidden = hn::Set(kF32, -std::numeric_limits<float>::infinity());
  const VF residual = hn::Set(kF32, block.formula.residual);
  VF max_raw = hidden;
  VF suspect = hn::Zero(kF32);  // x - x is 0 for a finite number alone
  for (std::int64_t key = align_down(run.begin, kLanes); key < run.end; key += kLanes) {
    std::uint64_t& word = view.words[(key - view.base) / kWordKeys][r];
    const int shift = static_cast<int>(key % kWordKeys);
    MF visible = mask_from_bits(word >> shift);
    const VF product = hn::LoadU(kF32, logits + (key - view.base));
    VF x = product;
    if (block.formula.general) {
      const MF asked = visible;
      const VF scaled = hn::Mul(residual, product);
      x = form_logit(block, row, key, scaled, visible);
      max_raw = hn::Max(max_raw, hn::IfThenElse(visible, scaled, hidden));
      const MF lost = hn::AndNot(visible, asked);
      if (HWY_UNLIKELY(!hn::AllFalse(kF32, lost))) {
        word &= ~(bits_from_mask(lost) << shift);
        view.all[(key - view.base) / kWordKeys] = false;
      }
    }
    if (check) suspect = hn::Add(suspect, hn::IfThenElseZero(visible, hn::Sub(product, product)));
    if (block.formula.general) suspect = hn::Add(suspect, hn::IfThenElseZero(visible, hn::Sub(x, x)));
    x = hn::IfThenElse(visible, x, hidden);
    hn::StoreU(x, kF32, logits + (key - view.base));
    view.max[r] = hn::Max(view.max[r], x);
  }
  if (!hn::AllTrue(kF32, hn::Eq(suspect, hn::Zero(kF32)))) row.careful = true;
  if (block.formula.general && block.max_raw != nullptr) {
    float& so_far = block.max_raw[first_row + r];
    so_far = std::max(so_far, max_of(max_raw));
  }
}

/// The logits of a group for one key block, hidden keys at -inf, in block.logits; keys outside of the runs stay
/// unwritten. Plain formula: in units of q' k; general: in nats.
template <int kR>
void block_logits(RowBlock& block, std::int64_t first_row, std::int64_t base, BlockView<kR>& view) {
  look(block.rows + first_row, base, view);
  for (int r = 0; r < kR; ++r) view.max[r] = hn::Set(kF32, -std::numeric_limits<float>::infinity());
  for (int i = 0; i < view.num_runs; ++i) {
    const bool check = may_overflow<kR>(block, first_row, view.runs[i]);
    const bool raw = check || block.formula.general;
    multiply_keys(block, first_row, view.runs[i], raw, view);
    if (!raw) continue;
    for (int r = 0; r < kR; ++r) form_logits(block, first_row, r, view.runs[i], check, view);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
