#if defined(QKV_SRC_KERNELS_BLOCK_VIEW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_BLOCK_VIEW_INL_H_
#undef QKV_SRC_KERNELS_BLOCK_VIEW_INL_H_
#else
#define QKV_SRC_KERNELS_BLOCK_VIEW_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/key_order.h"
#include "kernels/row_block.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

inline constexpr int kBlockWords = static_cast<int>(kKeyBlock / kWordKeys);

/// What a tile does with its products before it stores them.
enum class Epilogue {
  kRaw,    ///< nothing: form_logits or an output makes the rest of them
  kPlain,  ///< hides keys; the exponent takes the product as it is
  kTerms,  ///< forms logits with bias and ALiBi, then hides keys
};

/// Keys [begin, end) that at least one row of the group sees, without a word of 64 between that no row sees.
struct Run {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  Epilogue epilogue = Epilogue::kRaw;
  bool check = false;  ///< some product may leave f32
};

/// A group of kR rows and one key block: what the rows see of it, their logits there, and what becomes of their earlier
/// values.
template <int kR>
struct BlockView {
  BlockView(const RowBlock& block, std::int64_t row, std::int64_t key)
      : first_row(row), base(key), logits(block.logits) {}

  std::int64_t first_row;  ///< of the group, in its block of rows
  std::int64_t base;       ///< first key of the key block, a multiple of kKeyBlock
  float* logits;           ///< [kR][kLogitStride]; keys outside of the runs are unwritten
  int num_runs = 0;
  Run runs[kBlockWords / 2 + 1];
  bool all[kBlockWords];                 ///< every row sees every key of the word
  std::uint64_t words[kBlockWords][kR];  ///< visible bits; all ones where all[]
  VF max[kR];                            ///< lanewise maximum of the visible logits
  VF min[kR];                            ///< lanewise minimum of all logits, only where tiles add terms
  float correction[kR];                  ///< what the rows' earlier values are multiplied by
  bool fresh = false;                    ///< there are none
};

/// Decides what the group sees of the block, and cuts it into runs.
template <int kR>
void look(const RowBlock& block, BlockView<kR>& view) {
  const Row* rows = block.rows + view.first_row;
  std::int64_t all_begin = std::numeric_limits<std::int64_t>::min();
  std::int64_t all_end = std::numeric_limits<std::int64_t>::max();
  std::int64_t any_begin = all_end;
  std::int64_t any_end = 0;
  std::int64_t all_sinks = all_end;
  std::int64_t any_sinks = 0;
  bool masked = false;
  for (int r = 0; r < kR; ++r) {
    const KeyRange range = rows[r].keys.range;
    all_sinks = std::min(all_sinks, rows[r].keys.sinks);
    any_sinks = std::max(any_sinks, rows[r].keys.sinks);
    all_begin = std::max(all_begin, range.begin);
    all_end = std::min(all_end, range.end);
    if (range.empty()) continue;
    any_begin = std::min(any_begin, range.begin);
    any_end = std::max(any_end, range.end);
    masked |= rows[r].keys.mask != nullptr;
  }
  bool in_run = false;
  for (int w = 0; w < kBlockWords; ++w) {
    const std::int64_t key = view.base + w * kWordKeys;
    view.all[w] = !masked && ((key >= all_begin && key + kWordKeys <= all_end) || key + kWordKeys <= all_sinks);
    std::uint64_t any = 0;
    if (view.all[w]) {
      any = ~std::uint64_t{0};
      for (int r = 0; r < kR; ++r) view.words[w][r] = any;
    } else if ((key < any_end && key + kWordKeys > any_begin) || key < any_sinks) {
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

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
