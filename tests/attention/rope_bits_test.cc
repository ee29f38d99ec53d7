// What the bits of a turned row do not depend on.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>

#include "attention/rope_oracle.h"
#include "qkv/position.h"
#include "support/call.h"
#include "support/compare.h"
#include "support/guarded.h"
#include "support/random.h"

namespace qkv {
namespace {

using support::kRealDtypes;
using support::Random;
using support::same_bits;

constexpr std::int64_t kFirst = 16'300;  // the rows cross the digits of positions

/// More rows than are turned at a time, and work enough for several threads.
class RopeBits : public ::testing::TestWithParam<Dtype> {
 protected:
  Tensor input() const { return Random(1).normal_tensor({2, 4, 150, 64}, GetParam()); }
  static Tensor rotated(const Rope& rope, const ConstTensorView& x, const Positions& positions,
                        const RopeCall& call = {}) {
    Tensor out(x.shape(), x.dtype());
    rope.apply(x, positions, out, call);
    return out;
  }

  const Rope rope_{64};
};

TEST_P(RopeBits, IdsAreAFirstPosition) {
  const Tensor x = input();
  Tensor ids({150}, Dtype::kInt64);
  std::iota(ids.as<std::int64_t>(), ids.as<std::int64_t>() + 150, kFirst);
  Tensor each({2, 150}, Dtype::kInt64);
  for (std::int64_t b : {0, 1})
    std::iota(each.as<std::int64_t>() + b * 150, each.as<std::int64_t>() + (b + 1) * 150, kFirst);
  const Tensor expected = rotated(rope_, x, kFirst);
  EXPECT_TRUE(same_bits(rotated(rope_, x, ids.view()), expected));
  EXPECT_TRUE(same_bits(rotated(rope_, x, each.view()), expected));
}

TEST_P(RopeBits, DoNotDependOnTheSplitIntoCalls) {
  const Tensor x = input();
  const Tensor expected = rotated(rope_, x, kFirst);
  Tensor out(x.shape(), x.dtype());
  std::int64_t begin = 0;
  for (const std::int64_t end : {1, 2, 9, 73, 140, 150}) {
    rope_.apply(x.view().slice(2, begin, end), kFirst + begin, out.view().slice(2, begin, end));
    begin = end;
  }
  EXPECT_TRUE(same_bits(out, expected));
}

TEST_P(RopeBits, DoNotDependOnBatchAndHeads) {
  const Tensor x = input();
  const Tensor expected = rotated(rope_, x, kFirst);
  const ConstTensorView one = x.view().slice(0, 1, 2).slice(1, 2, 3);
  EXPECT_TRUE(same_bits(rotated(rope_, one, kFirst), expected.view().slice(0, 1, 2).slice(1, 2, 3)));
}

TEST_P(RopeBits, DoNotDependOnStrides) {
  const Tensor x = input();
  const Tensor expected = rotated(rope_, x, kFirst);
  // [batch, n, heads, head_dim], whose heads are nearer to each other than the rows.
  Tensor other({2, 150, 4, 64}, GetParam());
  support::copy(x, other.view().permute({0, 2, 1, 3}));
  Tensor out({2, 150, 4, 64}, GetParam());
  rope_.apply(ConstTensorView(other).permute({0, 2, 1, 3}), kFirst, out.view().permute({0, 2, 1, 3}));
  EXPECT_TRUE(same_bits(out.view().permute({0, 2, 1, 3}), expected));
  for (const support::Layout layout : support::kAllLayouts) {
    const support::Guarded given(x.shape(), GetParam(), layout);
    support::copy(x, given);
    rope_.apply(given, kFirst, given);
    EXPECT_TRUE(same_bits(given, expected));
  }
}

TEST_P(RopeBits, DoNotDependOnThreads) {
  const Tensor x = input();
  const support::ThreadScope one(1);
  const Tensor expected = rotated(rope_, x, kFirst);
  for (const int threads : {2, 3, 7}) {
    const support::ThreadScope more(threads);
    EXPECT_TRUE(same_bits(rotated(rope_, x, kFirst), expected)) << threads;
  }
}

TEST_P(RopeBits, DoNotDependOnTablesOfDynamicScaling) {
  const Rope rope(64, {.scaling = DynamicScaling{.factor = 4}, .max_position = 100});
  const Tensor x = Random(2).normal_tensor({1, 1, 300, 64}, GetParam());  // enough for tables
  const RopeCall call{.seq_len = kFirst + 300};
  const Tensor expected = rotated(rope, x, kFirst, call);
  EXPECT_TRUE(same_bits(rotated(rope, x, kFirst), expected));  // the default is the last position + 1
  Tensor out(x.shape(), x.dtype());
  for (std::int64_t i = 0; i < 300; ++i) {
    rope.apply(x.view().slice(2, i, i + 1), kFirst + i, out.view().slice(2, i, i + 1), call);
  }
  EXPECT_TRUE(same_bits(out, expected));
  EXPECT_FALSE(same_bits(rotated(rope, x, kFirst, {.seq_len = kFirst + 301}), expected));
}

INSTANTIATE_TEST_SUITE_P(Of, RopeBits, ::testing::ValuesIn(kRealDtypes),
                         [](const auto& of) { return std::string(name_of(of.param)); });

}  // namespace
}  // namespace qkv
