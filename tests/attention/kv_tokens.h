#ifndef QKV_TESTS_ATTENTION_KV_TOKENS_H_
#define QKV_TESTS_ATTENTION_KV_TOKENS_H_

#include <cstdint>
#include <string>

#include "qkv/kv_cache.h"
#include "support/error_of.h"
#include "support/random_call.h"

namespace qkv::support {

/// Attention of a few rows over everything that a view holds.
inline Tensor attend_to(const Tensor& q, const KVView& kv, const AttentionOptions& options = {}) {
  Tensor out({q.shape()[0], q.shape()[1], q.shape()[2], kv.v.extent(3)}, q.dtype());
  attention(q, kv, out, options);
  return out;
}

/// Tokens of all sequences, [batch, heads, n, columns].
struct Tokens {
  Tensor k, v;
  Tokens(Random& random, const Extents& shape, Dtype dtype = Dtype::kFloat32)
      : k(random.normal_tensor(shape, dtype)), v(random.normal_tensor(shape, dtype)) {}

  ConstTensorView keys(std::int64_t begin, std::int64_t end) const { return k.view().slice(2, begin, end); }
  ConstTensorView values(std::int64_t begin, std::int64_t end) const { return v.view().slice(2, begin, end); }
};

template <class Cache>
void append(Cache& cache, const Tokens& tokens, std::int64_t begin, std::int64_t end) {
  cache.append(tokens.keys(begin, end), tokens.values(begin, end));
}

inline KVCacheOptions small_options(Dtype dtype = Dtype::kFloat32) {
  return {.batch = 2, .num_kv_heads = 2, .head_dim = 24, .capacity = 80, .k_dtype = dtype, .v_dtype = dtype};
}
inline PagedKVCacheOptions small_pages(Dtype dtype = Dtype::kFloat32, std::int64_t page_size = 16) {
  return {.batch = 2,
          .num_kv_heads = 2,
          .head_dim = 24,
          .num_pages = 20,
          .page_size = page_size,
          .k_dtype = dtype,
          .v_dtype = dtype};
}

}  // namespace qkv::support

#endif  // QKV_TESTS_ATTENTION_KV_TOKENS_H_
