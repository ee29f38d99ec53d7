#include "attention/bias_gradient.h"

#include <cstddef>

#include "attention/validate_parts.h"
#include "base/parallel.h"
#include "base/shape.h"

namespace qkv::attention_detail {

using kernels::BackwardProblem;
using kernels::Result;

BiasGradient::BiasGradient(const BackwardProblem& problem) : problem_(problem) {
  if (!problem.grad_bias) return;
  shape_ = problem.grad_bias_shape;
  const bool long_sums = shape_[2] < problem.forward.q_len || shape_[3] < problem.forward.kv_len;
  memory_ = Tensor(shape_, long_sums || problem.forward.dtype == Dtype::kFloat64 ? Dtype::kFloat64 : Dtype::kFloat32);
  sums_ = result_of(memory_.view());
  std::int64_t* const strides[] = {&sums_.batch, &sums_.head, &sums_.row, &sums_.col};
  for (int axis = 0; axis < 4; ++axis) {
    if (shape_[axis] == 1) *strides[axis] = 0;
  }
}

std::vector<std::vector<std::int64_t>> BiasGradient::chains(std::int64_t batch, std::int64_t num_heads) const {
  const bool by_batch = !sums_ || sums_.batch != 0 || batch == 1;
  const bool by_head = !sums_ || sums_.head != 0 || num_heads == 1;
  const std::int64_t kinds = (by_batch ? batch : 1) * (by_head ? num_heads : 1);
  std::vector<std::vector<std::int64_t>> chains(static_cast<std::size_t>(kinds));
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < num_heads; ++h) {
      const std::int64_t kind = (by_batch ? b : 0) * (by_head ? num_heads : 1) + (by_head ? h : 0);
      chains[static_cast<std::size_t>(kind)].push_back(b * num_heads + h);
    }
  }
  return chains;
}

void BiasGradient::store() const {
  if (!problem_.grad_bias || has_no_elements(shape_)) return;
  const auto rows = static_cast<std::size_t>(shape_[0] * shape_[1] * shape_[2]);
  parallel_for(rows, [&](std::size_t index) {
    const auto at = static_cast<std::int64_t>(index);
    const std::int64_t b = at / (shape_[1] * shape_[2]);
    const std::int64_t h = at / shape_[2] % shape_[1];
    const std::int64_t i = at % shape_[2];
    for (std::int64_t j = 0; j < shape_[3]; ++j) {
      const double before = problem_.accumulate ? problem_.grad_bias.number(b, h, i, j) : 0.0;
      problem_.grad_bias.put(before + sums_.number(b, h, i, j), b, h, i, j);
    }
  });
}

}  // namespace qkv::attention_detail
