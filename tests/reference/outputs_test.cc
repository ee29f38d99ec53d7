// Weights of chosen heads and rows, logits by stage and statistics of the reference, worked out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "reference/by_hand.h"
#include "support/random.h"

namespace qkv {
namespace {

/// One row, head_dim 1, scale 1: the raw logits are the keys themselves.
Results one_row(std::initializer_list<double> raw, const AttentionOptions& options = {},
                const support::Wanted& wanted = {}) {
  const auto n = static_cast<std::int64_t>(raw.size());
  const Tensor q = tensor_of({1, 1, 1, 1}, kF64, {1});
  const Tensor v = tensor_of({1, 1, n, 1}, kF64, {1});
  return attend(reference::attention, q, tensor_of({1, 1, n, 1}, kF64, raw), v, options, wanted);
}

TEST(ReferenceLogits, Stages) {
  const Tensor mask = tensor_of({3}, Dtype::kBool, {1, 1, 0});
  const Tensor bias = tensor_of({3}, kF64, {0.5, -kInf, 0.25});
  const AttentionOptions options{.scale = 2, .softcap = 3, .mask = mask, .bias = bias};
  const auto stage = [&](LogitsStage wanted) { return one_row({1, 2, -4}, options, {.stage = wanted}); };
  expect_numbers(stage(LogitsStage::kScaled).logits, {2, 4, -8});
  expect_numbers(stage(LogitsStage::kCapped).logits,
                 {3 * std::tanh(2.0 / 3), 3 * std::tanh(4.0 / 3), 3 * std::tanh(-8.0 / 3)});
  expect_numbers(stage(LogitsStage::kMasked).logits, {3 * std::tanh(2.0 / 3) + 0.5, -kInf, -kInf});
}

TEST(ReferenceLogits, EarlyStagesShowHiddenNan) {
  const Tensor mask = tensor_of({2}, Dtype::kBool, {1, 0});
  const AttentionOptions options{.mask = mask};
  expect_numbers(one_row({1, kNaN}, options, {.stage = LogitsStage::kScaled}).logits, {1, kNaN});
  const Results masked = one_row({1, kNaN}, options, {.stage = LogitsStage::kMasked});
  expect_numbers(masked.logits, {1, -kInf});
  expect_numbers(masked.out, {1});
}

TEST(ReferenceLogits, MaskedHasAlibi) {
  const Tensor slopes = tensor_of({1}, kF64, {0.5});
  expect_numbers(one_row({0, 1, 2}, {.query_offset = 1, .alibi_slopes = slopes}).logits, {-0.5, 1, 1.5});
}

TEST(ReferenceWeights, ChosenHeadsAndRowsInTheirOrder) {
  constexpr std::uint64_t kSeed = 33;
  SCOPED_TRACE(kSeed);
  support::Random random(kSeed);
  const Tensor q = random.normal_tensor({2, 3, 4, 2}, kF64);
  const Tensor k = random.normal_tensor({2, 3, 5, 2}, kF64);
  const Tensor v = random.normal_tensor({2, 3, 5, 2}, kF64);
  const Results all = attend(reference::attention, q, k, v);
  const std::vector<std::int64_t> heads{2, 0, 2};
  const std::vector<std::int64_t> rows{3, 1};
  Tensor chosen({2, 3, 2, 5}, kF64);
  Tensor out(all.out.shape(), kF64);
  reference::attention(q, k, v, out, {}, {.weights = Weights{.out = chosen, .heads = heads, .rows = rows}});
  support::for_each_index(chosen.shape(), [&](const Extents& at) {
    const Extents from{at[0], heads[static_cast<std::size_t>(at[1])], rows[static_cast<std::size_t>(at[2])], at[3]};
    EXPECT_EQ(support::read(chosen.view(), at), support::read(all.weights.view(), from)) << to_string(at);
  });
}

TEST(ReferenceStats, OfAPlainRow) {
  // Weights 1/8, 4/8, 1/8, 2/8.
  const double ln2 = std::log(2.0);
  const Results a = one_row({0, 2 * ln2, 0, ln2}, {}, {.stage = LogitsStage::kMasked, .keys = {3, 0}});
  expect_numbers(a.max_raw, {2 * ln2});
  expect_numbers(a.max_logit, {2 * ln2});
  expect_numbers(a.max_key, {1});
  expect_numbers(a.max_weight, {0.5});
  expect_numbers(a.entropy, {(1 * 3 + 4 * 1 + 1 * 3 + 2 * 2) / 8.0 * ln2});
  expect_numbers(a.key_weight, {3.0 / 8});
}

TEST(ReferenceStats, RawAndFinalMaximaDiffer) {
  const Tensor bias = tensor_of({3}, kF64, {4, 0, 0});
  const Results a = one_row({-1, 3, -8}, {.scale = -1, .bias = bias});
  expect_numbers(a.max_raw, {8});
  expect_numbers(a.max_logit, {8});
  expect_numbers(a.max_key, {2});
  const Tensor more = tensor_of({3}, kF64, {9, 0, 0});
  const Results b = one_row({-1, 3, -8}, {.scale = -1, .bias = more});
  expect_numbers(b.max_raw, {8});
  expect_numbers(b.max_logit, {10});
  expect_numbers(b.max_key, {0});
}

TEST(ReferenceStats, TiesGoToTheLowestVisibleKey) {
  const Tensor mask = tensor_of({4}, Dtype::kBool, {0, 1, 1, 1});
  const Results a = one_row({5, 1, 5, 5}, {.mask = mask});
  expect_numbers(a.max_key, {2});
  expect_numbers(a.max_raw, {5});
}

TEST(ReferenceStats, OfARowThatSeesNothing) {
  const Tensor mask = tensor_of({1}, Dtype::kBool, {0});
  const Tensor sinks = tensor_of({1}, kF64, {2});
  for (const AttentionOptions& options :
       {AttentionOptions{.mask = mask}, AttentionOptions{.mask = mask, .sinks = sinks}}) {
    const Results a = one_row({5, 1}, options, {.stage = LogitsStage::kMasked, .keys = {0}});
    expect_numbers(a.max_raw, {-kInf});
    expect_numbers(a.max_logit, {-kInf});
    expect_numbers(a.max_key, {-1});
    expect_numbers(a.max_weight, {0});
    expect_numbers(a.entropy, {0});
    expect_numbers(a.key_weight, {0});
  }
}

TEST(ReferenceStats, SinksAreNotKeys) {
  const Tensor sinks = tensor_of({1}, kF64, {7});
  const Results a = one_row({0, 0}, {.sinks = sinks}, {.stage = LogitsStage::kMasked, .keys = {0, 1}});
  const double w = 1 / (2 + std::exp(7.0));
  expect_numbers(a.max_logit, {0});
  expect_numbers(a.max_key, {0});
  expect_numbers(a.max_weight, {w});
  expect_numbers(a.entropy, {-2 * w * std::log(w)});
  expect_numbers(a.key_weight, {2 * w});
}

TEST(ReferenceStats, NanNamesItsKey) {
  const Tensor mask = tensor_of({4}, Dtype::kBool, {0, 1, 1, 1});
  const Results a = one_row({kNaN, 9, kNaN, kNaN}, {.mask = mask}, {.stage = LogitsStage::kMasked, .keys = {1}});
  expect_numbers(a.max_key, {2});
  expect_numbers(a.max_raw, {kNaN});
  expect_numbers(a.max_logit, {kNaN});
  expect_numbers(a.max_weight, {kNaN});
  expect_numbers(a.entropy, {kNaN});
  expect_numbers(a.key_weight, {kNaN});
  expect_numbers(a.lse, {kNaN});
}

TEST(ReferenceStats, OneHotRowHasNoEntropy) {
  const Results a = one_row({0, 2000});
  expect_numbers(a.entropy, {0});
  EXPECT_FALSE(std::signbit(a.entropy.as<double>()[0]));
  expect_numbers(a.max_weight, {1});
}

}  // namespace
}  // namespace qkv
