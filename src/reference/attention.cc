#include "reference/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <vector>

#include "base/philox.h"
#include "reference/element.h"

namespace qkv::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Extents by axis from the end: 1 = the last. A missing leading axis has extent 1.
std::int64_t extent(const ConstTensorView& view, int from_end) {
  return view.rank() < from_end ? 1 : view.extent(view.rank() - from_end);
}

/// One row of q.
struct Row {
  std::int64_t b = 0;
  std::int64_t h = 0;
  std::int64_t i = 0;
  std::int64_t kv_head = 0;
  std::int64_t filled = 0;    // keys from here on are hidden
  std::int64_t position = 0;  // among the keys
  std::vector<double> query = {};
};

/// One key that a row sees.
struct Visible {
  std::int64_t key = 0;
  double raw = 0;     // scale * q k
  double logit = 0;   // after softcap, bias and ALiBi
  double weight = 0;  // softmax of the logits
};

Row make_row(const Inputs& in, std::int64_t b, std::int64_t h, std::int64_t i) {
  Row row{.b = b, .h = h, .i = i};
  row.query = vector_at(in.q, b, h, i);
  row.kv_head = h / (extent(in.q, 3) / extent(in.k, 3));
  row.filled = in.options.kv_lens ? integer(*in.options.kv_lens, {b}) : extent(in.k, 2);
  const QueryOffset& offset = in.options.query_offset;
  row.position = row.filled - extent(in.q, 2) + i;
  if (offset.one() != nullptr) row.position = *offset.one() + i;
  if (offset.per_batch() != nullptr) row.position = integer(*offset.per_batch(), {b}) + i;
  return row;
}

bool sees(const Inputs& in, const Row& row, std::int64_t j) {
  const AttentionOptions& options = in.options;
  if (j >= row.filled) return false;
  if (options.causal && j > row.position) return false;
  // Distances rather than edges: position - left could leave 64 bits where left is huge.
  const bool sink = j < in.num_sink_keys;
  if (!sink && options.window.left && row.position - j > *options.window.left) return false;
  if (!sink && options.window.right && j - row.position > *options.window.right) return false;
  if (options.mask && !truth(*options.mask, {row.b, row.h, row.i, j})) return false;
  return !(options.bias && number(*options.bias, {row.b, row.h, row.i, j}) == -kInfinity);
}

double scaled_logit(const Inputs& in, const Row& row, std::int64_t j) {
  const std::vector<double> k = vector_at(in.k, row.b, row.kv_head, j);
  double dot = 0;
  for (std::size_t d = 0; d < k.size(); ++d) dot += row.query[d] * k[d];
  return dot * in.options.scale.value_or(1 / std::sqrt(static_cast<double>(k.size())));
}

double capped(const Inputs& in, double raw) {
  const double cap = in.options.softcap;
  return cap > 0 ? cap * std::tanh(raw / cap) : raw;
}

double full_logit(const Inputs& in, const Row& row, std::int64_t j, double raw) {
  double logit = capped(in, raw);
  if (in.options.bias) logit += number(*in.options.bias, {row.b, row.h, row.i, j});
  if (in.options.alibi_slopes) {
    const auto distance = static_cast<double>(std::abs(row.position - j));
    logit -= number(*in.options.alibi_slopes, {row.b, row.h}) * distance;
  }
  return logit;
}

/// The keys that the row sees, in order; of the others not even K is read.
std::vector<Visible> visible_keys(const Inputs& in, const Row& row) {
  std::vector<Visible> keys;
  for (std::int64_t j = 0; j < row.filled; ++j) {
    if (!sees(in, row, j)) continue;
    const double raw = scaled_logit(in, row, j);
    keys.push_back({.key = j, .raw = raw, .logit = full_logit(in, row, j, raw)});
  }
  return keys;
}

/// The larger; NaN if either is.
double nan_max(double a, double b) { return std::isnan(a) || std::isnan(b) ? a + b : std::max(a, b); }

/// Fills in the weights and returns the natural logarithm of the sum of exponentials. A sink is one more logit that has
/// no key. Infinite logits take their way through the formula: inf - inf makes NaN of the row.
double softmax(std::vector<Visible>& keys, double sink) {
  if (keys.empty()) return sink;
  double largest = sink;
  for (const Visible& key : keys) largest = nan_max(largest, key.logit);
  double sum = sink == -kInfinity ? 0 : std::exp(sink - largest);
  for (const Visible& key : keys) sum += std::exp(key.logit - largest);
  for (Visible& key : keys) key.weight = std::exp(key.logit - largest) / sum;
  return largest + std::log(sum);
}

/// What dropout multiplies a weight by, from the words of docs/op/dropout.md.
double dropout_factor(const Inputs& in, const Row& row, std::int64_t j) {
  const double p = in.options.dropout.p;
  if (p == 0) return 1;
  const auto halves = [](auto number) {
    const auto bits = static_cast<std::uint64_t>(number);
    return Philox::Key{static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32)};
  };
  const Philox::Key position = halves(row.position);
  const Philox::Counter of_row =
      Philox::words({position[0], position[1], halves(row.h)[0], halves(in.first_batch + row.b)[0]},
                    halves(*in.options.dropout.seed), 10);
  const Philox::Key counter = halves(16 * (j / 64) + j % 16);
  const Philox::Counter numbers =
      Philox::words({counter[0], counter[1], of_row[2], of_row[3]}, {of_row[0], of_row[1]}, 7);
  const bool kept = numbers[static_cast<std::size_t>(j % 64 / 16)] >= std::floor(p * 0x1p32 + 0.5);
  return kept && p < 1 ? 1 / (1 - p) : 0;
}

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
  const double sink = in.options.sinks ? number(*in.options.sinks, {row.b, row.h}) : -kInfinity;
  const double lse = softmax(keys, sink);
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
