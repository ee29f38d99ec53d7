#ifndef QKV_TESTS_ATTENTION_KV_STREAM_H_
#define QKV_TESTS_ATTENTION_KV_STREAM_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "attention/kv_ropes.h"
#include "support/on_target.h"

namespace qkv::support {

using Row = std::vector<double>;

inline constexpr std::int64_t kDim = 16;
inline constexpr double kBase = 100;

/// Pairs i and i + d / 2 at a position, written down once more.
inline Row rotated(const ConstTensorView& rows, std::int64_t i, double position) {
  Row row;
  for (std::int64_t c = 0; c < kDim; ++c) row.push_back(read(rows, {0, 0, i, c}));
  Row result = row;
  for (std::size_t c = 0; c < kDim / 2; ++c) {
    const double angle = position * std::pow(kBase, -2 * static_cast<double>(c) / kDim);
    result[c] = row[c] * std::cos(angle) - row[c + kDim / 2] * std::sin(angle);
    result[c + kDim / 2] = row[c + kDim / 2] * std::cos(angle) + row[c] * std::sin(angle);
  }
  return result;
}

/// One row of attention over these keys, every number in double.
inline Row attended(const Row& q, const std::vector<Row>& keys, const std::vector<std::int64_t>& values,
                    const ConstTensorView& v) {
  Row logits;
  for (const Row& key : keys) {
    double logit = 0;
    for (std::size_t c = 0; c < kDim; ++c) logit += q[c] * key[c] / std::sqrt(kDim);
    logits.push_back(logit);
  }
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  Row out(kDim, 0);
  for (std::size_t j = 0; j < keys.size(); ++j) {
    const double weight = std::exp(logits[j] - most);
    sum += weight;
    for (std::size_t c = 0; c < kDim; ++c) {
      out[c] += weight * read(v, {0, 0, values[j], static_cast<std::int64_t>(c)});
    }
  }
  for (double& x : out) x /= sum;
  return out;
}

inline void expect_row(const ConstTensorView& out, const Row& expected, double tolerance) {
  for (std::int64_t c = 0; c < kDim; ++c) {
    EXPECT_NEAR(read(out, {0, 0, 0, c}), expected[static_cast<std::size_t>(c)], tolerance) << "column " << c;
  }
}

/// A stream of tokens, for caches that turn.
struct Stream {
  Tensor q, k, v;
  Rope rope{kDim, {.base = kBase}};

  explicit Stream(std::int64_t length) {
    Random random(1);
    for (Tensor* each : {&q, &k, &v}) *each = random.normal_tensor({1, 1, length, kDim}, Dtype::kFloat32);
  }
  KVCacheOptions ring(std::int64_t window, std::int64_t sinks) const {
    return {.head_dim = kDim, .capacity = window + sinks, .window = window, .num_sinks = sinks, .rope = rope};
  }
  void append(KVCache& cache, std::int64_t begin, std::int64_t end) const {
    cache.append(k.view().slice(2, begin, end), v.view().slice(2, begin, end));
  }
  Tensor attend(const KVCache& cache, std::int64_t i) const {
    Tensor out({1, 1, 1, kDim}, Dtype::kFloat32);
    attention(q.view().slice(2, i, i + 1), cache.view(), out);
    return out;
  }
};

}  // namespace qkv::support

#endif  // QKV_TESTS_ATTENTION_KV_STREAM_H_
