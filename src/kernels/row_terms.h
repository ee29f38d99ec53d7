#ifndef QKV_SRC_KERNELS_ROW_TERMS_H_
#define QKV_SRC_KERNELS_ROW_TERMS_H_

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/backward_problem.h"

namespace qkv::kernels {

/// What a row's backward pass knows before it meets a key: the gradient of logit x with weight w = exp(x - lse) is
///   w (G v - delta + add - entropy ln w)
/// where G v - delta is formed first, so that it is exactly 0 where v is the row's out.
struct RowTerms {
  /// From here on the rounding of lse shows in every weight of the row: in float32 they are off by up to |lse| 2^-24, though
  /// what large logits have in common does no harm to a softmax.
  static constexpr double kLargeLse = 32;

  double lse = 0;
  double lse_rest = 0;  ///< lse + lse_rest is what was rounded to lse
  double add = 0;
  double entropy = 0;
  double sink_weight = 0;
  double of_sink = 0;  ///< the gradient of the sink is sink_weight * (of_sink - delta)

  RowTerms(const BackwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row) {
    const double nothing = -std::numeric_limits<double>::infinity();
    const double saved = problem.lse.number(batch, head, row);
    const Operand& sinks = problem.forward.sinks;
    if (saved != nothing) lse = saved;  // else no key is visible: any number serves
    // Else the lse is one of more keys than these, and nobody knows its rest.
    if (problem.lse_rest && std::fabs(lse) >= kLargeLse && problem.computed_lse.number(batch, head, row) == lse) {
      lse_rest = problem.lse_rest.number(batch, head, row);
    }
    if (sinks && saved != nothing) sink_weight = std::exp(sinks.number(batch, head) - saved);
    if (problem.grad_lse) add = of_sink = problem.grad_lse.number(batch, head, row);
    if (!problem.grad_entropy) return;
    entropy = problem.grad_entropy.number(batch, head, row);
    const double spread = problem.entropy.number(batch, head, row);
    const double keys_weight = 1 - sink_weight;
    add -= entropy * (1 - keys_weight + spread);
    of_sink += entropy * (keys_weight - spread);
  }
};

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_ROW_TERMS_H_
