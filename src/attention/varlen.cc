#include "qkv/varlen.h"

#include <string_view>
#include <vector>

#include "attention/forward.h"
#include "attention/targets.h"
#include "attention/validate.h"
#include "reference/attention.h"

namespace qkv {

void attention_varlen(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                      const VarlenOptions& options, const AttentionOutputs& outputs) {
  const std::vector<kernels::ForwardProblem> segments =
      attention_detail::validate_varlen(q, k, v, out, options, outputs);
  const std::string_view target = attention_detail::current_target();
  if (target == attention_detail::kReferenceTarget) {
    reference::forward_varlen(q, k, v, out, options, outputs);
  } else {
    attention_detail::forward(segments, target);
  }
}

void reference::attention_varlen(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                                 const VarlenOptions& options, const AttentionOutputs& outputs) {
  attention_detail::validate_varlen(q, k, v, out, options, outputs);
  forward_varlen(q, k, v, out, options, outputs);
}

}  // namespace qkv
