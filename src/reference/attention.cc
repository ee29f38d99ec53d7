#include "reference/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "reference/element.h"
#include "reference/rows.h"

namespace qkv::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void write_out(const Inputs& in, const Row& row, const std::vector<Visible>& keys, const TensorView& out) {
  std::vector<double> sum(static_cast<std::size_t>(extent(in.v, 1)), 0.0);
  for (const Visible& key : keys) {
    const std::vector<double> v = vector_at(in.v, row.b, row.kv_head, key.key);
    const double weight = key.weight * dropout_factor(in, row, key.key);
    for (std::size_t d = 0; d < sum.size(); ++d) sum[d] += weight * v[d];
  }
  for (std::size_t d = 0; d < sum.size(); ++d) store(out, {row.b, row.h, row.i, static_cast<std::int64_t>(d)}, sum[d]);
}

/// Writes the row wherever the caller's lists of heads and rows name it.
void write_weights(const Row& row, const std::vector<Visible>& keys, const Weights& weights) {
  const std::int64_t num_heads = extent(weights.out, 3);
  const std::int64_t num_rows = extent(weights.out, 2);
  const std::int64_t kv_len = extent(weights.out, 1);
  for (std::int64_t h = 0; h < num_heads; ++h) {
    if ((weights.heads ? (*weights.heads)[static_cast<std::size_t>(h)] : h) != row.h) continue;
    for (std::int64_t i = 0; i < num_rows; ++i) {
      if ((weights.rows ? (*weights.rows)[static_cast<std::size_t>(i)] : i) != row.i) continue;
      for (std::int64_t j = 0; j < kv_len; ++j) store(weights.out, {row.b, h, i, j}, 0);
      for (const Visible& key : keys) store(weights.out, {row.b, h, i, key.key}, key.weight);
    }
  }
}

/// The first two stages are of every key, the last of those that the row sees.
void write_logits(const Inputs& in, const Row& row, const std::vector<Visible>& keys, const Logits& logits) {
  for (std::int64_t j = 0; j < extent(in.k, 2); ++j) {
    double value = -kInfinity;
    if (logits.stage == LogitsStage::kScaled) value = scaled_logit(in, row, j);
    if (logits.stage == LogitsStage::kCapped) value = capped(in, scaled_logit(in, row, j));
    store(logits.out, {row.b, row.h, row.i, j}, value);
  }
  if (logits.stage != LogitsStage::kMasked) return;
  for (const Visible& key : keys) store(logits.out, {row.b, row.h, row.i, key.key}, key.logit);
}

/// A visible NaN logit makes NaN of every number but max_key, which is then the lowest key that has one.
void write_stats(const Row& row, const std::vector<Visible>& keys, const Stats& stats) {
  double max_raw = -kInfinity;
  double max_logit = -kInfinity;
  double max_weight = 0;
  double entropy = 0;
  double key_weight = 0;
  std::int64_t max_key = -1;
  for (const Visible& key : keys) {
    const bool larger = std::isnan(key.logit) ? !std::isnan(max_logit) : key.logit > max_logit;
    if (max_key < 0 || larger) max_key = key.key;
    max_raw = nan_max(max_raw, key.raw);
    max_logit = nan_max(max_logit, key.logit);
    max_weight = nan_max(max_weight, key.weight);
    if (key.weight != 0) entropy -= key.weight * std::log(key.weight);
    if (std::find(stats.keys.begin(), stats.keys.end(), key.key) != stats.keys.end()) key_weight += key.weight;
  }
  if (std::isnan(max_logit)) max_raw = max_logit;
  if (std::isnan(max_weight)) key_weight = max_weight;

  const auto write = [&row](const std::optional<TensorView>& view, double value) {
    if (view) store(*view, {row.b, row.h, row.i}, value);
  };
  write(stats.max_raw, max_raw);
  write(stats.max_logit, max_logit);
  write(stats.max_weight, max_weight);
  write(stats.entropy, entropy);
  write(stats.key_weight, key_weight);
  if (stats.max_key) stats.max_key->as<std::int64_t>()[offset_of(*stats.max_key, {row.b, row.h, row.i})] = max_key;
}

void forward_row(const Inputs& in, const Row& row, const TensorView& out, const AttentionOutputs& outputs) {
  std::vector<Visible> keys = visible_keys(in, row);
  const double lse = softmax(keys, sink_of(in, row));
  write_out(in, row, keys, out);
  if (outputs.lse) store(*outputs.lse, {row.b, row.h, row.i}, lse);
  if (outputs.weights) write_weights(row, keys, *outputs.weights);
  if (outputs.logits) write_logits(in, row, keys, *outputs.logits);
  if (outputs.stats) write_stats(row, keys, *outputs.stats);
}

}  // namespace

void forward(const Inputs& in, TensorView out, const AttentionOutputs& outputs) {
  for (std::int64_t b = 0; b < extent(in.q, 4); ++b) {
    for (std::int64_t h = 0; h < extent(in.q, 3); ++h) {
      for (std::int64_t i = 0; i < extent(in.q, 2); ++i) forward_row(in, make_row(in, b, h, i), out, outputs);
    }
  }
}

}  // namespace qkv::reference
