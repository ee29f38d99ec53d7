#include "qkv/backward.h"

#include "c_api/convert.h"
#include "c_api/status.h"
#include "qkv/qkv.h"

namespace qkv::c_api {
namespace {

AttentionInputs attention_inputs(const qkv_attention_inputs* inputs) {
  const qkv_attention_inputs known = read_struct(inputs, sizeof(qkv_attention_inputs), "inputs");
  return {.q = operand(known.q, "q"), .k = operand(known.k, "k"), .v = operand(known.v, "v")};
}

AttentionSaved attention_saved(const qkv_attention_saved* saved) {
  const qkv_attention_saved known = read_struct(saved, sizeof(qkv_attention_saved), "saved");
  return {.out = operand(known.out, "out"), .lse = operand(known.lse, "lse")};
}

AttentionGradients attention_gradients(const qkv_attention_gradients* gradients) {
  const qkv_attention_gradients known = read_struct(gradients, sizeof(qkv_attention_gradients), "gradients");
  return {.grad_out = operand(known.grad_out, "grad_out"),
          .grad_lse = optional_operand(known.grad_lse, "grad_lse"),
          .grad_entropy = optional_operand(known.grad_entropy, "grad_entropy"),
          .grad_q = optional_result(known.grad_q, "grad_q"),
          .grad_k = optional_result(known.grad_k, "grad_k"),
          .grad_v = optional_result(known.grad_v, "grad_v"),
          .grad_bias = optional_result(known.grad_bias, "grad_bias"),
          .grad_sinks = optional_result(known.grad_sinks, "grad_sinks"),
          .accumulate = known.accumulate != 0};
}

/// In the order of the arguments, so that the first wrong one is the one that the error names.
template <class Function, class Options>
void differentiate(Function function, const qkv_attention_inputs* inputs, const qkv_attention_saved* saved,
                   const qkv_attention_gradients* gradients, const Options& read_options) {
  const AttentionInputs given = attention_inputs(inputs);
  const AttentionSaved left = attention_saved(saved);
  const AttentionGradients wanted = attention_gradients(gradients);
  function(given, left, wanted, read_options());
}

}  // namespace
}  // namespace qkv::c_api

using qkv::c_api::attention_options;
using qkv::c_api::differentiate;
using qkv::c_api::guarded;

qkv_status qkv_attention_backward(const qkv_attention_inputs* inputs, const qkv_attention_saved* saved,
                                  const qkv_attention_gradients* gradients, const qkv_attention_options* options) {
  return guarded([&] {
    differentiate(qkv::attention_backward, inputs, saved, gradients, [&] { return attention_options(options); });
  });
}

qkv_status qkv_reference_attention_backward(const qkv_attention_inputs* inputs, const qkv_attention_saved* saved,
                                            const qkv_attention_gradients* gradients,
                                            const qkv_attention_options* options) {
  return guarded([&] {
    differentiate(qkv::reference::attention_backward, inputs, saved, gradients,
                  [&] { return attention_options(options); });
  });
}

qkv_status qkv_attention_varlen_backward(const qkv_attention_inputs* inputs, const qkv_attention_saved* saved,
                                         const qkv_attention_gradients* gradients, const qkv_varlen_options* options) {
  return guarded([&] {
    differentiate(qkv::attention_varlen_backward, inputs, saved, gradients,
                  [&] { return qkv::c_api::varlen_options(options); });
  });
}
