#include "qkv/kv_view.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "reference/attention.h"
#include "reference/element.h"

namespace qkv::reference {
namespace {

/// Where key j of a sequence is kept, written from the words of KVView.
struct Place {
  std::int64_t entry = 0;
  std::int64_t slot = 0;
};

Place place_of(const KVView& kv, std::int64_t b, std::int64_t j) {
  const std::int64_t slots = kv.k.extent(2);
  if (kv.page_table) return {integer(*kv.page_table, {b, j / slots}), j % slots};
  if (!kv.kept_from || j < kv.num_sinks) return {b, j};
  return {b, kv.num_sinks + (j - kv.num_sinks) % (slots - kv.num_sinks)};
}

/// Keys or values of all sequences as numbers, [batch, num_kv_heads, longest, columns]; NaN where a sequence has none, so
/// that one which should not be read shows.
Tensor gathered(const KVView& kv, const ConstTensorView& kept, const std::optional<ConstTensorView>& scales,
                const std::vector<std::int64_t>& lengths) {
  const std::int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  const auto batch = static_cast<std::int64_t>(lengths.size());
  Tensor numbers({batch, kept.extent(1), longest, kept.extent(3)}, Dtype::kFloat64);
  double* to = numbers.as<double>();
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t kept_from = kv.kept_from ? integer(*kv.kept_from, {b}) : 0;
    for (std::int64_t h = 0; h < kept.extent(1); ++h) {
      for (std::int64_t j = 0; j < longest; ++j) {
        const bool there = j < lengths[static_cast<std::size_t>(b)] && (j < kv.num_sinks || j >= kept_from);
        const Place place = there ? place_of(kv, b, j) : Place();
        for (std::int64_t c = 0; c < kept.extent(3); ++c) {
          double x = there ? number(kept, {place.entry, h, place.slot, c}) : std::numeric_limits<double>::quiet_NaN();
          if (there && scales) x = static_cast<float>(x * number(*scales, {place.entry, h, place.slot}));
          *to++ = x;
        }
      }
    }
  }
  return numbers;
}

}  // namespace

void forward_kv_view(ConstTensorView q, const KVView& kv, TensorView out, const AttentionOptions& options,
                     const AttentionOutputs& outputs) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(kv.lengths.extent(0)));
  for (std::size_t b = 0; b < lengths.size(); ++b) lengths[b] = integer(kv.lengths, {static_cast<std::int64_t>(b)});
  const Tensor k = gathered(kv, kv.k, kv.k_scales, lengths);
  const Tensor v = gathered(kv, kv.v, kv.v_scales, lengths);
  AttentionOptions all = options;
  all.kv_lens = view(lengths.data(), {static_cast<std::int64_t>(lengths.size())});
  if (kv.window && !all.window.left && !all.window.right) all.window.left = *kv.window - 1;
  const bool turns_keys = kv.positions == CachePositions::kCache;
  forward({q, k, v, all, kv.num_sinks, turns_keys ? &*kv.rope : nullptr, kv.k.dtype()}, out, outputs);
}

}  // namespace qkv::reference
