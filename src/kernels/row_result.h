#ifndef QKV_SRC_KERNELS_ROW_RESULT_H_
#define QKV_SRC_KERNELS_ROW_RESULT_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/forward_problem.h"

namespace qkv::kernels {

/// The end of a row's softmax, the same for every kernel: sinks, lse and statistics from the running state, in double.
struct RowResult {
  const ForwardProblem& problem;
  std::int64_t batch;
  std::int64_t head;
  std::int64_t row;

  bool seen = false;   ///< some key is visible
  double max = 0;      ///< what exponents are relative to, in nats
  double sum = 0;      ///< sum of exp(logit - max)
  double divisor = 0;  ///< the same of the weights as they meet V: sum, unless they are rounded
  double max_raw = 0;
  double max_logit = 0;
  double max_exponent = 0;  ///< max_logit - max
  std::int64_t max_key = -1;
  double entropy = 0;  ///< sum of exp(logit - max) * (logit - max)
  double chosen = 0;   ///< sum over stats_keys of the weights as they meet V

  double factor = 0;        ///< by close(): what exp(logit - max) is multiplied by to be a weight
  double value_factor = 0;  ///< by close(): the same of weights as they meet V
  double out_factor = 0;    ///< by close(): of the sum of weights times V, which dropout may have left some out of
  double lse = 0;           ///< by close(), where it is asked for
  double lse_low = 0;       ///< and what its own rounding has left out

  /// After all keys: adds the sink.
  void close() {
    if (!seen) {
      max = -std::numeric_limits<double>::infinity();
      sum = divisor = 0;
    }
    factor = seen ? 1.0 / sum : 0.0;
    value_factor = seen ? 1.0 / divisor : 0.0;
    if (problem.lse) close_lse();
    if (problem.sinks) add_sink(problem.sinks.number(batch, head));
    out_factor = value_factor * problem.kept_factor();
  }

  /// Writes lse and statistics, after close().
  void write() const {
    put(problem.lse, lse);
    if (problem.lse_rest) put(problem.lse_rest, rest_of_lse());
    if (problem.wants_stats()) write_stats();
  }

 private:
  void close_lse() {
    lse = seen ? max + std::log(sum) : max;
    lse_low = seen ? std::log(sum) - (lse - max) : 0;
    // Visible logits that are all -inf make 0 / 0; -inf here would say that nothing was visible.
    if (seen && max == -std::numeric_limits<double>::infinity()) lse = std::numeric_limits<double>::quiet_NaN();
  }

  void add_sink(double sink) {
    if (!seen) {  // whatever the sink: NaN must not reach an output of 0
      lse = sink;
      return;
    }
    const double top = std::max(max, sink);
    if (top == -std::numeric_limits<double>::infinity() && !std::isnan(sink)) return;  // a sink of -inf is no sink
    const double own = std::exp(max - top);
    const double rest = std::exp(sink - top);
    const double all = own * sum + rest;
    factor = own / all;
    value_factor = own / (own * divisor + rest);
    if (!problem.lse) return;
    lse = top + std::log(all);
    lse_low = std::log(all) - (lse - top);
  }

  double rest_of_lse() const {
    if (problem.lse.dtype == Dtype::kFloat64) return lse_low;
    return lse - static_cast<double>(static_cast<float>(lse)) + lse_low;
  }

  // Never of 16 bits: the switch over all types would take its share of every short row.
  void put(const Result& to, double value) const {
    if (!to) return;
    if (to.dtype == Dtype::kFloat64) {
      *to.at<double>(batch, head, row) = value;
    } else {
      *to.at<float>(batch, head, row) = static_cast<float>(value);
    }
  }

  void write_stats() const {
    const double nothing = -std::numeric_limits<double>::infinity();
    const double largest = seen ? std::exp(max_exponent) * factor : 0.0;
    // -sum w ln w with w = factor * e^y and y = logit - max; the sum of w is factor * sum, below 1 where there is a sink.
    const double spread = seen && factor > 0 ? -factor * (entropy + sum * std::log(factor)) : 0.0;
    put(problem.max_raw, seen ? max_raw : nothing);
    put(problem.max_logit, seen ? max_logit : nothing);
    if (problem.max_key) *problem.max_key.at<std::int64_t>(batch, head, row) = seen ? max_key : -1;
    put(problem.max_weight, largest);
    // A row with one key rounds to a tiny number of either sign; entropy has none.
    put(problem.entropy, std::isnan(factor) ? factor : std::max(spread, 0.0));
    put(problem.key_weight, seen ? chosen * value_factor : 0.0);
  }
};

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_ROW_RESULT_H_
