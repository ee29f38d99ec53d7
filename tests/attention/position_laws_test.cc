// What positions mean to attention: nothing without them, and their distance alone with rotations.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "qkv/attention.h"
#include "qkv/position.h"
#include "support/compare.h"
#include "support/random.h"

namespace qkv {
namespace {

using support::close;
using support::Random;
using support::read;
using support::write;

constexpr Dtype kF64 = Dtype::kFloat64;
constexpr std::int64_t kLength = 40;
constexpr std::int64_t kDim = 16;

/// Rows of all heads in another order.
Tensor permuted(const Tensor& rows, const std::vector<std::int64_t>& order) {
  Tensor result(rows.shape(), rows.dtype());
  support::for_each_index(rows.shape(), [&](const Extents& index) {
    write(result, index, read(rows, {index[0], index[1], order[static_cast<std::size_t>(index[2])], index[3]}));
  });
  return result;
}

Tensor rotated(const Tensor& x, const Positions& positions) {
  Tensor out(x.shape(), x.dtype());
  Rope(kDim, {.base = 100}).apply(x, positions, out);
  return out;
}

Tensor attended(const Tensor& q, const Tensor& k, const Tensor& v) {
  Tensor out(v.shape(), v.dtype());
  attention(q, k, v, out);
  return out;
}

Tensor masked_logits(const Tensor& q, const Tensor& k, const AttentionOptions& options = {}) {
  Tensor out(q.shape(), q.dtype());
  Tensor logits({1, q.shape()[1], q.shape()[2], k.shape()[2]}, q.dtype());
  attention(q, k, k, out, options, {.logits = Logits{logits, LogitsStage::kMasked}});
  return logits;
}

class PositionLaws : public ::testing::Test {
 protected:
  PositionLaws() {
    std::iota(order_.begin(), order_.end(), 0);
    for (std::size_t i = order_.size() - 1; i > 0; --i) {
      std::swap(order_[i], order_[static_cast<std::size_t>(random_.integer(0, static_cast<std::int64_t>(i)))]);
    }
  }
  Random random_{20240917};
  Tensor q_ = random_.normal_tensor({1, 2, kLength, kDim}, kF64);
  Tensor k_ = random_.normal_tensor({1, 2, kLength, kDim}, kF64);
  Tensor v_ = random_.normal_tensor({1, 2, kLength, kDim}, kF64);
  std::vector<std::int64_t> order_ = std::vector<std::int64_t>(kLength);
};

TEST_F(PositionLaws, WithoutPositionsAttentionDoesNotKnowTheOrder) {
  const Tensor expected = permuted(attended(q_, k_, v_), order_);
  const Tensor actual = attended(permuted(q_, order_), permuted(k_, order_), permuted(v_, order_));
  EXPECT_TRUE(close(actual, expected, {.coefficient = 32, .size = 4}));
}

TEST_F(PositionLaws, WithPositionsItDoes) {
  const Tensor expected = permuted(attended(rotated(q_, 0), rotated(k_, 0), v_), order_);
  const Tensor actual =
      attended(rotated(permuted(q_, order_), 0), rotated(permuted(k_, order_), 0), permuted(v_, order_));
  EXPECT_FALSE(close(actual, expected, {.coefficient = 32, .size = 4}));
  // Unless every row takes its own with it.
  const ConstTensorView ids = view(order_.data(), {kLength});
  const Tensor moved =
      attended(rotated(permuted(q_, order_), ids), rotated(permuted(k_, order_), ids), permuted(v_, order_));
  EXPECT_TRUE(close(moved, expected, {.coefficient = 32, .size = 4}));
}

TEST_F(PositionLaws, LogitsOfRotatedRowsDependOnDistanceAlone) {
  const Tensor expected = masked_logits(rotated(q_, 0), rotated(k_, 0));
  for (const std::int64_t shift : {1, 63, 64, 5000, -20'000, 1'000'000}) {
    const Tensor actual = masked_logits(rotated(q_, shift), rotated(k_, shift));
    // Angles grow with the shift, and what they may be off by.
    const double size = 4 * (1 + static_cast<double>(std::abs(shift)));
    EXPECT_TRUE(close(actual, expected, {.coefficient = 16, .size = size})) << shift;
  }
}

TEST_F(PositionLaws, AlibiCountsFromAbsolutePositions) {
  const Tensor q({1, 3, 8, kDim}, kF64);
  const Tensor k({1, 3, 20, kDim}, kF64);
  Tensor slopes({3}, kF64);
  alibi_slopes(slopes);
  const Tensor logits = masked_logits(q, k, {.alibi_slopes = slopes.view()});
  support::for_each_index(logits.shape(), [&](const Extents& index) {
    const auto distance = static_cast<double>(std::abs(12 + index[2] - index[3]));
    EXPECT_EQ(read(logits, index), -read(slopes, {index[1]}) * distance) << to_string(index);
  });
}

TEST_F(PositionLaws, T5BiasIsABiasOfAttention) {
  const Tensor table = random_.normal_tensor({32, 2}, kF64);
  const Tensor zeros({1, 2, kLength, kDim}, kF64);
  Tensor bias({2, kLength, kLength}, kF64);
  t5_bias(table, bias);
  const Tensor logits = masked_logits(zeros, zeros, {.bias = bias.view()});
  support::for_each_index(logits.shape(), [&](const Extents& index) {
    EXPECT_EQ(read(logits, index), read(table, {t5_bucket(index[3] - index[2], 32), index[1]}));
  });
}

}  // namespace
}  // namespace qkv
