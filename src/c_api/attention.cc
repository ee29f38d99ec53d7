#include "qkv/attention.h"

#include <cstddef>
#include <vector>

#include "c_api/convert.h"
#include "c_api/status.h"
#include "qkv/merge.h"
#include "qkv/qkv.h"

namespace qkv::c_api {
namespace {

struct Call {
  ConstTensorView q;
  ConstTensorView k;
  ConstTensorView v;
  TensorView out;
  AttentionOptions options;
  AttentionOutputs outputs;
};

/// In the order of the arguments, so that the first wrong one is the one that the error names.
Call read_call(const qkv_tensor* q, const qkv_tensor* k, const qkv_tensor* v, const qkv_tensor* out,
               const qkv_attention_options* options, const qkv_attention_outputs* outputs) {
  return {.q = operand(q, "q"),
          .k = operand(k, "k"),
          .v = operand(v, "v"),
          .out = result(out, "out"),
          .options = attention_options(options),
          .outputs = attention_outputs(outputs)};
}

/// One of list's tensors, called "outs[3]" in an error.
ConstTensorView element(const qkv_tensor* const* list, const char* name, std::size_t index) {
  return operand(list[index], format_text("{}[{}]", name, index).c_str());
}

}  // namespace
}  // namespace qkv::c_api

using qkv::c_api::guarded;

qkv_status qkv_attention(const qkv_tensor* q, const qkv_tensor* k, const qkv_tensor* v, const qkv_tensor* out,
                         const qkv_attention_options* options, const qkv_attention_outputs* outputs) {
  return guarded([&] {
    const qkv::c_api::Call call = qkv::c_api::read_call(q, k, v, out, options, outputs);
    qkv::attention(call.q, call.k, call.v, call.out, call.options, call.outputs);
  });
}

qkv_status qkv_reference_attention(const qkv_tensor* q, const qkv_tensor* k, const qkv_tensor* v, const qkv_tensor* out,
                                   const qkv_attention_options* options, const qkv_attention_outputs* outputs) {
  return guarded([&] {
    const qkv::c_api::Call call = qkv::c_api::read_call(q, k, v, out, options, outputs);
    qkv::reference::attention(call.q, call.k, call.v, call.out, call.options, call.outputs);
  });
}

qkv_status qkv_merge_states(const qkv_tensor* const* outs, const qkv_tensor* const* lses, size_t num_parts,
                            const qkv_tensor* out, const qkv_tensor* lse, const qkv_tensor* sinks) {
  return guarded([&] {
    using namespace qkv::c_api;
    require(outs, "outs");
    require(lses, "lses");
    std::vector<qkv::PartialAttention> parts;
    for (std::size_t i = 0; i < num_parts; ++i) {
      parts.push_back({.out = element(outs, "outs", i), .lse = element(lses, "lses", i)});
    }
    const qkv::TensorView merged = result(out, "out");
    const auto merged_lse = optional_result(lse, "lse");
    qkv::merge_states(parts, merged, merged_lse, optional_operand(sinks, "sinks"));
  });
}
