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

#include "kernels/block_view-inl.h"
#include "kernels/logit_terms-inl.h"
#include "kernels/pack-inl.h"
// After highway_targets.h, which says what is built.
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

/// Whether q' k, on its way too, and the ALiBi term surely stay within f32 between the group and the words of a run.
/// Looks at hidden keys as well: it only decides how closely to look, which changes no bit.
template <int kR>
bool products_fit(const RowBlock& block, const BlockView<kR>& view, const Run& run) {
  std::uint32_t bits = 0;
  for (std::int64_t w = block.head.word_of(run.begin); w <= block.head.word_of(run.end - 1); ++w) {
    bits = std::max(bits, block.head.key_magnitude[w]);
  }
  if (bits >= kInfinityBits) return false;
  const double key = static_cast<double>(std::bit_cast<float>(bits)) * static_cast<double>(block.problem.head_dim);
  for (int r = 0; r < kR; ++r) {
    const Row& row = block.rows[view.first_row + r];
    const double reach = std::fabs(static_cast<double>(row.keys.position)) + static_cast<double>(run.end);
    // The scale's rest, below 2, still meets the product. A term of ALiBi that overflows makes NaN of a bias of -inf.
    if (!(key * static_cast<double>(block.query_magnitude[view.first_row + r]) < 0x1p126)) return false;
    if (std::fabs(static_cast<double>(row.slope)) * reach >= 0x1p126) return false;
  }
  return true;
}

/// -inf at the keys of the tile that a row does not see.
template <int kR, int kW>
HWY_INLINE void hide(const std::uint64_t* words, int shift, Accumulators<kR, kW>& acc) {
  const VF hidden = hn::Set(kF32, -std::numeric_limits<float>::infinity());
  HWY_UNROLL(8)
  for (int r = 0; r < kR; ++r) {
    const TileMasks visible(words[r] >> shift);
    HWY_UNROLL(8)
    for (int w = 0; w < kW; ++w) acc.v[r][w] = hn::IfThenElse(visible[w], acc.v[r][w], hidden);
  }
}

/// Logits of kR rows and kW vectors of keys from `key` on. Unless they are raw: -inf at hidden keys, and the running
/// maxima are raised.
template <int kR, int kW>
HWY_INLINE void logits_tile(const RowBlock& block, std::int64_t key, Epilogue epilogue, BlockView<kR>& view) {
  const std::int64_t depth = block.depth;
  const std::int64_t local = block.head.span.index_of(key);
  const float* panel = block.head.keys + local / kPanel * kPanel * depth + local % kPanel;
  Accumulators<kR, kW> acc;
  clear(acc);
  visit_product(block.pairs, [&](const auto& product) HWY_ATTR {
    multiply_add(Factors{block.queries + view.first_row * depth, depth, panel, kPanel, depth}, acc, product);
  });
  float* logits = view.logits + (key - view.base);
  if (epilogue == Epilogue::kRaw) return store(acc, logits, kLogitStride);
  if (epilogue == Epilogue::kTerms) {
    add_terms(block, block.rows + view.first_row, key, acc);
    lower(acc, view.min);
  }
  const auto word = (key - view.base) / kWordKeys;
  if (!view.all[word]) hide(view.words[word], static_cast<int>(key % kWordKeys), acc);
  store(acc, logits, kLogitStride);
  raise(acc, view.max);
}

/// logits_tile for a number of vectors known at run time.
template <int kR, int kW = kTileVectors>
HWY_INLINE void logits_vectors(const RowBlock& block, std::int64_t key, int vectors, Epilogue epilogue,
                               BlockView<kR>& view) {
  if constexpr (kW > 1) {
    if (vectors < kW) return logits_vectors<kR, kW - 1>(block, key, vectors, epilogue, view);
  }
  logits_tile<kR, kW>(block, key, epilogue, view);
}

/// Asks memory for what the next group needs of mask and bias at the keys of one panel: a little with each tile, for all
/// at once stands in the way of what the tile loads itself.
template <int kR>
void read_ahead(const RowBlock& block, std::int64_t key, const BlockView<kR>& view) {
  const Operand& bias = block.problem.bias;
  const auto item = static_cast<std::int64_t>(size_of(bias.dtype));
  const std::int64_t panel_end = std::min(align_down(key, kPanel) + kPanel, block.problem.kv_len);
  const std::int64_t end = std::min<std::int64_t>(view.first_row + 2 * kR, block.num_rows);
  for (std::int64_t r = view.first_row + kR; r < end; ++r) {
    const Row& row = block.rows[r];
    if (bias.col == 1) {
      const auto* bytes = static_cast<const char*>(row.bias);
      for (std::int64_t byte = key * item; byte < panel_end * item; byte += 64) hwy::Prefetch(bytes + byte);
    }
    if (row.keys.mask_stride == 1 && key % kWordKeys == 0) hwy::Prefetch(row.keys.mask + key);
  }
}

/// Panels that a few rows take at a time: a chain of multiply-adds waits for itself, so there should be many.
template <int kR>
inline constexpr int kWidePanels = std::max(1, std::min(8, kTileRows* kTileVectors / kR) / kTileVectors);

/// acc[r][w] += products of queries, [kR][depth], and whole panels of keys, one behind the other.
template <int kR, int kW, class Product>
HWY_INLINE void multiply_panels(const float* HWY_RESTRICT queries, const float* HWY_RESTRICT panels, std::int64_t depth,
                                const Product& product, Accumulators<kR, kW>& acc) {
  for (std::int64_t d = 0; d < depth; ++d) {
    VF b[kW];
    HWY_UNROLL(8)
    for (int w = 0; w < kW; ++w) {
      b[w] = hn::LoadU(kF32, panels + w / kTileVectors * kPanel * depth + d * kPanel + w % kTileVectors * kLanes);
    }
    HWY_UNROLL(8)
    for (int r = 0; r < kR; ++r) {
      const VF a = hn::Set(kF32, queries[r * depth + d]);
      HWY_UNROLL(8)
      for (int w = 0; w < kW; ++w) acc.v[r][w] = product(a, b[w], acc.v[r][w]);
    }
  }
}

/// Raw products of kR rows and whole panels of keys from `key` on.
template <int kR>
HWY_INLINE void products_of_panels(const RowBlock& block, std::int64_t key, BlockView<kR>& view) {
  constexpr int kW = kWidePanels<kR> * kTileVectors;
  const float* panels = block.head.keys + block.head.span.index_of(key) * block.depth;
  const float* queries = block.queries + view.first_row * block.depth;
  Accumulators<kR, kW> acc;
  clear(acc);
  visit_product(block.pairs,
                [&](const auto& product) HWY_ATTR { multiply_panels(queries, panels, block.depth, product, acc); });
  store(acc, view.logits + (key - view.base), kLogitStride);
}

/// Q K^T of a run. Panels are cut to the vectors that some row sees. The only rows that read these keys pack them panel by
/// panel, so that a panel is still in L1 when it is multiplied.
template <int kR>
void multiply_keys(RowBlock& block, const Run& run, BlockView<kR>& view) {
  std::int64_t first = align_down(run.begin, kPanel);
  if (block.own_keys != nullptr && run.epilogue == Epilogue::kRaw) {
    constexpr std::int64_t kWide = kWidePanels<kR> * kPanel;
    for (; first + kWide <= run.end; first += kWide) {
      if (block.packs_panels) pack_for_few(block, {first, first + kWide});
      products_of_panels(block, first, view);
    }
  }
  const bool reads_ahead = run.epilogue != Epilogue::kRaw && (block.problem.bias || block.problem.mask);
  for (std::int64_t panel = first; panel < run.end; panel += kPanel) {
    const std::int64_t key = std::max(panel, align_down(run.begin, kLanes));
    const std::int64_t end = std::min(panel + kPanel, run.end);
    const int vectors = static_cast<int>((end - key + kLanes - 1) / kLanes);
    if (block.packs_panels) pack_for_few(block, {panel, end});
    if (reads_ahead) read_ahead(block, key, view);
    logits_vectors(block, key, vectors, run.epilogue, view);
  }
}

/// From raw products to logits in place, for one row and run: the general formula, masks, maxima, and the look at
/// overflow that the tiles leave out. Raises view.max by the visible logits.
template <int kR>
void form_logits(RowBlock& block, int r, const Run& run, BlockView<kR>& view) {
  Row& row = block.rows[view.first_row + r];
  float* logits = view.logits + r * kLogitStride;
  const VF hidden = hn::Set(kF32, -std::numeric_limits<float>::infinity());
  const VF residual = hn::Set(kF32, static_cast<float>(block.formula.residual));
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
    if (run.check) suspect = hn::Add(suspect, hn::IfThenElseZero(visible, hn::Sub(product, product)));
    if (block.formula.general) suspect = hn::Add(suspect, hn::IfThenElseZero(visible, hn::Sub(x, x)));
    x = hn::IfThenElse(visible, x, hidden);
    hn::StoreU(x, kF32, logits + (key - view.base));
    view.max[r] = hn::Max(view.max[r], x);
  }
  if (!hn::AllTrue(kF32, hn::Eq(suspect, hn::Zero(kF32)))) row.careful = true;
  if (block.formula.general && block.max_raw != nullptr) {
    float& so_far = block.max_raw[view.first_row + r];
    so_far = std::max(so_far, max_of(max_raw));
  }
}

/// After tiles that add terms: takes the keys that the bias hides out of the view. A visible logit that is -inf without
/// it has left f32 on the way; one that is NaN or +inf shows in the sum of the weights.
template <int kR>
void drop_hidden(RowBlock& block, int r, const Run& run, BlockView<kR>& view) {
  const float infinity = std::numeric_limits<float>::infinity();
  if (min_of(view.min[r]) > -infinity) return;
  const VF hidden = hn::Set(kF32, -infinity);
  Row& row = block.rows[view.first_row + r];
  const float* logits = view.logits + r * kLogitStride;
  for (std::int64_t key = align_down(run.begin, kLanes); key < run.end; key += kLanes) {
    std::uint64_t& word = view.words[(key - view.base) / kWordKeys][r];
    const int shift = static_cast<int>(key % kWordKeys);
    const VF logit = hn::LoadU(kF32, logits + (key - view.base));
    const MF lowest = hn::And(mask_from_bits(word >> shift), hn::Eq(logit, hidden));
    if (hn::AllFalse(kF32, lowest)) continue;
    const VF bias = row.bias == nullptr ? hn::Zero(kF32) : load_bias(block, row, key);
    const MF lost = hn::And(lowest, hn::Eq(bias, hidden));
    if (!hn::AllFalse(kF32, hn::AndNot(lost, lowest))) row.careful = true;
    word &= ~(bits_from_mask(lost) << shift);
    view.all[(key - view.base) / kWordKeys] = false;
  }
}

/// Looks at what a group sees of a key block and how its logits are formed.
template <int kR>
void begin_logits(const RowBlock& block, BlockView<kR>& view) {
  look(block, view);
  for (int r = 0; r < kR; ++r) {
    view.max[r] = hn::Set(kF32, -std::numeric_limits<float>::infinity());
    view.min[r] = hn::Zero(kF32);
  }
  const bool general = block.formula.general;
  const bool in_tiles = block.formula.softcap == 0 && block.max_raw == nullptr;
  for (int i = 0; i < view.num_runs; ++i) {
    Run& run = view.runs[i];
    // What magnitudes would say of a few rows' products, the products say themselves.
    run.check = block.own_keys != nullptr || !products_fit(block, view, run);
    if (run.check || (general && !in_tiles)) continue;
    run.epilogue = general ? Epilogue::kTerms : Epilogue::kPlain;
  }
}

/// The logits of a group for one key block, hidden keys at -inf; keys outside of the runs stay unwritten. Plain formula:
/// in units of q' k; general: in nats. Calls products(run) where a softcap's raw products of a run lie there in their
/// place.
template <int kR, class Products>
HWY_INLINE void block_logits(RowBlock& block, BlockView<kR>& view, const Products& products) {
  begin_logits(block, view);
  for (int i = 0; i < view.num_runs; ++i) {
    const Run& run = view.runs[i];
    multiply_keys(block, run, view);
    if (block.formula.softcap > 0) products(run);
    if (run.epilogue == Epilogue::kPlain) continue;
    for (int r = 0; r < kR; ++r) {
      if (run.epilogue == Epilogue::kTerms) {
        drop_hidden(block, r, run, view);
      } else {
        form_logits(block, r, run, view);
      }
    }
  }
}
template <int kR>
void block_logits(RowBlock& block, BlockView<kR>& view) {
  block_logits(block, view, [](const Run&) {});
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
