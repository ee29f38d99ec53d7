#include "kernels/backward_plain.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/plain_logits.h"
#include "kernels/row_terms.h"

namespace qkv::kernels {
namespace {

/// What a row and a key that it sees have to do with each other.
struct Pair {
  double weight = 0;      ///< as it meets V
  double of_logit = 0;    ///< the loss's derivative by the logit
  double of_product = 0;  ///< and by q k
};

class PlainGradients : PlainLogits {
 public:
  using PlainLogits::for_each_visible;
  using PlainLogits::key;

  PlainGradients(const BackwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row)
      : PlainLogits(problem.forward, batch, head, row),
        terms_(problem, batch, head, row),
        grad_out_(static_cast<std::size_t>(problem.forward.value_dim)) {
    std::vector<double> out(grad_out_.size());
    const std::int64_t columns = problem_.value_dim;
    read_numbers(problem.grad_out.address(batch, head, row), problem.grad_out.dtype, problem.grad_out.col, columns,
                 grad_out_.data());
    read_numbers(problem.out.address(batch, head, row), problem.out.dtype, problem.out.col, columns, out.data());
    delta_ = product(out.data());
  }

  Pair pair(std::int64_t key) const {
    const double raw = logit(LogitsStage::kScaled, key);
    const double log_weight = (finish(LogitsStage::kMasked, key, raw) - terms_.lse) - terms_.lse_rest;
    const double weight = std::exp(log_weight);
    const double left = problem_.dropout > 0 ? kept(key) * problem_.kept_factor() : 1.0;
    double slope = (left * product(value(key)) - delta_) + terms_.add;
    if (terms_.entropy != 0 && weight > 0) slope -= terms_.entropy * log_weight;
    Pair pair{.weight = left * weight};
    pair.of_logit = weight * slope;
    pair.of_product = pair.of_logit * problem_.scale;
    if (problem_.softcap > 0) {
      const double t = std::tanh(raw / problem_.softcap);
      pair.of_product *= 1 - t * t;
    }
    return pair;
  }

  double of_sink() const {
    if (terms_.sink_weight == 0) return 0;
    // What would reach out reaches nothing where the row sees no key: 0 times NaN is no answer.
    const bool reaches = std::isfinite(delta_) || sees_any();
    return terms_.sink_weight * (terms_.of_sink - (reaches ? delta_ : 0.0));
  }

  std::span<const double> query() const noexcept { return query_; }
  std::span<const double> grad_out() const noexcept { return grad_out_; }

 private:
  bool sees_any() const {
    bool any = false;
    for_each_visible(keys_.range, [&](std::int64_t) { any = true; });
    return any;
  }

  /// With the row's grad_out, in the order of delta.
  double product(const double* values) const {
    double sum = 0;
    for (std::size_t c = 0; c < grad_out_.size(); ++c) sum += grad_out_[c] * values[c];
    return sum;
  }

  const RowTerms terms_;
  std::vector<double> grad_out_;
  double delta_ = 0;
};

void add_multiple(double factor, const double* from, std::span<double> to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += factor * from[i];
}

void write_row(const BackwardProblem& problem, const Result& to, std::span<const double> sums, std::int64_t batch,
               std::int64_t head, std::int64_t row) {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto column = static_cast<std::int64_t>(i);
    const double before = problem.accumulate ? to.number(batch, head, row, column) : 0.0;
    to.put(before + sums[i], batch, head, row, column);
  }
}

}  // namespace

void plain_grad_q(const BackwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row) {
  const PlainGradients gradients(problem, batch, head, row);
  std::vector<double> sums(static_cast<std::size_t>(problem.forward.head_dim));
  gradients.for_each_visible({0, problem.forward.kv_len}, [&](std::int64_t key) {
    const double factor = gradients.pair(key).of_product;
    add_multiple(factor, gradients.key(key), sums);
  });
  write_row(problem, problem.grad_q, sums, batch, head, row);
}

void plain_grad_kv(const BackwardProblem& problem, std::int64_t batch, std::int64_t kv_head, std::int64_t key_begin,
                   std::int64_t key_end) {
  const ForwardProblem& forward = problem.forward;
  const auto count = static_cast<std::size_t>(key_end - key_begin);
  const auto dims = static_cast<std::size_t>(forward.head_dim);
  const auto columns = static_cast<std::size_t>(forward.value_dim);
  std::vector<double> keys(count * dims);
  std::vector<double> values(count * columns);
  for (std::int64_t r = 0; r < forward.rows_of_head(); ++r) {
    const PlainGradients gradients(problem, batch, forward.query_head(kv_head, r), r % forward.q_len);
    gradients.for_each_visible({key_begin, key_end}, [&](std::int64_t key) {
      const auto i = static_cast<std::size_t>(key - key_begin);
      const Pair pair = gradients.pair(key);
      add_multiple(pair.of_product, gradients.query().data(), std::span(keys).subspan(i * dims, dims));
      add_multiple(pair.weight, gradients.grad_out().data(), std::span(values).subspan(i * columns, columns));
    });
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t key = key_begin + static_cast<std::int64_t>(i);
    if (problem.grad_k) {
      write_row(problem, problem.grad_k, std::span(keys).subspan(i * dims, dims), batch, kv_head, key);
    }
    if (problem.grad_v) {
      write_row(problem, problem.grad_v, std::span(values).subspan(i * columns, columns), batch, kv_head, key);
    }
  }
}

void plain_grad_bias(const BackwardProblem& problem, const Result& sums, std::int64_t batch, std::int64_t head,
                     std::int64_t row, KeyRange keys) {
  const PlainGradients gradients(problem, batch, head, row);
  gradients.for_each_visible(keys, [&](std::int64_t key) {
    const double before = sums.number(batch, head, row, key);
    sums.put(before + gradients.pair(key).of_logit, batch, head, row, key);
  });
}

double plain_grad_sink(const BackwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row) {
  return PlainGradients(problem, batch, head, row).of_sink();
}

}  // namespace qkv::kernels
