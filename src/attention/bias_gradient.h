#ifndef QKV_SRC_ATTENTION_BIAS_GRADIENT_H_
#define QKV_SRC_ATTENTION_BIAS_GRADIENT_H_

#include <cstdint>
#include <vector>

#include "kernels/backward_problem.h"
#include "qkv/tensor.h"

namespace qkv::attention_detail {

/// The gradient of a bias while it is summed over the axes in which the bias repeats.
class BiasGradient {
 public:
  /// Without a gradient to make there is nothing in it.
  explicit BiasGradient(const kernels::BackwardProblem& problem);

  explicit operator bool() const noexcept { return static_cast<bool>(sums_); }
  /// As BackwardProblem::grad_bias; float64 where rows or keys are summed, float32 else.
  const kernels::Result& sums() const noexcept { return sums_; }

  /// Heads that add to the same elements, in the order in which they do: of [batch, num_heads] (q's or k's) numbered head
  /// by head. Without a gradient each is alone.
  std::vector<std::vector<std::int64_t>> chains(std::int64_t batch, std::int64_t num_heads) const;

  /// Rounds to the gradient's dtype, once.
  void store() const;

 private:
  const kernels::BackwardProblem& problem_;
  Extents shape_;  ///< of what is summed: 1 along the axes in which the bias repeats
  Tensor memory_;
  kernels::Result sums_;
};

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_BIAS_GRADIENT_H_
