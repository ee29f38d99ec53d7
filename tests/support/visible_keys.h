#ifndef QKV_TESTS_SUPPORT_VISIBLE_KEYS_H_
#define QKV_TESTS_SUPPORT_VISIBLE_KEYS_H_

#include "support/call.h"

namespace qkv::support {

/// Where rows see keys, by the reference's masked logits: [batch, heads, q_len, kv_len], 1 or 0.
inline Tensor visible_keys(const Call& call) {
  const Results all = run_all(call, {}, &reference::attention);
  Tensor visible(all.logits.shape(), Dtype::kBool);
  for_each_index(visible.shape(),
                 [&](const Extents& index) { write(visible, index, read(all.logits, index) == -kInf ? 0 : 1); });
  return visible;
}

}  // namespace qkv::support

#endif  // QKV_TESTS_SUPPORT_VISIBLE_KEYS_H_
