#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "attention/rope_oracle.h"
#include "qkv/position.h"
#include "support/compare.h"
#include "support/guarded.h"
#include "support/random.h"

namespace qkv {
namespace {

using support::close;
using support::Guarded;
using support::kRealDtypes;
using support::Random;
using support::read;
using support::same_bits;
using support::tensor_of;

/// x turned, in memory of its own.
Tensor rotated(const Rope& rope, const ConstTensorView& x, const Positions& positions, const RopeCall& call = {}) {
  Tensor out(x.shape(), x.dtype());
  rope.apply(x, positions, out, call);
  return out;
}

TEST(Rope, TurnsTheFirstPairByOneRadian) {
  const Tensor x = tensor_of({4}, Dtype::kFloat64, {1, 0, 0, 0});
  const Tensor half = rotated(Rope(4), x, 1);
  EXPECT_TRUE(same_bits(half, tensor_of({4}, Dtype::kFloat64, {std::cos(1.0), 0, std::sin(1.0), 0})));
  const Tensor interleaved = rotated(Rope(4, {.layout = RopeLayout::kInterleaved}), x, 1);
  EXPECT_TRUE(same_bits(interleaved, tensor_of({4}, Dtype::kFloat64, {std::cos(1.0), std::sin(1.0), 0, 0})));
}

TEST(Rope, RoundsTheSineOnce) {
  for (const Dtype dtype : kRealDtypes) {
    const Tensor x = tensor_of({4}, dtype, {1, 0, 0, 0});
    EXPECT_TRUE(same_bits(rotated(Rope(4), x, 1), tensor_of({4}, dtype, {std::cos(1.0), 0, std::sin(1.0), 0})));
  }
}

TEST(Rope, FrequenciesAreRoundedOnceOrTwice) {
  for (const double base : {10000.0, 500000.0, 1e8}) {
    for (const std::int64_t dim : {6, 64, 80, 100, 128}) {
      const std::vector<double> frequencies = Rope(dim, {.base = base}).frequencies();
      for (std::size_t i = 0; i < frequencies.size(); ++i) {
        const long double exponent = 2.0L * static_cast<long double>(i) / static_cast<long double>(dim);
        const long double exact = std::pow(static_cast<long double>(base), -exponent);
        EXPECT_LE(std::abs(frequencies[i] / exact - 1), 0x1p-52L) << base << " " << dim << " " << i;
      }
    }
  }
}

TEST(Rope, TurnsPartOfTheColumns) {
  const Rope rope(8, {.rotary_dim = 4});
  EXPECT_EQ(rope.frequencies(), (std::vector<double>{1, 1 / std::sqrt(10000.0)}));
  const Tensor x = tensor_of({8}, Dtype::kFloat64, {1, 1, 0, 0, 5, 6, 7, 8});
  const double slow = 3 / std::sqrt(10000.0);
  const Tensor expected =
      tensor_of({8}, Dtype::kFloat64, {std::cos(3.0), std::cos(slow), std::sin(3.0), std::sin(slow), 5, 6, 7, 8});
  EXPECT_TRUE(same_bits(rotated(rope, x, 3), expected));
}

TEST(Rope, IsTheFormulaForEveryDtypeAndLayout) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    for (const Dtype dtype : kRealDtypes) {
      for (const RopeLayout layout : {RopeLayout::kHalf, RopeLayout::kInterleaved}) {
        const std::int64_t head_dim = random.integer(2, 150);
        const std::int64_t rotary_dim = 2 * random.integer(1, head_dim / 2);
        const Rope rope(head_dim, {.base = 500, .rotary_dim = rotary_dim, .layout = layout});
        const Tensor x = random.normal_tensor({2, 3, random.integer(1, 80), head_dim}, dtype);
        const std::int64_t first = random.integer(-200, 20'000);
        support::expect_rotated(rope, x, first, rotated(rope, x, first));
      }
    }
  }
}

TEST(Rope, KeepsFarAnglesExact) {
  const Rope rope(64);
  for (const Dtype dtype : kRealDtypes) {
    Random random(4);
    const Tensor x = random.normal_tensor({1, 2, 3, 64}, dtype);
    for (const std::int64_t first : {4095L, 16'383L, 16'384L, 1'000'000L, -1'000'000L, 1'000'000'000L}) {
      SCOPED_TRACE(first);
      support::expect_rotated(rope, x, first, rotated(rope, x, first));
    }
  }
}

TEST(Rope, TakesPositionsOneByOne) {
  Random random(5);
  const Rope rope(16);
  const Tensor x = random.normal_tensor({2, 3, 4, 16}, Dtype::kFloat32);
  for (const Dtype dtype : {Dtype::kInt32, Dtype::kInt64}) {
    const Tensor shared = tensor_of({4}, dtype, {7, -3, 0, 20'000});
    const Tensor once = tensor_of({1, 4}, dtype, {7, -3, 0, 20'000});
    const Tensor own = tensor_of({2, 4}, dtype, {7, -3, 0, 20'000, 1, 1, 2, -9});
    for (const Tensor* ids : {&shared, &once, &own}) {
      support::expect_rotated(rope, x, ids->view(), rotated(rope, x, ids->view()));
    }
  }
  // Each differs from the one before in another digit of the 128 that turns are made of.
  const Tensor apart = tensor_of({4}, Dtype::kInt64, {40'000, 60'000, 60'128, 5});
  support::expect_rotated(rope, x, apart, rotated(rope, x, apart));
  const Guarded strided({2, 4}, Dtype::kInt64, support::Layout::kStrided);
  support::copy(tensor_of({2, 4}, Dtype::kInt64, {7, -3, 0, 5, 1, 1, 2, -9}), strided);
  support::expect_rotated(rope, x, strided.view(), rotated(rope, x, strided.view()));
}

TEST(Rope, ReadsAndWritesAnyMemory) {
  const Rope rope(10, {.rotary_dim = 8});
  for (const Dtype dtype : kRealDtypes) {
    for (const support::Layout from : support::kAllLayouts) {
      for (const support::Layout to : support::kAllLayouts) {
        const Guarded x({2, 3, 5, 10}, dtype, from);
        Random(6).fill_normal(x.view());
        const Guarded out(x.shape(), dtype, to);
        rope.apply(x, 11, out);
        EXPECT_TRUE(out.intact());
        support::expect_rotated(rope, x, 11, out);
        rope.apply(x, 11, x);
        EXPECT_TRUE(x.intact());
        EXPECT_TRUE(same_bits(x, out)) << name_of(dtype);
      }
    }
  }
}

TEST(Rope, TakesFewerAxesAndEmptyOnes) {
  Random random(7);
  const Rope rope(6);
  const Tensor x = random.normal_tensor({1, 2, 3, 6}, Dtype::kFloat32);
  const Tensor expected = rotated(rope, x, 5);
  const ConstTensorView three(x.as<float>(), Dtype::kFloat32, {2, 3, 6}, {18, 6, 1});
  EXPECT_EQ(std::memcmp(rotated(rope, three, 5).as<float>(), expected.as<float>(), 36 * sizeof(float)), 0);
  const ConstTensorView two(x.as<float>(), Dtype::kFloat32, {3, 6}, {6, 1});
  EXPECT_EQ(std::memcmp(rotated(rope, two, 5).as<float>(), expected.as<float>(), 18 * sizeof(float)), 0);
  for (const Extents& empty : {Extents{0, 2, 3, 6}, Extents{1, 0, 3, 6}, Extents{1, 2, 0, 6}}) {
    EXPECT_EQ(rotated(rope, Tensor(empty, Dtype::kFloat32), 5).num_elements(), 0);
  }
}

TEST(Rope, RotatesPerTokenWhateverTheHeads) {
  Random random(8);
  const Rope rope(8);
  const Tensor x = random.normal_tensor({1, 3, 5, 8}, Dtype::kFloat64);
  support::expect_rotated(rope, x, 0, rotated(rope, x, 0));
}

TEST(Rope, InverseUndoesForward) {
  const YarnScaling yarn{.factor = 8, .original_max_position = 64};
  for (const RopeScaling& scaling : {RopeScaling{}, RopeScaling{yarn}}) {
    const Rope rope(32, {.scaling = scaling});
    for (const Dtype dtype : kRealDtypes) {
      Random random(9);
      const Tensor x = random.normal_tensor({1, 2, 70, 32}, dtype);
      const Tensor there = rotated(rope, x, 1000);
      const Tensor back = rotated(rope, there, 1000, {.pass = RopePass::kInverse});
      // A rounding each way, of numbers as large as the pair.
      EXPECT_TRUE(close(back, x, {.coefficient = 1.5, .size = 4}));
    }
  }
}

TEST(Rope, InverseIsForwardAtTheOppositePosition) {
  Random random(10);
  const Rope rope(32);
  const Tensor x = random.normal_tensor({1, 2, 1, 32}, Dtype::kFloat32);
  EXPECT_TRUE(same_bits(rotated(rope, x, 77, {.pass = RopePass::kInverse}), rotated(rope, x, -77)));
}

TEST(Rope, BackwardIsTheTranspose) {
  Random random(11);
  const YarnScaling yarn{.factor = 8, .original_max_position = 64};
  const Rope rope(32, {.scaling = yarn});
  ASSERT_GT(rope.attention_factor(), 1.2);
  const Tensor x = random.normal_tensor({1, 2, 9, 32}, Dtype::kFloat64);
  const Tensor y = random.normal_tensor({1, 2, 9, 32}, Dtype::kFloat64);
  const Tensor forward = rotated(rope, x, 300);
  const Tensor backward = rotated(rope, y, 300, {.pass = RopePass::kBackward});
  double one = 0;
  double other = 0;
  for (std::int64_t i = 0; i < x.num_elements(); ++i) {
    one += forward.as<double>()[i] * y.as<double>()[i];
    other += x.as<double>()[i] * backward.as<double>()[i];
  }
  EXPECT_NEAR(one, other, 1e-12 * std::abs(one) + 1e-12);
}

}  // namespace
}  // namespace qkv
