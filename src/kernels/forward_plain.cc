#include "kernels/forward_plain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "kernels/dropout.h"
#include "kernels/key_order.h"
#include "kernels/plain_logits.h"
#include "kernels/row_result.h"
#include "kernels/visibility.h"

namespace qkv::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// a - b for maxima a <= b, bounded: where it would leave double, the rescale that meets it is 0 and must not make NaN.
double shift_of(double a, double b) { return std::max(a - b, -1e4); }

/// A row's running softmax, in nats.
struct State {
  double max = -kInfinity;
  double sum = 0;
  double entropy = 0;  // sum of exp(logit - max) * (logit - max)
  double chosen = 0;   // sum of exp(logit - max) over stats_keys
  std::vector<double> values;
};

class PlainRow : PlainLogits {
 public:
  using PlainLogits::logit;
  using PlainLogits::PlainLogits;
  using PlainLogits::visible;

  void run() { write(softmax()); }

  /// Writes those columns of out that are not finite, nothing else.
  void repair_out() {
    const State state = softmax();
    const double factor = result_of(state).out_factor;
    for (std::int64_t c = 0; c < problem_.value_dim; ++c) {
      if (!std::isfinite(problem_.out.number(batch_, head_, row_, c))) put_out(state, c, factor);
    }
  }

 private:
  State softmax() {
    State total = empty_state();
    const KeyRange range{keys_.begin(), keys_.range.end};
    const KeyRange hole = keys_.sinks > 0 ? hole_between(keys_.sinks, keys_.range.begin) : KeyRange{};
    for (std::int64_t chunk = align_down(range.begin, kKeyChunk); chunk < range.end; chunk += kKeyChunk) {
      if (chunk >= hole.begin && chunk + kKeyChunk <= hole.end) {  // nor does the next one see a key
        chunk = align_down(hole.end, kKeyChunk) - kKeyChunk;
        continue;
      }
      State state = empty_state();
      const std::int64_t end = std::min(chunk + kKeyChunk, range.end);
      for (std::int64_t block = align_down(std::max(chunk, range.begin), kKeyBlock); block < end; block += kKeyBlock) {
        add_block(block, std::min(block + kKeyBlock, end), state);
      }
      merge(state, total);
    }
    return total;
  }

  State empty_state() const {
    State state;
    state.values.assign(static_cast<std::size_t>(problem_.value_dim), 0.0);
    return state;
  }

  void add_block(std::int64_t begin, std::int64_t end, State& state) {
    logits_.clear();
    seen_.clear();
    double block_max = -kInfinity;
    for_each_visible({begin, end}, [&](std::int64_t key) {
      seen_.push_back(key);
      logits_.push_back(logit(LogitsStage::kMasked, key));
      const double x = logits_.back();
      block_max = x > block_max ? x : block_max;
      note_statistics(key, x);
    });
    if (seen_.empty()) return;
    any_seen_ = true;
    const double new_max = state.max > block_max ? state.max : block_max;
    const double correction = state.max == new_max ? 1.0 : std::exp(state.max - new_max);
    if (state.sum > 0) state.entropy = correction * (state.entropy + shift_of(state.max, new_max) * state.sum);
    state.sum *= correction;
    state.chosen *= correction;
    for (double& value : state.values) value *= correction;
    state.max = new_max;
    for (std::size_t i = 0; i < seen_.size(); ++i) {
      // Visible logits of -inf weigh nothing beside a finite one, wherever that comes; alone they end as 0 / 0.
      const bool nothing = logits_[i] == -kInfinity;
      add_key(seen_[i], nothing ? -kInfinity : logits_[i] - new_max, state);
    }
  }

  void add_key(std::int64_t key, double exponent, State& state) const {
    const double weight = std::exp(exponent);
    state.sum += weight;
    if (weight > 0) state.entropy += weight * exponent;
    if (std::binary_search(problem_.stats_keys.begin(), problem_.stats_keys.end(), key)) state.chosen += weight;
    const double* v = value(key);
    double* values = state.values.data();
    const double left = problem_.dropout > 0 ? weight * kept(key) : weight;
    for (std::int64_t c = 0; c < problem_.value_dim; ++c) values[c] += left * v[c];
  }

  static void merge(const State& chunk, State& total) {
    const double new_max = total.max > chunk.max ? total.max : chunk.max;
    const double keep = total.max == new_max ? 1.0 : std::exp(total.max - new_max);
    const double take = chunk.max == new_max ? 1.0 : std::exp(chunk.max - new_max);
    const double total_shift = total.sum > 0 ? shift_of(total.max, new_max) * total.sum : 0.0;
    const double chunk_shift = chunk.sum > 0 ? shift_of(chunk.max, new_max) * chunk.sum : 0.0;
    total.entropy = keep * (total.entropy + total_shift) + take * (chunk.entropy + chunk_shift);
    total.sum = total.sum * keep + chunk.sum * take;
    total.chosen = total.chosen * keep + chunk.chosen * take;
    for (std::size_t c = 0; c < total.values.size(); ++c) {
      total.values[c] = total.values[c] * keep + chunk.values[c] * take;
    }
    total.max = new_max;
  }

  void note_statistics(std::int64_t key, double x) {
    if (!problem_.wants_stats() || std::isnan(max_logit_)) return;
    // A row with a NaN logit has no largest product to speak of: max_raw is NaN with the rest.
    const double raw = problem_.has_logit_terms() && !std::isnan(x) ? logit(LogitsStage::kScaled, key) : x;
    if (!std::isnan(max_raw_) && !(raw <= max_raw_)) max_raw_ = raw;
    if (max_key_ < 0 || !(x <= max_logit_)) {
      max_logit_ = x;
      max_key_ = key;
    }
  }

  RowResult result_of(const State& state) const {
    RowResult result{problem_, batch_, head_, row_};
    result.seen = any_seen_;
    result.max = state.max;
    result.sum = result.divisor = state.sum;  // in double nothing is rounded before the end
    result.max_raw = max_raw_;
    result.max_logit = max_logit_;
    result.max_exponent = max_logit_ == -kInfinity ? -kInfinity : max_logit_ - state.max;
    result.max_key = max_key_;
    result.entropy = state.entropy;
    result.chosen = state.chosen;
    result.close();
    return result;
  }

  void put_out(const State& state, std::int64_t column, double factor) const {
    // An empty row is 0 whatever the factor: a sink of +inf makes it NaN.
    const double value = any_seen_ ? state.values[static_cast<std::size_t>(column)] * factor : 0.0;
    problem_.out.put(value + 0.0, batch_, head_, row_, column);
  }

  void write(const State& state) const {
    const RowResult result = result_of(state);
    result.write();
    for (std::int64_t c = 0; c < problem_.value_dim; ++c) put_out(state, c, result.out_factor);
    if (!problem_.weights) return;  // written with the first columns, where there are too many for one call
    for (const SlotIndex::Slot& head_slot : problem_.weight_heads.of(head_)) {
      for (const SlotIndex::Slot& row_slot : problem_.weight_rows.of(row_)) {
        write_weights(head_slot.place, row_slot.place, state.max, result.factor);
      }
    }
  }

  void write_weights(std::int64_t head_place, std::int64_t row_place, double max, double factor) const {
    for (std::int64_t key = 0; key < problem_.kv_len; ++key) {
      double weight = 0;
      if (visible(key)) {
        const double x = logit(LogitsStage::kMasked, key);
        weight = (x == -kInfinity ? 0.0 : std::exp(x - max)) * factor;
      }
      problem_.weights.put(weight, batch_, head_place, row_place, key);
    }
  }

  std::vector<std::int64_t> seen_;
  std::vector<double> logits_;
  bool any_seen_ = false;
  double max_raw_ = -kInfinity;
  double max_logit_ = -kInfinity;
  std::int64_t max_key_ = -1;
};

}  // namespace

void plain_rows(const ForwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row_begin,
                std::int64_t row_end) {
  for (std::int64_t row = row_begin; row < row_end; ++row) PlainRow(problem, batch, head, row).run();
}

void plain_repair_out(const ForwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row) {
  PlainRow(problem, batch, head, row).repair_out();
}

void plain_repair_logits(const ForwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row) {
  const LogitsStage stage = problem.logits_stage;
  std::optional<PlainRow> plain;  // few rows need one
  for (std::int64_t key = 0; key < problem.kv_len; ++key) {
    if (std::isfinite(problem.logits.number(batch, head, row, key))) continue;
    if (!plain) plain.emplace(problem, batch, head, row);
    if (stage == LogitsStage::kMasked && !plain->visible(key)) continue;
    problem.logits.put(plain->logit(stage, key), batch, head, row, key);
  }
}

void plain_logits(const ForwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row_begin,
                  std::int64_t row_end) {
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const PlainRow plain(problem, batch, head, row);
    for (std::int64_t key = 0; key < problem.kv_len; ++key) {
      const bool hidden = problem.logits_stage == LogitsStage::kMasked && !plain.visible(key);
      const double logit = hidden ? -kInfinity : plain.logit(problem.logits_stage, key);
      problem.logits.put(logit, batch, head, row, key);
    }
  }
}

}  // namespace qkv::kernels
