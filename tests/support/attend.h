#ifndef QKV_TESTS_SUPPORT_ATTEND_H_
#define QKV_TESTS_SUPPORT_ATTEND_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "qkv/attention.h"
#include "qkv/tensor.h"

namespace qkv::support {

/// qkv::attention or qkv::reference::attention.
using Attention = void (*)(ConstTensorView, ConstTensorView, ConstTensorView, TensorView, const AttentionOptions&,
                           const AttentionOutputs&);

/// Everything that a call can write.
struct Attended {
  Tensor out;      ///< [batch, num_heads, q_len, value_dim]
  Tensor lse;      ///< these, and the statistics, [batch, num_heads, q_len]
  Tensor weights;  ///< these two [batch, num_heads, q_len, kv_len]
  Tensor logits;
  Tensor max_raw;
  Tensor max_logit;
  Tensor max_key;
  Tensor max_weight;
  Tensor entropy;
  Tensor key_weight;
};

/// What else to ask for.
struct Wanted {
  LogitsStage stage = LogitsStage::kMasked;
  std::vector<std::int64_t> keys = {};
};

/// Calls `attention` on operands of four axes, with every output.
inline Attended attend(Attention attention, const ConstTensorView& q, const ConstTensorView& k,
                       const ConstTensorView& v, const AttentionOptions& options = {}, const Wanted& wanted = {}) {
  const Extents rows{q.extent(0), q.extent(1), q.extent(2)};
  const Extents pairs{q.extent(0), q.extent(1), q.extent(2), k.extent(2)};
  const Dtype dtype = q.dtype();
  Attended a{.out = Tensor({q.extent(0), q.extent(1), q.extent(2), v.extent(3)}, dtype),
             .lse = Tensor(rows, dtype),
             .weights = Tensor(pairs, dtype),
             .logits = Tensor(pairs, dtype),
             .max_raw = Tensor(rows, dtype),
             .max_logit = Tensor(rows, dtype),
             .max_key = Tensor(rows, Dtype::kInt64),
             .max_weight = Tensor(rows, dtype),
             .entropy = Tensor(rows, dtype),
             .key_weight = Tensor(rows, dtype)};
  const AttentionOutputs outputs{.lse = a.lse.view(),
                                 .weights = Weights{.out = a.weights},
                                 .logits = Logits{.out = a.logits, .stage = wanted.stage},
                                 .stats = Stats{.max_raw = a.max_raw.view(),
                                                .max_logit = a.max_logit.view(),
                                                .max_key = a.max_key.view(),
                                                .max_weight = a.max_weight.view(),
                                                .entropy = a.entropy.view(),
                                                .key_weight = a.key_weight.view(),
                                                .keys = wanted.keys}};
  attention(q, k, v, a.out, options, outputs);
  return a;
}

}  // namespace qkv::support

#endif  // QKV_TESTS_SUPPORT_ATTEND_H_
