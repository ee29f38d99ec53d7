#include "qkv/attention.h"

#include <string_view>

#include "attention/forward.h"
#include "attention/targets.h"
#include "attention/validate.h"
#include "reference/attention.h"

namespace qkv {

void attention(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out, const AttentionOptions& options,
               const AttentionOutputs& outputs) {
  const kernels::ForwardProblem problem = attention_detail::validate(q, k, v, out, options, outputs);
  const std::string_view target = attention_detail::current_target();
  if (target == attention_detail::kReferenceTarget) {
    reference::forward({q, k, v, options}, out, outputs);
  } else {
    attention_detail::forward({&problem, 1}, target);
  }
}

void reference::attention(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                          const AttentionOptions& options, const AttentionOutputs& outputs) {
  attention_detail::validate(q, k, v, out, options, outputs);
  forward({q, k, v, options}, out, outputs);
}

}  // namespace qkv
