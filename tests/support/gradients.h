#ifndef QKV_TESTS_SUPPORT_GRADIENTS_H_
#define QKV_TESTS_SUPPORT_GRADIENTS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "qkv/backward.h"
#include "support/call.h"
#include "support/draw_dropout.h"
#include "support/random_call.h"

namespace qkv::support {

/// qkv::attention_backward or qkv::reference::attention_backward.
using Backward = void (*)(const AttentionInputs&, const AttentionSaved&, const AttentionGradients&,
                          const AttentionOptions&);

/// A call of attention, and what reaches its results from a loss.
struct BackwardCall {
  Call call;
  std::unique_ptr<Guarded> grad_out, grad_lse, grad_entropy;

  AttentionInputs inputs() const { return {*call.q, *call.k, *call.v}; }
  std::string describe() const { return call.describe(); }

  /// Normal numbers in a layout for what reaches out; `rows` says whether lse and entropy get their share.
  void make_upstream(Random& random, Layout layout, bool of_lse, bool of_entropy) {
    const Extents row{call.batch, call.num_heads, call.q_len};
    grad_out = call.filled({call.batch, call.num_heads, call.q_len, call.value_dim}, layout, random);
    if (of_lse) grad_lse = Call::filled_as(stats_dtype(call.dtype), row, layout, random);
    if (of_entropy) grad_entropy = Call::filled_as(stats_dtype(call.dtype), row, layout, random);
  }
};

/// What forward leaves behind for the way back.
struct Saved {
  explicit Saved(const Call& call)
      : out({call.batch, call.num_heads, call.q_len, call.value_dim}, call.dtype),
        lse({call.batch, call.num_heads, call.q_len}, stats_dtype(call.dtype)) {
    attention(*call.q, *call.k, *call.v, out, call.full_options(), {.lse = lse.view()});
  }
  AttentionSaved views() const { return {out, lse}; }

  Guarded out, lse;
};

/// Every gradient of a call, amid canaries.
struct Gradients {
  explicit Gradients(const BackwardCall& of, Layout layout = Layout::kDense, bool in_float32 = false) {
    const auto make = [&](const std::unique_ptr<Guarded>& argument) {
      if (!argument) return std::unique_ptr<Guarded>();
      const bool half = size_of(argument->dtype()) == 2;
      return std::make_unique<Guarded>(argument->shape(), half && in_float32 ? Dtype::kFloat32 : argument->dtype(),
                                       layout);
    };
    q = make(of.call.q);
    k = make(of.call.k);
    v = make(of.call.v);
    bias = make(of.call.bias);
    sinks = make(of.call.sinks);
  }

  AttentionGradients views(const BackwardCall& of) const {
    AttentionGradients all;
    all.grad_out = *of.grad_out;
    if (of.grad_lse) all.grad_lse = *of.grad_lse;
    if (of.grad_entropy) all.grad_entropy = *of.grad_entropy;
    all.grad_q = q->view();
    all.grad_k = k->view();
    all.grad_v = v->view();
    if (bias) all.grad_bias = bias->view();
    if (sinks) all.grad_sinks = sinks->view();
    return all;
  }

  std::vector<std::pair<std::string, const Guarded*>> named() const {
    std::vector<std::pair<std::string, const Guarded*>> all{
        {"grad_q", q.get()}, {"grad_k", k.get()}, {"grad_v", v.get()}};
    if (bias) all.emplace_back("grad_bias", bias.get());
    if (sinks) all.emplace_back("grad_sinks", sinks.get());
    return all;
  }

  std::unique_ptr<Guarded> q, k, v, bias, sinks;
};

inline Gradients differentiate(const BackwardCall& of, Backward backward = &attention_backward,
                               Layout layout = Layout::kDense, bool in_float32 = false) {
  const Saved saved(of.call);
  Gradients gradients(of, layout, in_float32);
  backward(of.inputs(), saved.views(), gradients.views(of), of.call.full_options());
  for (const auto& [name, gradient] : gradients.named()) {
    EXPECT_TRUE(gradient->intact()) << "something outside of " << name << " was written";
  }
  return gradients;
}

/// The largest magnitude of an element.
inline double largest(const ConstTensorView& tensor) {
  double most = 0;
  for_each_index(tensor.shape(), [&](const Extents& at) { most = std::max(most, std::abs(read(tensor, at))); });
  return most;
}

/// What the terms of a gradient add up to at most: an error does not shrink because they cancel.
inline double term_size(const BackwardCall& of, const std::string& name) {
  const Call& call = of.call;
  const double rows = static_cast<double>(call.q_len * call.num_heads / call.num_kv_heads);
  const double scale = std::abs(call.options.scale.value_or(1 / std::sqrt(static_cast<double>(call.head_dim))));
  const double left = 1 / (1 - call.options.dropout.p);
  double slope = left * longest_row(*of.grad_out) * longest_row(*call.v);
  if (of.grad_lse) slope += largest(*of.grad_lse);
  if (of.grad_entropy) slope += largest(*of.grad_entropy) * 8;  // ln w of a weight that counts
  if (name == "grad_q") return scale * slope * largest(*call.k);
  if (name == "grad_k") return scale * slope * largest(*call.q) * std::sqrt(rows);
  if (name == "grad_v") return left * largest(*of.grad_out) * std::sqrt(rows);
  return slope * std::sqrt(static_cast<double>(call.batch * call.num_heads * call.q_len));
}

/// Coefficients of epsilon, of what a call computes in: rounding a product's terms and the exponential of a logit; with
/// 16 bits, saved outputs that were rounded, and the rounding at the end.
inline constexpr double kGradient = 96;
inline constexpr double kHalfGradient = 3;

inline void expect_close(const BackwardCall& of, const Gradients& actual, const Gradients& expected) {
  const double spread = std::max(1.0, of.call.logit_size() / kUsualLogitSize);
  const bool half = size_of(of.call.dtype) == 2;
  const auto named = expected.named();
  const auto own = actual.named();
  for (std::size_t i = 0; i < named.size(); ++i) {
    const auto& [name, gradient] = own[i];
    const double epsilon = std::max(epsilon_of(of.call.dtype), epsilon_of(gradient->dtype()));
    const bool rounded = half || size_of(gradient->dtype()) == 2;
    const double coefficient = (rounded ? kHalfGradient : kGradient) * spread * epsilon / epsilon_of(gradient->dtype());
    EXPECT_TRUE(close(*gradient, *named[i].second, {.coefficient = coefficient, .size = term_size(of, name)})) << name;
  }
}

inline void expect_same_bits(const Gradients& actual, const Gradients& expected) {
  const auto named = expected.named();
  const auto own = actual.named();
  for (std::size_t i = 0; i < named.size(); ++i) {
    EXPECT_TRUE(same_bits(*own[i].second, *named[i].second)) << named[i].first;
  }
}

/// A call with anything that the contract allows.
inline BackwardCall draw_backward_call(Random& random, Dtype dtype, std::int64_t most) {
  BackwardCall drawn;
  drawn.call = draw_call(random, dtype, most);
  if (random.chance(0.25)) drawn.call.options.dropout = draw_dropout(random);
  drawn.make_upstream(random, draw_layout(random), random.chance(0.3), random.chance(0.25));
  return drawn;
}

}  // namespace qkv::support

#endif  // QKV_TESTS_SUPPORT_GRADIENTS_H_
