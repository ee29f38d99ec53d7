// The reference's gradients against finite differences of its forward pass: the loss is a random sum of out, lse and
// entropy, in double, for random calls with every option.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>

#include "support/gradients.h"
#include "support/on_target.h"

namespace qkv::support {
namespace {

double weighted_sum(const ConstTensorView& values, const ConstTensorView& factors) {
  double sum = 0;
  for_each_index(values.shape(), [&](const Extents& at) {
    const double value = read(values, at);
    if (std::isfinite(value)) sum += value * read(factors, at);  // an lse of -inf has no gradient
  });
  return sum;
}

double loss(const BackwardCall& of) {
  const Results results = run_all(of.call, {.matrices = false}, &reference::attention);
  double sum = weighted_sum(results.out, *of.grad_out);
  if (of.grad_lse) sum += weighted_sum(results.lse, *of.grad_lse);
  if (of.grad_entropy) sum += weighted_sum(results.entropy, *of.grad_entropy);
  return sum;
}

/// A central difference of fourth order.
double slope_at(const BackwardCall& of, const Guarded& argument, const Extents& at) {
  constexpr double kStep = 1e-3;
  const double before = read(argument, at);
  const auto at_step = [&](double step) {
    write(argument, at, before + step * kStep);
    return loss(of);
  };
  const double slope = (8 * (at_step(1) - at_step(-1)) - (at_step(2) - at_step(-2))) / (12 * kStep);
  write(argument, at, before);
  return slope;
}

void check(const BackwardCall& of) {
  const Gradients gradients = differentiate(of, &reference::attention_backward);
  const Guarded* arguments[] = {of.call.q.get(), of.call.k.get(), of.call.v.get(), of.call.bias.get(),
                                of.call.sinks.get()};
  const Guarded* results[] = {gradients.q.get(), gradients.k.get(), gradients.v.get(), gradients.bias.get(),
                              gradients.sinks.get()};
  const char* names[] = {"q", "k", "v", "bias", "sinks"};
  for (int i = 0; i < 5; ++i) {
    if (arguments[i] == nullptr) continue;
    for_each_index(arguments[i]->shape(), [&](const Extents& at) {
      const bool hides = read(*arguments[i], at) == -kInf;
      const double expected = hides ? 0 : slope_at(of, *arguments[i], at);
      // Truncation of h^4 and rounding of eps / h, both far below.
      EXPECT_NEAR(read(*results[i], at), expected, 1e-7 * std::max(1.0, std::abs(expected)))
          << names[i] << " at " << to_string(at);
    });
  }
}

TEST(BackwardDifferences, RandomCalls) {
  for (std::uint64_t seed = 1; seed <= (kSanitized ? 20 : 150) && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    BackwardCall drawn;
    do {
      drawn.call = draw_call(random, Dtype::kFloat64, 6);
    } while (drawn.call.head_dim > 9 || drawn.call.value_dim > 9);
    if (random.chance(0.3)) drawn.call.options.dropout = draw_dropout(random);
    drawn.make_upstream(random, Layout::kDense, random.chance(0.5), random.chance(0.5));
    SCOPED_TRACE(drawn.call.describe());
    check(drawn);
  }
}

}  // namespace
}  // namespace qkv::support
