#include "reference/rows.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/philox.h"
#include "reference/element.h"

namespace qkv::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

double full_logit(const Inputs& in, const Row& row, std::int64_t j, double raw) {
  double logit = capped(in, raw);
  if (in.options.bias) logit += number(*in.options.bias, {row.b, row.h, row.i, j});
  if (in.options.alibi_slopes) {
    const auto distance = static_cast<double>(std::abs(row.position - j));
    logit -= number(*in.options.alibi_slopes, {row.b, row.h}) * distance;
  }
  return logit;
}

}  // namespace

Row make_row(const Inputs& in, std::int64_t b, std::int64_t h, std::int64_t i) {
  Row row{.b = b, .h = h, .i = i};
  row.query = vector_at(in.q, b, h, i);
  row.kv_head = h / (extent(in.q, 3) / extent(in.k, 3));
  row.filled = in.options.kv_lens ? integer(*in.options.kv_lens, {b}) : extent(in.k, 2);
  const QueryOffset& offset = in.options.query_offset;
  row.position = row.filled - extent(in.q, 2) + i;
  if (offset.one() != nullptr) row.position = *offset.one() + i;
  if (offset.per_batch() != nullptr) row.position = integer(*offset.per_batch(), {b}) + i;
  if (in.rope == nullptr) return row;
  if (in.options.window.left && row.position > *in.options.window.left) {
    row.shift = std::max<std::int64_t>(row.position - *in.options.window.left - in.num_sink_keys, 0);
  }
  const std::int64_t place = row.position - row.shift;
  row.turn.emplace(*in.rope, place + 1);
  row.query = (*row.turn)(row.query, place, in.q.dtype(), in.q.dtype());
  return row;
}

double scaled_logit(const Inputs& in, const Row& row, std::int64_t j) {
  std::vector<double> k = vector_at(in.k, row.b, row.kv_head, j);
  if (row.turn) {
    const std::int64_t place = j < in.num_sink_keys ? j : j - row.shift;
    // Not rounded to 16 bits, nor to 8, once more.
    const Dtype to = in.kept_dtype == Dtype::kFloat64 ? Dtype::kFloat64 : Dtype::kFloat32;
    k = (*row.turn)(k, place, in.kept_dtype, to);
  }
  double dot = 0;
  for (std::size_t d = 0; d < k.size(); ++d) dot += row.query[d] * k[d];
  return dot * in.options.scale.value_or(1 / std::sqrt(static_cast<double>(k.size())));
}

double capped(const Inputs& in, double raw) {
  const double cap = in.options.softcap;
  return cap > 0 ? cap * std::tanh(raw / cap) : raw;
}

std::vector<Visible> visible_keys(const Inputs& in, const Row& row) {
  std::vector<Visible> keys;
  for (std::int64_t j = 0; j < row.filled; ++j) {
    if (!sees(in, row, j)) continue;
    const double raw = scaled_logit(in, row, j);
    keys.push_back({.key = j, .raw = raw, .logit = full_logit(in, row, j, raw)});
  }
  return keys;
}

double nan_max(double a, double b) { return std::isnan(a) || std::isnan(b) ? a + b : std::max(a, b); }

double sink_of(const Inputs& in, const Row& row) {
  return in.options.sinks ? number(*in.options.sinks, {row.b, row.h}) : -kInfinity;
}

double softmax(std::vector<Visible>& keys, double sink) {
  if (keys.empty()) return sink;
  double largest = sink;
  for (const Visible& key : keys) largest = nan_max(largest, key.logit);
  double sum = sink == -kInfinity ? 0 : std::exp(sink - largest);
  for (const Visible& key : keys) sum += std::exp(key.logit - largest);
  for (Visible& key : keys) key.weight = std::exp(key.logit - largest) / sum;
  return largest + std::log(sum);
}

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

}  // namespace qkv::reference
