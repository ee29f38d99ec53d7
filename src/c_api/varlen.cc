#include "qkv/varlen.h"

#include "c_api/convert.h"
#include "c_api/status.h"
#include "qkv/qkv.h"

qkv_status qkv_attention_varlen(const qkv_tensor* q, const qkv_tensor* k, const qkv_tensor* v, const qkv_tensor* out,
                                const qkv_varlen_options* options, const qkv_attention_outputs* outputs) {
  return qkv::c_api::guarded([&] {
    using namespace qkv::c_api;
    const qkv::ConstTensorView queries = operand(q, "q");
    const qkv::ConstTensorView keys = operand(k, "k");
    const qkv::ConstTensorView values = operand(v, "v");
    const qkv::TensorView written = result(out, "out");
    const qkv::VarlenOptions varlen = varlen_options(options);
    qkv::attention_varlen(queries, keys, values, written, varlen, attention_outputs(outputs));
  });
}
