#ifndef QKV_TESTS_ATTENTION_KV_ROPES_H_
#define QKV_TESTS_ATTENTION_KV_ROPES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "attention/kv_tokens.h"
#include "qkv/position.h"

namespace qkv::support {

inline constexpr std::int64_t kRopeDim = 24;

struct NamedRope {
  std::string name;
  Rope rope;
};

/// Every layout and scaling that a cache takes.
inline std::vector<NamedRope> ropes_of_caches() {
  const YarnScaling yarn{.factor = 4, .original_max_position = 16, .beta_fast = 8, .mscale = 0.7};
  const Llama3Scaling llama3{
      .factor = 8, .low_freq_factor = 1.25, .high_freq_factor = 4.5, .original_max_position = 64};
  return {{"plain", Rope(kRopeDim)},
          {"interleaved", Rope(kRopeDim, {.base = 500000, .layout = RopeLayout::kInterleaved})},
          {"partial", Rope(kRopeDim, {.rotary_dim = 10})},
          {"linear", Rope(kRopeDim, {.scaling = LinearScaling{3}, .max_position = 77})},
          {"yarn", Rope(kRopeDim, {.rotary_dim = 20, .layout = RopeLayout::kInterleaved, .scaling = yarn})},
          {"llama3", Rope(kRopeDim, {.base = 500000.1, .scaling = llama3})}};
}

/// Rows at first, first + 1, ..., turned.
inline Tensor turned(const Rope& rope, const ConstTensorView& rows, std::int64_t first = 0) {
  Tensor out(rows.shape(), rows.dtype());
  rope.apply(rows, first, out);
  return out;
}

inline Tensor cast(const ConstTensorView& from, Dtype dtype) {
  Tensor to(from.shape(), dtype);
  copy(from, to);
  return to;
}

inline KVCacheOptions with_rope(KVCacheOptions options, const Rope& rope) {
  options.rope = rope;
  return options;
}
inline PagedKVCacheOptions with_rope(PagedKVCacheOptions options, const Rope& rope) {
  options.rope = rope;
  return options;
}

}  // namespace qkv::support

#endif  // QKV_TESTS_ATTENTION_KV_ROPES_H_
