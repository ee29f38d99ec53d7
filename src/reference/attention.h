#ifndef QKV_SRC_REFERENCE_ATTENTION_H_
#define QKV_SRC_REFERENCE_ATTENTION_H_

#include <cstdint>

#include "qkv/attention.h"
#include "qkv/kv_view.h"
#include "qkv/varlen.h"

namespace qkv::reference {

/// What attention reads, the options apart that say what it writes.
struct Inputs {
  ConstTensorView q, k, v;
  AttentionOptions options;
  std::int64_t num_sink_keys = 0;      ///< keys that the window does not hide
  const Rope* rope = nullptr;          ///< turns rows and keys by their places in the cache (CachePositions::kCache),
  Dtype kept_dtype = Dtype::kFloat32;  ///< as which it keeps the keys
  std::int64_t first_batch = 0;        ///< dropout's number of batch 0
};

/// The contract of qkv::attention in scalar double precision, for operands that have passed validation (the layer above
/// does that; qkv::reference::attention is the checked entry). Shares nothing with the kernels but the public headers
/// and base.
void forward(const Inputs& in, TensorView out, const AttentionOutputs& outputs);

/// The same of qkv::attention_varlen, one segment after the other.
void forward_varlen(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                    const VarlenOptions& options, const AttentionOutputs& outputs);

/// The same over the keys of a cache.
void forward_kv_view(ConstTensorView q, const KVView& kv, TensorView out, const AttentionOptions& options,
                     const AttentionOutputs& outputs);

}  // namespace qkv::reference

#endif  // QKV_SRC_REFERENCE_ATTENTION_H_
