// Alignment, windows, ALiBi distances and head groups: who sees what, by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "qkv/error.h"
#include "support/on_target.h"

namespace qkv::support {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kFarthest = std::int64_t{1} << 60;

class Positions : public OnTarget {
 protected:
  /// q = k = 0, so that every visible key has the same weight.
  Attended visible_of(std::int64_t rows, std::int64_t keys, const AttentionOptions& options) const {
    return run(Tensor({1, 1, rows, 2}, dtype()), Tensor({1, 1, keys, 2}, dtype()), Tensor({1, 1, keys, 2}, dtype()),
               options);
  }
  /// The row sees keys [begin, end) and no other.
  static void expect_sees(const Attended& a, std::int64_t row, std::int64_t begin, std::int64_t end) {
    const ConstTensorView weights = a.weights;
    for (std::int64_t j = 0; j < weights.extent(3); ++j) {
      const bool sees = j >= begin && j < end;
      EXPECT_EQ(read(weights, {0, 0, row, j}) > 0, sees) << "row " << row << " key " << j;
    }
  }
};

TEST_P(Positions, OneQueryTopLeftOrBottomRight) {
  const Tensor q = normal({1, 1, 1, 4});
  const Tensor k = normal({1, 1, 16, 4});
  const Tensor v = normal({1, 1, 16, 4});
  const Attended top_left = run(q, k, v, {.causal = true, .query_offset = 0});
  EXPECT_TRUE(close(top_left.out, v.view().slice(2, 0, 1), {4}));
  expect_same_bits(run(q, k, v, {.causal = true}), run(q, k, v));
}

TEST_P(Positions, PastThreeAndNewFourIsOffsetThree) {
  const Attended a = visible_of(4, 7, {.causal = true, .query_offset = 3});
  for (std::int64_t i = 0; i < 4; ++i) expect_sees(a, i, 0, i + 4);
  expect_same_bits(visible_of(4, 7, {.causal = true}), a);
}

TEST_P(Positions, WindowKeepsItsEnds) {
  const Attended four = visible_of(8, 8, {.causal = true, .window = {.left = 3}});
  for (std::int64_t i = 0; i < 8; ++i) {
    expect_sees(four, i, std::max<std::int64_t>(0, i - 3), i + 1);
    EXPECT_NEAR(read(four.max_weight, {0, 0, i}), 1.0 / static_cast<double>(std::min<std::int64_t>(i + 1, 4)),
                epsilon());
  }
  const Attended self = visible_of(8, 8, {.window = {.left = 0, .right = 0}});
  for (std::int64_t i = 0; i < 8; ++i) expect_sees(self, i, i, i + 1);
  const Attended ahead = visible_of(8, 8, {.window = {.left = {}, .right = 2}});
  for (std::int64_t i = 0; i < 8; ++i) expect_sees(ahead, i, 0, std::min<std::int64_t>(8, i + 3));
  const Attended both = visible_of(8, 8, {.window = {.left = 1, .right = 2}});
  for (std::int64_t i = 0; i < 8; ++i)
    expect_sees(both, i, std::max<std::int64_t>(0, i - 1), std::min<std::int64_t>(8, i + 3));
}

TEST_P(Positions, WindowEndsAcrossWordsAndBlocks) {
  for (const std::int64_t left : {1, 62, 63, 64, 65, 127, 128, 511, 512}) {
    SCOPED_TRACE(left);
    const Attended a = visible_of(3, 700, {.causal = true, .window = {.left = left}});
    for (std::int64_t i = 0; i < 3; ++i) expect_sees(a, i, 697 + i - left, 698 + i);
  }
}

TEST_P(Positions, AWindowLargerThanEverythingIsNone) {
  const Tensor q = normal({1, 1, 5, 4});
  const Tensor k = normal({1, 1, 90, 4});
  const Tensor v = normal({1, 1, 90, 4});
  const Attended none = run(q, k, v);
  for (const std::int64_t size : {std::int64_t{90}, std::int64_t{1} << 40, kMost}) {
    expect_same_bits(run(q, k, v, {.window = {.left = size, .right = size}}), none);
  }
}

TEST_P(Positions, OffsetsFarOutside) {
  for (const std::int64_t far : {std::int64_t{1000}, std::int64_t{1} << 32, kFarthest - 5}) {
    SCOPED_TRACE(far);
    const Attended after = visible_of(3, 70, {.causal = true, .query_offset = far});
    for (std::int64_t i = 0; i < 3; ++i) expect_sees(after, i, 0, 70);
    const Attended before = visible_of(3, 70, {.causal = true, .query_offset = -far});
    for (std::int64_t i = 0; i < 3; ++i) expect_empty_row(before, {0, 0, i});
    const Attended past = visible_of(3, 70, {.query_offset = far, .window = {.left = 20}});
    for (std::int64_t i = 0; i < 3; ++i) expect_empty_row(past, {0, 0, i});
    const Attended reaching = visible_of(3, 70, {.query_offset = -far, .window = {.left = {}, .right = far + 5}});
    for (std::int64_t i = 0; i < 3; ++i) expect_sees(reaching, i, 0, i + 6);
    const Attended unbounded = visible_of(3, 70, {.query_offset = far, .window = {.left = kMost, .right = kMost}});
    for (std::int64_t i = 0; i < 3; ++i) expect_sees(unbounded, i, 0, 70);
  }
}

TEST_P(Positions, OffsetsBeyondWhatPositionsCanBeAreRefused) {
  for (const std::int64_t offset : {kMost, std::numeric_limits<std::int64_t>::min(), kFarthest + 1, -kFarthest - 1}) {
    EXPECT_THROW(visible_of(2, 2, {.causal = true, .query_offset = offset}), ValueError) << offset;
  }
  EXPECT_NO_THROW(visible_of(2, 2, {.causal = true, .query_offset = kFarthest}));
  EXPECT_NO_THROW(visible_of(2, 2, {.causal = true, .query_offset = -kFarthest}));
}

TEST_P(Positions, OneOffsetPerBatch) {
  const Tensor x({3, 1, 2, 2}, dtype());
  const Tensor k({3, 1, 6, 2}, dtype());
  const Tensor offsets = tensor_of({3}, Dtype::kInt64, {-1, 0, 4});
  const Attended a = run(x, k, k, {.causal = true, .query_offset = QueryOffset(offsets.view())});
  const std::int64_t seen[3][2] = {{0, 1}, {1, 2}, {5, 6}};
  for_each_index({3, 2}, [&](const Extents& at) {
    const double count = static_cast<double>(seen[at[0]][at[1]]);
    EXPECT_NEAR(read(a.max_weight, {at[0], 0, at[1]}), count == 0 ? 0 : 1 / count, epsilon()) << to_string(at);
    EXPECT_EQ(read(a.lse, {at[0], 0, at[1]}) == -kInf, count == 0);
  });
}

TEST_P(Positions, TheDefaultOffsetCountsFilledKeys) {
  const Tensor q({2, 1, 2, 2}, dtype());
  const Tensor k({2, 1, 9, 2}, dtype());
  const Tensor lengths = tensor_of({2}, Dtype::kInt32, {4, 1});
  const Attended a = run(q, k, k, {.causal = true, .kv_lens = lengths.view()});
  EXPECT_NEAR(read(a.max_weight, {0, 0, 0}), 1.0 / 3, epsilon()) << "position 2 of 4";
  EXPECT_NEAR(read(a.max_weight, {0, 0, 1}), 1.0 / 4, epsilon());
  EXPECT_EQ(read(a.max_key, {1, 0, 0}), -1) << "position -1";
  EXPECT_EQ(read(a.max_weight, {1, 0, 1}), 1);
}

TEST_P(Positions, AlibiDistancesAreAbsolute) {
  const Tensor q({1, 3, 8, 4}, dtype());
  const Tensor k({1, 3, 20, 4}, dtype());
  const Tensor slopes = tensor({3}, {0.0625, 0.00390625, 0.25});
  const Attended a = run(q, k, k, {.alibi_slopes = slopes.view()});
  for_each_index(a.logits.shape(), [&](const Extents& at) {
    const auto distance = static_cast<double>(std::abs(12 + at[2] - at[3]));
    ASSERT_EQ(read(a.logits, at), -read(slopes, {at[1]}) * distance) << to_string(at);
  });
  const Attended shifted = run(q, k, k, {.query_offset = -3, .alibi_slopes = slopes.view()});
  for_each_index(a.logits.shape(), [&](const Extents& at) {
    const auto distance = static_cast<double>(std::abs(-3 + at[2] - at[3]));
    ASSERT_EQ(read(shifted.logits, at), -read(slopes, {at[1]}) * distance) << to_string(at);
  });
}

TEST_P(Positions, AlibiSlopesPerBatchAndNegativeOnes) {
  const Tensor q({2, 2, 3, 4}, dtype());
  const Tensor k({2, 2, 5, 4}, dtype());
  const Tensor slopes = tensor({2, 2}, {0.5, -0.25, 0, 2});
  const Attended a = run(q, k, k, {.causal = true, .alibi_slopes = slopes.view()});
  for_each_index(a.logits.shape(), [&](const Extents& at) {
    const std::int64_t back = 2 + at[2] - at[3];
    const double expected = back < 0 ? -kInf : -read(slopes, {at[0], at[1]}) * static_cast<double>(back);
    ASSERT_EQ(read(a.logits, at), expected) << to_string(at);
  });
}

TEST_P(Positions, QueryHeadsShareTheirKvHeadInOrder) {
  const Tensor q = normal({1, 4, 2, 8});
  const Tensor k = normal({1, 2, 5, 8});
  Tensor v({1, 2, 5, 3}, dtype());
  for_each_index(v.shape(), [&](const Extents& at) { write(v, at, static_cast<double>(at[1])); });
  const Attended a = run(q, k, v);
  for (std::int64_t h = 0; h < 4; ++h) EXPECT_NEAR(read(a.out, {0, h, 1, 2}), h < 2 ? 0 : 1, 4 * epsilon()) << h;
}

TEST_P(Positions, GroupsAreRepeatedHeadsBitForBit) {
  for (const std::int64_t group : {2, 3, 7}) {
    const Tensor q = normal({2, 2 * group, 5, 12});
    const Tensor k = normal({2, 2, 70, 12});
    const Tensor v = normal({2, 2, 70, 10});
    const auto repeated = [&](const Tensor& heads) {
      Tensor all({2, 2 * group, heads.shape()[2], heads.shape()[3]}, dtype());
      for_each_index(all.shape(),
                     [&](const Extents& at) { write(all, at, read(heads, {at[0], at[1] / group, at[2], at[3]})); });
      return all;
    };
    const AttentionOptions options{.causal = true, .window = {.left = 66}};
    expect_same_bits(run(q, k, v, options), run(q, repeated(k), repeated(v), options));
  }
}

TEST_P(Positions, HeadCountsThatDoNotDivideAreRefused) {
  const auto heads = [&](std::int64_t query, std::int64_t kv) {
    const Tensor q({1, query, 2, 4}, dtype());
    const Tensor k({1, kv, 2, 4}, dtype());
    Tensor out({1, query, 2, 4}, dtype());
    attention(q, k, k, out);
  };
  EXPECT_NO_THROW(heads(6, 3));
  EXPECT_THROW(heads(6, 4), ShapeError);
  EXPECT_THROW(heads(4, 6), ShapeError);
  EXPECT_THROW(heads(0, 4), ShapeError);
  EXPECT_THROW(heads(4, 0), ShapeError);
}

INSTANTIATE_TEST_SUITE_P(On, Positions, ::testing::ValuesIn(every_setting()), setting_name);

}  // namespace
}  // namespace qkv::support
