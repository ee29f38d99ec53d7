#include "qkv/backward.h"

#include <string_view>
#include <vector>

#include "attention/run_backward.h"
#include "attention/targets.h"
#include "attention/validate.h"
#include "reference/backward.h"

namespace qkv {

void attention_backward(const AttentionInputs& inputs, const AttentionSaved& saved, const AttentionGradients& gradients,
                        const AttentionOptions& options) {
  kernels::BackwardProblem problem = attention_detail::validate_backward(inputs, saved, gradients, options);
  const std::string_view target = attention_detail::current_target();
  if (target == attention_detail::kReferenceTarget) {
    reference::backward(inputs, gradients, options);
  } else {
    attention_detail::run_backward({&problem, 1}, target);
  }
}

void attention_varlen_backward(const AttentionInputs& inputs, const AttentionSaved& saved,
                               const AttentionGradients& gradients, const VarlenOptions& options) {
  std::vector<kernels::BackwardProblem> segments =
      attention_detail::validate_varlen_backward(inputs, saved, gradients, options);
  const std::string_view target = attention_detail::current_target();
  // Of no segments there is nothing but a gradient of sinks, which is 0.
  if (target == attention_detail::kReferenceTarget || segments.empty()) {
    reference::backward_varlen(inputs, gradients, options);
  } else {
    attention_detail::run_backward(segments, target);
  }
}

void reference::attention_backward(const AttentionInputs& inputs, const AttentionSaved& saved,
                                   const AttentionGradients& gradients, const AttentionOptions& options) {
  attention_detail::validate_backward(inputs, saved, gradients, options);
  backward(inputs, gradients, options);
}

void reference::attention_varlen_backward(const AttentionInputs& inputs, const AttentionSaved& saved,
                                          const AttentionGradients& gradients, const VarlenOptions& options) {
  attention_detail::validate_varlen_backward(inputs, saved, gradients, options);
  backward_varlen(inputs, gradients, options);
}

}  // namespace qkv
