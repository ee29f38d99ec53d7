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

/// The same options with keys that turn by their places in the cache.
template <class Options>
Options in_places(Options options) {
  options.positions = CachePositions::kCache;
  return options;
}

/// Slots, some of them to spare, of which rows see the last 12 and 3 sinks.
inline KVCacheOptions ring_in_places(Dtype dtype, const Rope& rope) {
  KVCacheOptions options = in_places(with_rope(small_options(dtype), rope));
  options.window = 12;
  options.num_sinks = 3;
  return options;
}

inline Rope dynamic_rope() { return Rope(kRopeDim, {.scaling = DynamicScaling{2.5}, .max_position = 9}); }

/// Every rope of caches, and the scaling that only keys take which turn as they are read.
inline std::vector<NamedRope> ropes_in_places() {
  std::vector<NamedRope> ropes = ropes_of_caches();
  ropes.push_back({"dynamic", dynamic_rope()});
  return ropes;
}

}  // namespace qkv::support

#endif  // QKV_TESTS_ATTENTION_KV_ROPES_H_
