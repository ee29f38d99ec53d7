#include "qkv/kv_view.h"

#include <string_view>

#include "attention/forward.h"
#include "attention/targets.h"
#include "attention/validate.h"
#include "reference/attention.h"

namespace qkv {

void attention(ConstTensorView q, const KVView& kv, TensorView out, const AttentionOptions& options,
               const AttentionOutputs& outputs) {
  const kernels::ForwardProblem problem = attention_detail::validate_kv_view(q, kv, out, options, outputs);
  const std::string_view target = attention_detail::current_target();
  if (target == attention_detail::kReferenceTarget) {
    reference::forward_kv_view(q, kv, out, options, outputs);
  } else {
    attention_detail::forward({&problem, 1}, target);
  }
}

void reference::attention(ConstTensorView q, const KVView& kv, TensorView out, const AttentionOptions& options,
                          const AttentionOutputs& outputs) {
  attention_detail::validate_kv_view(q, kv, out, options, outputs);
  forward_kv_view(q, kv, out, options, outputs);
}

}  // namespace qkv
