#include "reference/backward.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "reference/element.h"
#include "reference/rows.h"

namespace qkv::reference {
namespace {

/// A gradient while it is summed, in double: the shape of its argument, empty where nobody asks for it.
class Sum {
 public:
  explicit Sum(const std::optional<TensorView>& gradient) : to_(gradient) {
    if (gradient) sum_ = Tensor(gradient->shape(), Dtype::kFloat64);
  }

  /// Adds to the element that an index of four axes (of two for sinks) names or repeats.
  void add(std::initializer_list<std::int64_t> index, double value) {
    if (to_) sum_.as<double>()[offset_of(sum_, index)] += value;
  }

  /// Rounds to the gradient's dtype, once.
  void store_all(bool accumulate) const {
    if (!to_) return;
    // An index of four axes has leading ones that a gradient of fewer lacks.
    const auto each = [&](int from_end) { return extent(*to_, from_end); };
    for (std::int64_t b = 0; b < each(4); ++b) {
      for (std::int64_t h = 0; h < each(3); ++h) {
        for (std::int64_t i = 0; i < each(2); ++i) {
          for (std::int64_t j = 0; j < each(1); ++j) {
            const double before = accumulate ? number(*to_, {b, h, i, j}) : 0.0;
            store(*to_, {b, h, i, j}, before + number(sum_, {b, h, i, j}));
          }
        }
      }
    }
  }

 private:
  std::optional<TensorView> to_;
  Tensor sum_;
};

struct Sums {
  explicit Sums(const AttentionGradients& gradients)
      : q(gradients.grad_q),
        k(gradients.grad_k),
        v(gradients.grad_v),
        bias(gradients.grad_bias),
        sinks(gradients.grad_sinks) {}

  Sum q, k, v, bias, sinks;
};

/// w ln w's derivative, whose product with a weight of 0 is 0.
double log_term(double weight) { return weight == 0 ? 0.0 : std::log(weight) + 1; }

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// What reaches a row from the loss.
struct Upstream {
  std::vector<double> out;
  double lse = 0;
  double entropy = 0;
};

Upstream upstream_of(const AttentionGradients& gradients, const Row& row) {
  Upstream upstream{.out = vector_at(gradients.grad_out, row.b, row.h, row.i)};
  if (gradients.grad_lse) upstream.lse = number(*gradients.grad_lse, {row.b, row.h, row.i});
  if (gradients.grad_entropy) upstream.entropy = number(*gradients.grad_entropy, {row.b, row.h, row.i});
  return upstream;
}

/// Derivative of c tanh(x / c).
double cap_slope(double raw, double cap) {
  if (cap == 0) return 1;
  const double t = std::tanh(raw / cap);
  return 1 - t * t;
}

/// A logit's gradient goes on to its query and its key.
void add_product(const Inputs& in, const Row& row, std::int64_t j, double gradient, Sums& sums) {
  const std::vector<double> k = vector_at(in.k, row.b, row.kv_head, j);
  const double scale = in.options.scale.value_or(1 / std::sqrt(static_cast<double>(k.size())));
  for (std::size_t d = 0; d < k.size(); ++d) {
    const auto c = static_cast<std::int64_t>(d);
    sums.q.add({row.b, row.h, row.i, c}, scale * gradient * k[d]);
    sums.k.add({row.b, row.kv_head, j, c}, scale * gradient * row.query[d]);
  }
}

void backward_row(const Inputs& in, const Row& row, const AttentionGradients& gradients, Sums& sums) {
  std::vector<Visible> keys = visible_keys(in, row);
  const double sink = sink_of(in, row);
  const double lse = softmax(keys, sink);
  const Upstream upstream = upstream_of(gradients, row);

  std::vector<double> of_weight;  // the loss's derivative by each weight
  double mean = 0;                // and the sum of all, weighted
  for (const Visible& key : keys) {
    const std::vector<double> v = vector_at(in.v, row.b, row.kv_head, key.key);
    const double left = dropout_factor(in, row, key.key);
    for (std::size_t d = 0; d < v.size(); ++d) {
      sums.v.add({row.b, row.kv_head, key.key, static_cast<std::int64_t>(d)}, left * key.weight * upstream.out[d]);
    }
    of_weight.push_back(left * dot(upstream.out, v) - upstream.entropy * log_term(key.weight));
    mean += key.weight * of_weight.back();
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Visible& key = keys[i];
    const double of_logit = key.weight * (of_weight[i] - mean + upstream.lse);
    sums.bias.add({row.b, row.h, row.i, key.key}, of_logit);
    add_product(in, row, key.key, of_logit * cap_slope(key.raw, in.options.softcap), sums);
  }
  if (sink == -std::numeric_limits<double>::infinity()) return;
  const double of_sink = keys.empty() ? 1.0 : std::exp(sink - lse);
  sums.sinks.add({row.b, row.h}, of_sink * (upstream.lse - mean));
}

}  // namespace

void backward(const AttentionInputs& inputs, const AttentionGradients& gradients, const AttentionOptions& options,
              std::int64_t first_batch) {
  const Inputs in{.q = inputs.q, .k = inputs.k, .v = inputs.v, .options = options, .first_batch = first_batch};
  Sums sums(gradients);
  for (std::int64_t b = 0; b < extent(in.q, 4); ++b) {
    for (std::int64_t h = 0; h < extent(in.q, 3); ++h) {
      for (std::int64_t i = 0; i < extent(in.q, 2); ++i) backward_row(in, make_row(in, b, h, i), gradients, sums);
    }
  }
  for (const Sum* sum : {&sums.q, &sums.k, &sums.v, &sums.bias, &sums.sinks}) sum->store_all(gradients.accumulate);
}

}  // namespace qkv::reference
