// Rows on their way into a cache and out of it.
#include "attention/rope_rows.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "attention/rope_oracle.h"
#include "support/compare.h"
#include "support/guarded.h"
#include "support/random.h"

namespace qkv {
namespace {

using attention_detail::RopeAngles;
using attention_detail::RopeRows;
using support::Guarded;
using support::kRealDtypes;
using support::Random;
using support::same_bits;

constexpr std::int64_t kDim = 70;
constexpr std::int64_t kPosition = 20'000;

class RopeRowsTest : public ::testing::TestWithParam<RopeLayout> {
 protected:
  /// One row, turned into another dtype.
  void rotate(const ConstTensorView& from, const TensorView& to) const {
    const auto angles = std::make_shared<const RopeAngles>(rope_.frequencies(), false);
    RopeRows rows(rope_, RopePass::kForward, {from.dtype(), to.dtype()}, angles);
    rows.set_turn(0, kPosition);
    rows.rotate(
        {.from = from.data(), .from_column = from.stride(0), .to = to.data(), .to_column = to.stride(0), .count = 1});
  }

  const Rope rope_{kDim, {.rotary_dim = 68, .layout = GetParam()}};
};

/// A row of float32 holds what apply would round to 16 bits: more than that, and the same after rounding.
TEST_P(RopeRowsTest, GiveFloat32OfEveryDtype) {
  for (const Dtype dtype : kRealDtypes) {
    const Tensor x = Random(1).normal_tensor({kDim}, dtype);
    Tensor applied({kDim}, dtype);
    rope_.apply(x, kPosition, applied);
    Tensor row({kDim}, Dtype::kFloat32);
    rotate(x, row);
    Tensor expected({kDim}, Dtype::kFloat32);
    Tensor rounded({kDim}, dtype);
    support::copy(row, rounded);
    support::copy(applied, expected);
    if (size_of(dtype) == 2) {
      EXPECT_TRUE(same_bits(rounded, applied)) << name_of(dtype);
      EXPECT_FALSE(same_bits(row, expected)) << name_of(dtype);
    } else {
      EXPECT_TRUE(same_bits(row, expected)) << name_of(dtype);
    }
  }
}

TEST_P(RopeRowsTest, GiveEveryDtypeOfFloat32) {
  const Tensor x = Random(2).normal_tensor({kDim}, Dtype::kFloat32);
  Tensor applied({kDim}, Dtype::kFloat32);
  rope_.apply(x, kPosition, applied);
  // float64 holds what pairs are turned in.
  Tensor unrounded({kDim}, Dtype::kFloat64);
  support::copy(x, unrounded);
  rope_.apply(unrounded, kPosition, unrounded);
  for (const Dtype dtype : kRealDtypes) {
    Tensor row({kDim}, dtype);
    Tensor expected({kDim}, dtype);
    rotate(x, row);
    support::copy(dtype == Dtype::kFloat64 ? unrounded : applied, expected);
    EXPECT_TRUE(same_bits(row, expected)) << name_of(dtype);
  }
}

TEST_P(RopeRowsTest, TakeStrides) {
  const Tensor x = Random(3).normal_tensor({kDim}, Dtype::kBFloat16);
  Tensor expected({kDim}, Dtype::kFloat32);
  rotate(x, expected);
  const Guarded from({kDim}, Dtype::kBFloat16, support::Layout::kStrided);
  const Guarded to({kDim}, Dtype::kFloat32, support::Layout::kReversed);
  support::copy(x, from);
  rotate(from, to);
  EXPECT_TRUE(same_bits(to, expected));
  EXPECT_TRUE(to.intact());
}

INSTANTIATE_TEST_SUITE_P(Of, RopeRowsTest, ::testing::Values(RopeLayout::kHalf, RopeLayout::kInterleaved),
                         [](const auto& of) { return of.param == RopeLayout::kHalf ? "half" : "interleaved"; });

}  // namespace
}  // namespace qkv
