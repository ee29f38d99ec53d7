#include "qkv/merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "qkv/attention.h"
#include "qkv/error.h"
#include "support/compare.h"
#include "support/elements.h"
#include "support/guarded.h"
#include "support/random.h"

namespace qkv {
namespace {

using support::close;
using support::kInf;
using support::kNaN;
using support::tensor_of;
using support::Tolerance;

constexpr Dtype kF32 = Dtype::kFloat32;
constexpr Dtype kF64 = Dtype::kFloat64;
/// A few operations in double for each part.
constexpr Tolerance kFewRoundings{.coefficient = 16};
/// The same, of a number of size 1.
constexpr double kRoundings = 16 * std::numeric_limits<double>::epsilon();

/// A part of one row and one value.
struct One {
  Tensor out;
  Tensor lse;
  One(double value, double log_sum)
      : out(tensor_of({1, 1, 1, 1}, kF64, {value})), lse(tensor_of({1, 1, 1}, kF64, {log_sum})) {}
};

/// {out, lse}
std::pair<double, double> merged(const std::vector<One>& ones, std::optional<double> sink = {}) {
  std::vector<PartialAttention> parts;
  for (const One& one : ones) parts.push_back({.out = one.out, .lse = one.lse});
  Tensor out({1, 1, 1, 1}, kF64);
  Tensor lse({1, 1, 1}, kF64);
  const Tensor sinks = tensor_of({1}, kF64, {sink.value_or(0)});
  merge_states(parts, out, lse.view(), sink ? std::optional<ConstTensorView>(sinks) : std::nullopt);
  return {out.as<double>()[0], lse.as<double>()[0]};
}

TEST(Merge, WeighsPartsByTheirSums) {
  std::vector<One> ones;
  ones.emplace_back(10, std::log(1.0));
  ones.emplace_back(20, std::log(3.0));
  ones.emplace_back(50, std::log(4.0));
  const auto [out, lse] = merged(ones);
  EXPECT_NEAR(out, (10 + 60 + 200) / 8.0, 270.0 / 8 * kRoundings);
  EXPECT_NEAR(lse, std::log(8.0), kRoundings);
}

TEST(Merge, OnePartIsItself) {
  std::vector<One> ones;
  ones.emplace_back(0.1, 0.3);
  EXPECT_EQ(merged(ones), std::pair(0.1, 0.3));
}

TEST(Merge, EmptyPartsHaveNoSay) {
  std::vector<One> ones;
  ones.emplace_back(kNaN, -kInf);
  ones.emplace_back(0.1, 0.3);
  ones.emplace_back(kInf, -kInf);
  EXPECT_EQ(merged(ones), std::pair(0.1, 0.3));
}

TEST(Merge, EmptyStaysEmpty) {
  std::vector<One> ones;
  ones.emplace_back(0, -kInf);
  ones.emplace_back(0, -kInf);
  EXPECT_EQ(merged(ones), std::pair(0.0, -kInf));
}

TEST(Merge, NanPropagates) {
  std::vector<One> ones;
  ones.emplace_back(1, 0.3);
  ones.emplace_back(2, kNaN);
  const auto [out, lse] = merged(ones);
  EXPECT_TRUE(std::isnan(out));
  EXPECT_TRUE(std::isnan(lse));
  std::vector<One> value;
  value.emplace_back(kNaN, 0.3);
  value.emplace_back(2, 0.3);
  EXPECT_TRUE(std::isnan(merged(value).first));
  EXPECT_NEAR(merged(value).second, 0.3 + std::log(2.0), kRoundings);
}

TEST(Merge, FarApartSumsDoNotOverflow) {
  std::vector<One> ones;
  ones.emplace_back(1, -1e5);
  ones.emplace_back(2, 1e5);
  EXPECT_EQ(merged(ones), std::pair(2.0, 1e5));
  std::vector<One> farthest;
  farthest.emplace_back(1, -1.7e308);
  farthest.emplace_back(2, 1.7e308);
  EXPECT_EQ(merged(farthest), std::pair(2.0, 1.7e308));
  EXPECT_EQ(merged(farthest, -1.7e308), std::pair(2.0, 1.7e308));
}

TEST(Merge, SinkEntersOnceAtTheEnd) {
  std::vector<One> ones;
  ones.emplace_back(10, std::log(1.0));
  ones.emplace_back(20, std::log(3.0));
  const auto [out, lse] = merged(ones, std::log(4.0));
  EXPECT_NEAR(out, 70 / 8.0, 70.0 / 8 * kRoundings);
  EXPECT_NEAR(lse, std::log(8.0), kRoundings);
}

TEST(Merge, SinkOfAnEmptyRowIsItsLse) {
  std::vector<One> ones;
  ones.emplace_back(0, -kInf);
  EXPECT_EQ(merged(ones, 1.5), std::pair(0.0, 1.5));
  EXPECT_EQ(merged(ones, -kInf), std::pair(0.0, -kInf));
}

/// Attention over all keys, against the merge of attention over pieces of them. Every operand of its own layout.
void expect_whole(Dtype dtype, const std::vector<std::int64_t>& cuts, bool with_sinks, const Tolerance& tolerance) {
  constexpr std::uint64_t kSeed = 40;
  SCOPED_TRACE(kSeed);
  support::Random random(kSeed);
  const std::int64_t kv_len = cuts.back();
  const Tensor q = random.normal_tensor({2, 4, 3, 8}, dtype);
  const Tensor k = random.normal_tensor({2, 2, kv_len, 8}, dtype);
  const Tensor v = random.normal_tensor({2, 2, kv_len, 5}, dtype);
  const Tensor sinks = random.normal_tensor({2, 4}, dtype);
  AttentionOptions options;
  if (with_sinks) options.sinks = sinks;
  Tensor whole({2, 4, 3, 5}, dtype);
  Tensor whole_lse({2, 4, 3}, dtype);
  reference::attention(q, k, v, whole, options, {.lse = whole_lse.view()});

  std::vector<std::unique_ptr<support::Guarded>> memory;
  std::vector<PartialAttention> parts;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    memory.push_back(std::make_unique<support::Guarded>(whole.shape(), dtype, support::kAllLayouts[i % 5]));
    const TensorView out = *memory.back();
    memory.push_back(std::make_unique<support::Guarded>(whole_lse.shape(), dtype, support::kAllLayouts[(i + 1) % 5]));
    const TensorView lse = *memory.back();
    reference::attention(q, k.view().slice(2, cuts[i], cuts[i + 1]), v.view().slice(2, cuts[i], cuts[i + 1]), out, {},
                         {.lse = lse});
    parts.push_back({.out = out, .lse = lse});
  }
  support::Guarded out(whole.shape(), dtype, support::Layout::kStrided);
  support::Guarded lse(whole_lse.shape(), dtype, support::Layout::kReversed);
  merge_states(parts, out, lse.view(), options.sinks);
  EXPECT_TRUE(close(out, whole.view(), tolerance));
  EXPECT_TRUE(close(lse, whole_lse.view(), tolerance));
  EXPECT_TRUE(out.intact());
  EXPECT_TRUE(lse.intact());
}

TEST(Merge, PiecesMakeTheWhole) {
  for (const Dtype dtype : {kF32, kF64}) {
    for (const bool with_sinks : {false, true}) {
      expect_whole(dtype, {0, 4, 9}, with_sinks, kFewRoundings);
      expect_whole(dtype, {0, 1, 1, 7, 9}, with_sinks, kFewRoundings);
    }
  }
}

/// Two parts that are right; tests spoil one thing.
struct Right {
  std::vector<Tensor> outs;
  std::vector<Tensor> lses;
  Tensor out{{2, 3, 4, 5}, kF32};
  std::optional<TensorView> lse;
  std::optional<ConstTensorView> sinks;

  Right() {
    for (int i = 0; i < 2; ++i) {
      outs.emplace_back(Extents{2, 3, 4, 5}, kF32);
      lses.emplace_back(Extents{2, 3, 4}, kF32);
    }
  }
  void merge(const std::optional<TensorView>& into = {}) {
    std::vector<PartialAttention> parts;
    for (std::size_t i = 0; i < outs.size(); ++i) parts.push_back({.out = outs[i].view(), .lse = lses[i].view()});
    merge_states(parts, into.value_or(out.view()), lse, sinks);
  }
};

template <class Exception>
void expect_refused(const std::function<void()>& call, const std::string& part) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown, expected: " << part;
  } catch (const Exception& error) {
    EXPECT_THAT(error.what(), ::testing::StartsWith("qkv::merge_states: " + part));
  }
}

TEST(MergeRefuses, NoParts) {
  Right right;
  expect_refused<ValueError>([&] { merge_states({}, right.out); }, "parts: expected at least one");
}

TEST(MergeRefuses, PartsThatDiffer) {
  Right shape;
  shape.outs[1] = Tensor({2, 3, 4, 6}, kF32);
  expect_refused<ShapeError>([&] { shape.merge(); },
                             "parts[1].out: expected [2, 3, 4, 5] as in parts[0], got [2, 3, 4, 6]");
  Right dtype;
  dtype.outs[1] = Tensor({2, 3, 4, 5}, kF64);
  expect_refused<DtypeError>([&] { dtype.merge(); }, "parts[1].out: expected float32 as in parts[0], got float64");
  Right lse;
  lse.lses[1] = Tensor({2, 3, 5}, kF32);
  expect_refused<ShapeError>([&] { lse.merge(); },
                             "parts[1].lse: expected [batch, num_heads, q_len] = [2, 3, 4], got [2, 3, 5]");
  Right wide;
  wide.lses[0] = Tensor({2, 3, 4}, kF64);
  expect_refused<DtypeError>([&] { wide.merge(); }, "parts[0].lse: expected float32, got float64");
  Right integers;
  integers.outs[0] = Tensor({2, 3, 4, 5}, Dtype::kInt32);
  expect_refused<DtypeError>([&] { integers.merge(); }, "parts[0].out: expected float32, float64, float16 or bfloat16");
}

TEST(Merge, HalfPrecisionIsRoundedOnceAtTheEnd) {
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBFloat16}) {
    SCOPED_TRACE(name_of(dtype));
    support::Random random(7);
    std::vector<Tensor> halves, wides, lses, wide_lses;
    std::vector<PartialAttention> parts, wide_parts;
    for (int i = 0; i < 3; ++i) {
      halves.push_back(random.normal_tensor({2, 3, 4, 5}, dtype));
      lses.push_back(random.normal_tensor({2, 3, 4}, kF32));
      wides.emplace_back(halves.back().shape(), kF64);
      wide_lses.emplace_back(lses.back().shape(), kF64);
      support::copy(halves.back(), wides.back());
      support::copy(lses.back(), wide_lses.back());
    }
    for (std::size_t i = 0; i < halves.size(); ++i) {
      parts.push_back({.out = halves[i], .lse = lses[i]});
      wide_parts.push_back({.out = wides[i], .lse = wide_lses[i]});
    }
    const Tensor sinks = random.normal_tensor({3}, kF32);
    Tensor wide_sinks({3}, kF64);
    support::copy(sinks, wide_sinks);
    Tensor out({2, 3, 4, 5}, dtype), expected({2, 3, 4, 5}, dtype), wide({2, 3, 4, 5}, kF64);
    Tensor lse({2, 3, 4}, kF32);
    merge_states(parts, out, lse.view(), sinks);
    merge_states(wide_parts, wide, {}, wide_sinks);
    support::copy(wide, expected);
    EXPECT_TRUE(support::same_bits(out, expected));
  }
}

TEST(MergeRefuses, WrongResults) {
  Right right;
  Tensor shape({2, 3, 4, 4}, kF32);
  expect_refused<ShapeError>([&] { right.merge(shape.view()); },
                             "out: expected [batch, num_heads, q_len, value_dim] = [2, 3, 4, 5]");
  Tensor dtype({2, 3, 4, 5}, kF64);
  expect_refused<DtypeError>([&] { right.merge(dtype.view()); }, "out: expected float32, got float64");
  expect_refused<ValueError>([&] { right.merge(right.outs[1].view()); },
                             "out: [2, 3, 4, 5] shares memory with parts[1].out");
  Tensor short_lse({2, 3}, kF32);
  right.lse = short_lse.view();
  expect_refused<ShapeError>([&] { right.merge(); }, "lse: expected [batch, num_heads, q_len] = [2, 3, 4], got [2, 3]");
}

TEST(MergeRefuses, WrongSinks) {
  Right right;
  const Tensor shape({2}, kF32);
  right.sinks = shape;
  expect_refused<ShapeError>([&] { right.merge(); },
                             "sinks: expected [num_heads] = [3] or [batch, num_heads] = [2, 3], got [2]");
  const Tensor dtype({3}, kF64);
  right.sinks = dtype;
  expect_refused<DtypeError>([&] { right.merge(); }, "sinks: expected float32, got float64");
}

}  // namespace
}  // namespace qkv
