#ifndef QKV_SRC_REFERENCE_ATTENTION_H_
#define QKV_SRC_REFERENCE_ATTENTION_H_

#include "qkv/attention.h"
#include "qkv/varlen.h"

namespace qkv::reference {

/// The contract of qkv::attention in scalar double precision, for operands that have passed validation (the layer above
/// does that; qkv::reference::attention is the checked entry). Shares nothing with the kernels but the public headers.
void forward(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out, const AttentionOptions& options,
             const AttentionOutputs& outputs);

/// The same of qkv::attention_varlen, one segment after the other.
void forward_varlen(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                    const VarlenOptions& options, const AttentionOutputs& outputs);

}  // namespace qkv::reference

#endif  // QKV_SRC_REFERENCE_ATTENTION_H_
