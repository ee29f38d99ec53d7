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

  bool seen = false;  ///< some key is visible
  double max = 0;     ///< what exponents are relative to, in nats
  double sum = 0;     ///< sum of exp(logit - max)
  double max_raw = 0;
  double max_logit = 0;
  double max_exponent = 0;  ///< max_logit - max as the kernel rounds it: the sum has been formed with it
  std::int64_t max_key = -1;
  double entropy = 0;  ///< sum of exp(logit - max) * (logit - max)
  double chosen = 0;   ///< sum of exp(logit - max) over stats_keys

  double factor = 0;  ///< by close(): what exp(logit - max) is multiplied by to be a weight
  double lse = 0;     ///< by close(), where it is asked for

  /// After all keys: adds the sink, which is stored as T.
  template <class T>
  void close() {
    if (!seen) {
      max = -std::numeric_limits<double>::infinity();
      sum = 0;
    }
    factor = seen ? 1.0 / sum : 0.0;
    if (problem.lse) close_lse();
    if (problem.sinks) add_sink(static_cast<double>(*problem.sinks.at<T>(batch, head)));
  }

  /// Writes lse and statistics as T, after close().
  template <class T>
  void write() const {
    if (problem.lse) *problem.lse.at<T>(batch, head, row) = static_cast<T>(lse);
    if (problem.wants_stats()) write_stats<T>();
  }

 private:
  void close_lse() {
    lse = seen ? max + std::log(sum) : max;
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
    const double all = own * sum + std::exp(sink - top);
    factor = own / all;
    if (problem.lse) lse = top + std::log(all);
  }

  template <class T>
  void put(const Result& to, double value) const {
    if (to) *to.at<T>(batch, head, row) = static_cast<T>(value);
  }

  template <class T>
  void write_stats() const {
    const double nothing = -std::numeric_limits<double>::infinity();
    const double largest = seen ? std::exp(max_exponent) * factor : 0.0;
    // -sum w ln w with w = factor * e^y and y = logit - max; the sum of w is factor * sum, below 1 where there is a sink.
    const double spread = seen && factor > 0 ? -factor * (entropy + sum * std::log(factor)) : 0.0;
    put<T>(problem.max_raw, seen ? max_raw : nothing);
    put<T>(problem.max_logit, seen ? max_logit : nothing);
    if (problem.max_key) *problem.max_key.at<std::int64_t>(batch, head, row) = seen ? max_key : -1;
    put<T>(problem.max_weight, largest);
    // A row with one key rounds to a tiny number of either sign; entropy has none.
    put<T>(problem.entropy, std::isnan(factor) ? factor : std::max(spread, 0.0));
    put<T>(problem.key_weight, seen ? chosen * factor : 0.0);
  }
};

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_ROW_RESULT_H_
