// Small enough to be worked out by hand: the reference is the yardstick of everything else, so its own yardstick is
// paper. qkv::reference::attention is the checked entry to reference::forward.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "reference/by_hand.h"
#include "support/guarded.h"
#include "support/random.h"

namespace qkv {
namespace {

Results reference_of(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options = {}) {
  return attend(reference::attention, q, k, v, options);
}

/// q k^T / sqrt(1) = {ln 1, ln 3} for row 0 and {0, 2 ln 3} for row 1; V = {10, 20}.
struct TwoByTwo {
  Tensor q = tensor_of({1, 1, 2, 1}, kF64, {1, 2});
  Tensor k = tensor_of({1, 1, 2, 1}, kF64, {0, std::log(3.0)});
  Tensor v = tensor_of({1, 1, 2, 1}, kF64, {10, 20});

  Results run(const AttentionOptions& options = {}) const { return reference_of(q, k, v, options); }
};

void expect_out(const Results& results, std::initializer_list<double> expected) {
  expect_numbers(results.out, expected, {.coefficient = kByHand.coefficient, .size = 20});
}
void expect_weights(const Results& results, std::initializer_list<double> expected) {
  expect_numbers(results.weights, expected);
}
void expect_lse(const Results& results, std::initializer_list<double> expected) {
  expect_numbers(results.lse, expected);
}

TEST(Reference, PlainSoftmax) {
  const Results a = TwoByTwo().run();
  expect_weights(a, {1.0 / 4, 3.0 / 4, 1.0 / 10, 9.0 / 10});
  expect_out(a, {17.5, 19});
  expect_lse(a, {std::log(4.0), std::log(10.0)});
}

TEST(Reference, ScaleDefaultsToOneOverRootOfHeadDim) {
  // Dot products 4 ln 3 and 0 at head_dim 4: scaled by 1/2, 2 ln 3.
  const Tensor q = tensor_of({1, 1, 1, 4}, kF64, {1});
  const Tensor k = tensor_of(
      {1, 1, 2, 4}, kF64, {1.0986122886681098, 1.0986122886681098, 1.0986122886681098, 1.0986122886681098, 0, 0, 0, 0});
  const Tensor v = tensor_of({1, 1, 2, 1}, kF64, {1, 0});
  expect_weights(reference_of(q, k, v), {9.0 / 10, 1.0 / 10});
}

TEST(Reference, ScaleMayBeZeroOrNegative) {
  expect_weights(TwoByTwo().run({.scale = 0}), {0.5, 0.5, 0.5, 0.5});
  expect_weights(TwoByTwo().run({.scale = -1}), {3.0 / 4, 1.0 / 4, 9.0 / 10, 1.0 / 10});
}

TEST(Reference, SoftcapComesBeforeTheBias) {
  const Tensor bias = tensor_of({2}, kF64, {std::log(2.0), 0});
  // c * tanh(x / c) of ln 3 at c = ln 3: tanh(1) ln 3; then + ln 2 at key 0.
  const double cap = std::log(3.0);
  const double e0 = 2;
  const double e1 = std::exp(cap * std::tanh(1.0));
  const double e3 = std::exp(cap * std::tanh(2.0));
  expect_weights(TwoByTwo().run({.softcap = cap, .bias = bias}),
                 {e0 / (e0 + e1), e1 / (e0 + e1), e0 / (e0 + e3), e3 / (e0 + e3)});
}

TEST(Reference, MaskHidesKeys) {
  const Tensor mask = tensor_of({2, 2}, Dtype::kBool, {1, 0, 1, 1});
  const Results a = TwoByTwo().run({.mask = mask});
  expect_weights(a, {1, 0, 1.0 / 10, 9.0 / 10});
  expect_lse(a, {0, std::log(10.0)});
}

TEST(Reference, CausalIsBottomRight) {
  expect_weights(TwoByTwo().run({.causal = true}), {1, 0, 1.0 / 10, 9.0 / 10});
  expect_weights(TwoByTwo().run({.causal = true, .query_offset = 1}), {1.0 / 4, 3.0 / 4, 1.0 / 10, 9.0 / 10});
  const Results none = TwoByTwo().run({.causal = true, .query_offset = -1});
  expect_weights(none, {0, 0, 1, 0});
  expect_lse(none, {-kInf, 0});
}

TEST(Reference, OffsetsAndLengthsPerBatch) {
  const Tensor q = tensor_of({2, 1, 1, 1}, kF64, {0});
  const Tensor k = tensor_of({2, 1, 3, 1}, kF64, {0});
  const Tensor v = tensor_of({2, 1, 3, 1}, kF64, {1, 2, 3, 1, 2, 3});
  for (const Dtype dtype : {Dtype::kInt32, Dtype::kInt64}) {
    const Tensor lens = tensor_of({2}, dtype, {2, 3});
    const Tensor offsets = tensor_of({2}, dtype, {1, 0});
    expect_out(reference_of(q, k, v, {.kv_lens = lens}), {1.5, 2});
    expect_out(reference_of(q, k, v, {.causal = true, .query_offset = ConstTensorView(offsets)}), {1.5, 1});
    // The default offset counts from what is filled: the one row sits at the last filled key.
    expect_out(reference_of(q, k, v, {.window = {.left = 0, .right = 0}, .kv_lens = lens}), {2, 3});
  }
}

TEST(Reference, WindowEndsAreIncluded) {
  const Tensor q = tensor_of({1, 1, 5, 1}, kF64, {0});
  const Tensor k = tensor_of({1, 1, 5, 1}, kF64, {0});
  const Tensor v = tensor_of({1, 1, 5, 1}, kF64, {0, 1, 2, 3, 4});
  expect_out(reference_of(q, k, v, {.window = {.left = 1, .right = 0}}), {0, 0.5, 1.5, 2.5, 3.5});
  expect_out(reference_of(q, k, v, {.window = {.left = 0, .right = 2}}), {1, 2, 3, 3.5, 4});
  expect_out(reference_of(q, k, v, {.window = {.left = {}, .right = 0}}), {0, 0.5, 1, 1.5, 2});
  expect_out(reference_of(q, k, v, {.window = {.left = 0, .right = {}}}), {2, 2.5, 3, 3.5, 4});
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  expect_out(reference_of(q, k, v, {.window = {.left = kMost, .right = kMost}}), {2, 2, 2, 2, 2});
}

TEST(Reference, AlibiGrowsWithAbsoluteDistance) {
  const Tensor slopes = tensor_of({1}, kF64, {std::log(2.0)});
  // At scale 0 a key at distance n weighs 2^-n, on both sides.
  const Results a = TwoByTwo().run({.scale = 0, .query_offset = 1, .alibi_slopes = slopes});
  expect_weights(a, {1.0 / 3, 2.0 / 3, 1.0 / 3, 2.0 / 3});
  const Results later = TwoByTwo().run({.scale = 0, .query_offset = -1, .alibi_slopes = slopes});
  expect_weights(later, {2.0 / 3, 1.0 / 3, 2.0 / 3, 1.0 / 3});
}

TEST(Reference, SlopesAndSinksPerBatchAndHead) {
  const Tensor q = tensor_of({2, 2, 1, 1}, kF64, {0});
  const Tensor k = tensor_of({2, 2, 2, 1}, kF64, {0});
  const Tensor v = tensor_of({2, 2, 2, 1}, kF64, {1, 0, 1, 0, 1, 0, 1, 0});
  const double ln2 = std::log(2.0);
  const Tensor slopes = tensor_of({2, 2}, kF64, {0, ln2, 2 * ln2, 3 * ln2});
  // Position 1: key 0 is at distance 1.
  expect_out(reference_of(q, k, v, {.alibi_slopes = slopes}), {1.0 / 2, 1.0 / 3, 1.0 / 5, 1.0 / 9});
  const Tensor sinks = tensor_of({2, 2}, kF64, {0, ln2, 2 * ln2, 3 * ln2});
  expect_out(reference_of(q, k, v, {.sinks = sinks}), {1.0 / 3, 1.0 / 4, 1.0 / 6, 1.0 / 10});
  const Tensor by_head = tensor_of({2}, kF64, {0, ln2});
  expect_out(reference_of(q, k, v, {.sinks = by_head}), {1.0 / 3, 1.0 / 4, 1.0 / 3, 1.0 / 4});
}

TEST(Reference, SinkTakesPartOfTheSumAndHasNoValue) {
  const Tensor sinks = tensor_of({1}, kF64, {std::log(4.0)});
  const Results a = TwoByTwo().run({.sinks = sinks});
  expect_weights(a, {1.0 / 8, 3.0 / 8, 1.0 / 14, 9.0 / 14});
  expect_out(a, {8.75, 190.0 / 14});
  expect_lse(a, {std::log(8.0), std::log(14.0)});
}

TEST(Reference, SinkOfAnEmptyRowIsItsLse) {
  const Tensor sinks = tensor_of({1}, kF64, {1.25});
  const Tensor mask = tensor_of({1}, Dtype::kBool, {0});
  const Results a = TwoByTwo().run({.mask = mask, .sinks = sinks});
  expect_lse(a, {1.25, 1.25});
  expect_out(a, {0, 0});
  expect_weights(a, {0});
}

TEST(Reference, SinkOfMinusInfinityIsNone) {
  const Tensor sinks = tensor_of({1}, kF64, {-kInf});
  const Results a = TwoByTwo().run({.sinks = sinks});
  expect_weights(a, {1.0 / 4, 3.0 / 4, 1.0 / 10, 9.0 / 10});
}

TEST(Reference, MinusInfinityInBiasHidesAndIsNotRead) {
  const Tensor bias = tensor_of({2, 2}, kF64, {0, -kInf, -kInf, -kInf});
  TwoByTwo two;
  two.k.as<double>()[1] = kNaN;
  two.v.as<double>()[1] = kNaN;
  const Results a = two.run({.bias = bias});
  expect_weights(a, {1, 0, 0, 0});
  expect_out(a, {10, 0});
  expect_lse(a, {0, -kInf});
}

TEST(Reference, HiddenKeysAreNeverRead) {
  TwoByTwo two;
  two.k.as<double>()[1] = kNaN;
  two.v.as<double>()[1] = kInf;
  const Tensor mask = tensor_of({1, 2}, Dtype::kBool, {1, 0});
  const Tensor lens = tensor_of({1}, Dtype::kInt32, {1});
  const Tensor bias = tensor_of({2}, kF64, {0, kNaN});
  for (const AttentionOptions& options :
       {AttentionOptions{.mask = mask}, AttentionOptions{.kv_lens = lens},
        AttentionOptions{.causal = true, .query_offset = -1}, AttentionOptions{.mask = mask, .bias = bias},
        AttentionOptions{.query_offset = -1, .window = {.left = {}, .right = 0}}}) {
    const Results a = two.run(options);
    EXPECT_EQ(a.out.as<double>()[1], 10);
    EXPECT_FALSE(std::isnan(a.out.as<double>()[0]));
  }
}

TEST(Reference, VisibleNanMakesItsRowNanAndNoOther) {
  TwoByTwo two;
  two.q.as<double>()[0] = kNaN;
  Results a = two.run();
  expect_out(a, {kNaN, 19});
  expect_weights(a, {kNaN, kNaN, 1.0 / 10, 9.0 / 10});
  expect_lse(a, {kNaN, std::log(10.0)});

  TwoByTwo value;
  value.v.as<double>()[1] = kNaN;
  a = value.run({.causal = true});
  expect_out(a, {10, kNaN});
  expect_weights(a, {1, 0, 1.0 / 10, 9.0 / 10});
}

TEST(Reference, InfinityFollowsTheFormula) {
  TwoByTwo up;
  up.k.as<double>()[1] = kInf;  // logits {0, inf}: inf - inf
  expect_weights(up.run(), {kNaN});
  TwoByTwo down;
  down.k.as<double>()[1] = -kInf;  // logits {0, -inf}: the key is seen, and weighs 0
  expect_weights(down.run(), {1, 0, 1, 0});
  TwoByTwo both;
  both.k.as<double>()[0] = -kInf;
  both.k.as<double>()[1] = -kInf;  // all -inf by arithmetic is not an empty row
  const Results a = both.run();
  expect_weights(a, {kNaN});
  expect_out(a, {kNaN});
  expect_lse(a, {kNaN, kNaN});
  TwoByTwo value;
  value.v.as<double>()[1] = kInf;
  expect_out(value.run(), {kInf, kInf});
}

TEST(Reference, QueryHeadsReadTheirGroupsKeys) {
  Tensor q({1, 4, 1, 1}, kF64);
  const Tensor k = tensor_of({1, 2, 1, 1}, kF64, {0});
  const Tensor v = tensor_of({1, 2, 1, 1}, kF64, {0, 1});
  expect_out(reference_of(q, k, v), {0, 0, 1, 1});
}

TEST(Reference, FewerAxesAreLedByOnes) {
  const TwoByTwo two;
  const auto q = view(two.q.as<double>(), {2, 1});
  const auto k = view(two.k.as<double>(), {2, 1});
  const auto v = view(two.v.as<double>(), {1, 2, 1});
  Tensor out({2, 1}, kF64);
  Tensor lse({2}, kF64);
  reference::attention(q, k, v, out, {}, {.lse = lse.view()});
  expect_numbers(out, {17.5, 19});
  expect_numbers(lse, {std::log(4.0), std::log(10.0)});
}

TEST(Reference, StorageInFloatIsRoundedOnce) {
  constexpr std::uint64_t kSeed = 31;
  SCOPED_TRACE(kSeed);
  support::Random random(kSeed);
  const Tensor q = random.normal_tensor({1, 2, 5, 7}, Dtype::kFloat32);
  const Tensor k = random.normal_tensor({1, 2, 6, 7}, Dtype::kFloat32);
  const Tensor v = random.normal_tensor({1, 2, 6, 3}, Dtype::kFloat32);
  Tensor wide[3] = {Tensor(q.shape(), kF64), Tensor(k.shape(), kF64), Tensor(v.shape(), kF64)};
  support::copy(q, wide[0]);
  support::copy(k, wide[1]);
  support::copy(v, wide[2]);
  const Results narrow = attend(reference::attention, q, k, v);
  const Results exact = reference_of(wide[0], wide[1], wide[2]);
  for (std::int64_t i = 0; i < narrow.out.num_elements(); ++i) {
    EXPECT_EQ(narrow.out.as<float>()[i], static_cast<float>(exact.out.as<double>()[i]));
  }
}

TEST(Reference, AnyStridesAndNoReadBetween) {
  constexpr std::uint64_t kSeed = 32;
  SCOPED_TRACE(kSeed);
  support::Random random(kSeed);
  const Tensor q = random.normal_tensor({2, 4, 3, 5}, kF64);
  const Tensor k = random.normal_tensor({2, 2, 6, 5}, kF64);
  const Tensor v = random.normal_tensor({2, 2, 6, 3}, kF64);
  const Tensor bias = random.normal_tensor({4, 1, 6}, kF64);
  const Tensor mask = random.bool_tensor({2, 1, 3, 6}, 0.7);
  const Results dense = reference_of(q, k, v, {.mask = mask, .bias = bias});
  for (const support::Layout layout : support::kAllLayouts) {
    SCOPED_TRACE(static_cast<int>(layout));
    support::Guarded parts[] = {{q.shape(), kF64, layout},
                                {k.shape(), kF64, layout},
                                {v.shape(), kF64, layout},
                                {bias.shape(), kF64, layout},
                                {mask.shape(), Dtype::kBool, layout}};
    const ConstTensorView from[] = {q, k, v, bias, mask};
    for (std::size_t i = 0; i < 5; ++i) support::copy(from[i], parts[i]);
    support::Guarded out(dense.out.shape(), kF64, layout);
    support::Guarded lse(dense.lse.shape(), kF64, layout);
    reference::attention(parts[0], parts[1], parts[2], out,
                         {.mask = ConstTensorView(parts[4]), .bias = ConstTensorView(parts[3])}, {.lse = lse.view()});
    EXPECT_TRUE(support::same_bits(out, dense.out.view()));
    EXPECT_TRUE(support::same_bits(lse, dense.lse.view()));
    EXPECT_TRUE(out.intact());
    EXPECT_TRUE(lse.intact());
  }
}

TEST(Reference, EmptyExtents) {
  const Tensor q({1, 1, 2, 3}, kF64);
  const Tensor k({1, 1, 0, 3}, kF64);
  const Tensor v({1, 1, 0, 2}, kF64);
  Results a = reference_of(q, k, v);
  expect_out(a, {0});
  expect_lse(a, {-kInf, -kInf});
  EXPECT_EQ(reference_of(Tensor({0, 1, 2, 3}, kF64), Tensor({0, 1, 4, 3}, kF64), Tensor({0, 1, 4, 2}, kF64))
                .out.num_elements(),
            0);
  a = reference_of(q, Tensor({1, 1, 4, 3}, kF64), Tensor({1, 1, 4, 0}, kF64));
  expect_lse(a, {std::log(4.0), std::log(4.0)});
}

}  // namespace
}  // namespace qkv
