#ifndef QKV_TESTS_SUPPORT_RANDOM_CALL_H_
#define QKV_TESTS_SUPPORT_RANDOM_CALL_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>

#include "support/call.h"

namespace qkv::support {

/// Draws lengths and dims around the edges of tiles, vectors, words and blocks as well as anywhere.
inline std::int64_t draw_length(Random& random, std::int64_t most) {
  static constexpr std::int64_t kEdges[] = {0,  1,  2,  3,  5,   6,   7,   8,   9,   15,  16,  17,  31, 32,
                                            33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513};
  for (;;) {
    const std::int64_t length =
        random.chance(0.6) ? kEdges[random.integer(0, std::ssize(kEdges) - 1)] : random.integer(1, most);
    if (length <= most) return length;
  }
}

inline Layout draw_layout(Random& random) {
  return random.chance(0.4) ? Layout::kDense : kAllLayouts[random.integer(0, std::ssize(kAllLayouts) - 1)];
}

/// What k and v may be stored as beside a q of this dtype.
inline Dtype draw_storage(Random& random, Dtype q) {
  if (q == Dtype::kFloat64 || random.chance(0.6)) return q;
  return random.chance(0.5) ? Dtype::kFloat16 : Dtype::kBFloat16;
}

/// What bias, sinks and slopes may be.
inline Dtype draw_term_dtype(Random& random, Dtype q) {
  return size_of(q) == 2 && random.chance(0.5) ? Dtype::kFloat32 : q;
}

/// A shape that broadcasts onto [batch, heads, q_len, kv_len], of 0 to 4 axes.
inline Extents draw_broadcast_shape(Random& random, const Call& call) {
  const std::int64_t full[] = {call.batch, call.num_heads, call.q_len, call.kv_len};
  const auto rank = static_cast<int>(random.chance(0.5) ? 4 : random.integer(0, 4));
  std::int64_t shape[4];
  for (int axis = 0; axis < rank; ++axis) shape[axis] = random.chance(0.35) ? 1 : full[4 - rank + axis];
  return Extents(std::span<const std::int64_t>(shape, static_cast<std::size_t>(rank)));
}

inline Extents draw_head_shape(Random& random, const Call& call) {
  return random.chance(0.5) ? Extents{call.num_heads} : Extents{call.batch, call.num_heads};
}

inline void draw_positions(Random& random, Call& call) {
  AttentionOptions& options = call.options;
  options.causal = random.chance(0.4);
  if (random.chance(0.3)) options.window.left = random.integer(0, call.kv_len + 2);
  if (random.chance(0.3)) options.window.right = random.integer(0, call.kv_len + 2);
  if (random.chance(0.3)) options.query_offset = random.integer(-call.q_len - 3, call.kv_len + 3);
  if (random.chance(0.2)) {
    call.offsets = std::make_unique<Guarded>(Extents{call.batch}, random.chance(0.5) ? Dtype::kInt64 : Dtype::kInt32);
    for_each_index({call.batch}, [&](const Extents& b) {
      write(*call.offsets, b, static_cast<double>(random.integer(-5, call.kv_len + 5)));
    });
  }
  if (random.chance(0.3)) {
    call.kv_lens = std::make_unique<Guarded>(Extents{call.batch}, random.chance(0.5) ? Dtype::kInt64 : Dtype::kInt32);
    for_each_index({call.batch}, [&](const Extents& b) {
      write(*call.kv_lens, b, static_cast<double>(random.integer(0, call.kv_len)));
    });
  }
}

inline void draw_terms(Random& random, Call& call) {
  AttentionOptions& options = call.options;
  if (random.chance(0.3)) options.scale = random.chance(0.2) ? 0.0 : random.normal();
  if (random.chance(0.2)) options.softcap = random.uniform(0.3, 5);
  if (random.chance(0.35)) {
    call.mask = std::make_unique<Guarded>(draw_broadcast_shape(random, call), Dtype::kBool, draw_layout(random));
    random.fill_bool(*call.mask, random.chance(0.3) ? 0.02 : random.uniform(0.2, 1));
  }
  if (random.chance(0.3)) {
    const Dtype dtype = draw_term_dtype(random, call.dtype);
    call.bias = Call::filled_as(dtype, draw_broadcast_shape(random, call), draw_layout(random), random);
    for_each_index(call.bias->view().shape(), [&](const Extents& index) {
      if (random.chance(0.1)) write(*call.bias, index, -std::numeric_limits<double>::infinity());
    });
  }
  const auto per_head = [&](double deviation) {
    const Dtype dtype = draw_term_dtype(random, call.dtype);
    return Call::filled_as(dtype, draw_head_shape(random, call), Layout::kDense, random, deviation);
  };
  if (random.chance(0.2)) call.sinks = per_head(1);
  if (random.chance(0.2)) call.slopes = per_head(0.1);
}

/// A call with anything the contract allows, of at most `most` rows and keys.
inline Call draw_call(Random& random, Dtype dtype, std::int64_t most) {
  static constexpr std::int64_t kDims[] = {1,  2,  3,  4,  7,  8,  9,  15, 16, 17,  24,
                                           31, 32, 33, 40, 48, 64, 65, 80, 96, 112, 128};
  Call call;
  call.dtype = dtype;
  call.batch = random.integer(1, 3);
  call.num_kv_heads = random.integer(1, 3);
  call.num_heads = call.num_kv_heads * random.integer(1, 3);
  call.q_len = draw_length(random, most / 2);
  call.kv_len = draw_length(random, most);
  call.head_dim = kDims[random.integer(0, std::ssize(kDims) - 1)];
  call.value_dim = random.chance(0.4) ? call.head_dim : kDims[random.integer(0, std::ssize(kDims) - 1)];
  if (random.chance(0.02)) call.value_dim = 0;
  draw_positions(random, call);
  draw_terms(random, call);
  call.q = call.filled({call.batch, call.num_heads, call.q_len, call.head_dim}, draw_layout(random), random);
  const auto keyed = [&](std::int64_t columns) {
    const Extents shape{call.batch, call.num_kv_heads, call.kv_len, columns};
    return Call::filled_as(draw_storage(random, dtype), shape, draw_layout(random), random);
  };
  call.k = keyed(call.head_dim);
  call.v = keyed(call.value_dim);
  for (std::int64_t key = 0; key < call.kv_len; ++key) {
    if (random.chance(0.05)) call.stats_keys.push_back(key);
  }
  return call;
}

}  // namespace qkv::support

#endif  // QKV_TESTS_SUPPORT_RANDOM_CALL_H_
