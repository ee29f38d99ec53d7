// Alignment, windows, ALiBi distances and head groups: who sees what, by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "qkv/error.h"
#include "support/on_target.h"

namespace qkv::support {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kFarthest = std::int64_t{1} << 60;

class Positions : public OnTarget {
 protected:
  /// q = k = 0, so that every visible key has the same weight.
  Results visible_of(std::int64_t rows, std::int64_t keys, const AttentionOptions& options) const {
    return run(Tensor({1, 1, rows, 2}, dtype()), Tensor({1, 1, keys, 2}, dtype()), Tensor({1, 1, keys, 2}, dtype()),
               options);
  }
  /// The row sees keys [begin, end) and no other.
  static void expect_sees(const Results& a, std::int64_t row, std::int64_t begin, std::int64_t end) {
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
  const Results top_left = run(q, k, v, {.causal = true, .query_offset = 0});
  EXPECT_TRUE(close(top_left.out, v.view().slice(2, 0, 1), {kFewSteps}));
  expect_same_bits(run(q, k, v, {.causal = true}), run(q, k, v));
}

TEST_P(Positions, PastThreeAndNewFourIsOffsetThree) {
  const Results a = visible_of(4, 7, {.causal = true, .query_offset = 3});
  for (std::int64_t i = 0; i < 4; ++i) expect_sees(a, i, 0, i + 4);
  expect_same_bits(visible_of(4, 7, {.causal = true}), a);
}

TEST_P(Positions, WindowKeepsItsEnds) {
  const Results four = visible_of(8, 8, {.causal = true, .window = {.left = 3}});
  for (std::int64_t i = 0; i < 8; ++i) {
    expect_sees(four, i, std::max<std::int64_t>(0, i - 3), i + 1);
    EXPECT_NEAR(read(four.max_weight, {0, 0, i}), 1.0 / static_cast<double>(std::min<std::int64_t>(i + 1, 4)),
                kOneStep * epsilon());
  }
  for (const AttentionOptions& self :
       {AttentionOptions{.causal = true, .window = {.left = 0}}, AttentionOptions{.window = {.left = 0, .right = 0}}}) {
    const Results a = visible_of(8, 8, self);
    for (std::int64_t i = 0; i < 8; ++i) expect_sees(a, i, i, i + 1);
  }
  const Results ahead = visible_of(8, 8, {.window = {.left = {}, .right = 2}});
  for (std::int64_t i = 0; i < 8; ++i) expect_sees(ahead, i, 0, std::min<std::int64_t>(8, i + 3));
  const Results both = visible_of(8, 8, {.window = {.left = 1, .right = 2}});
  for (std::int64_t i = 0; i < 8; ++i)
    expect_sees(both, i, std::max<std::int64_t>(0, i - 1), std::min<std::int64_t>(8, i + 3));
}

TEST_P(Positions, WindowEndsAcrossWordsAndBlocks) {
  for (const std::int64_t left : {1, 62, 63, 64, 65, 127, 128, 511, 512}) {
    SCOPED_TRACE(left);
    const Results a = visible_of(3, 700, {.causal = true, .window = {.left = left}});
    for (std::int64_t i = 0; i < 3; ++i) expect_sees(a, i, 697 + i - left, 698 + i);
  }
}

TEST_P(Positions, AWindowLargerThanEverythingIsNone) {
  const Tensor q = normal({1, 1, 5, 4});
  const Tensor k = normal({1, 1, 90, 4});
  const Tensor v = normal({1, 1, 90, 4});
  const Results none = run(q, k, v);
  for (const std::int64_t size : {std::int64_t{90}, std::int64_t{1} << 40, kMost}) {
    expect_same_bits(run(q, k, v, {.window = {.left = size, .right = size}}), none);
  }
}

TEST_P(Positions, OffsetsFarOutside) {
  for (const std::int64_t far : {std::int64_t{1000}, std::int64_t{1} << 32, kFarthest - 5}) {
    SCOPED_TRACE(far);
    const Results after = visible_of(3, 70, {.causal = true, .query_offset = far});
    for (std::int64_t i = 0; i < 3; ++i) expect_sees(after, i, 0, 70);
    const Results before = visible_of(3, 70, {.causal = true, .query_offset = -far});
    for (std::int64_t i = 0; i < 3; ++i) expect_empty_row(before, {0, 0, i});
    const Results past = visible_of(3, 70, {.query_offset = far, .window = {.left = 20}});
    for (std::int64_t i = 0; i < 3; ++i) expect_empty_row(past, {0, 0, i});
    const Results reaching = visible_of(3, 70, {.query_offset = -far, .window = {.left = {}, .right = far + 5}});
    for (std::int64_t i = 0; i < 3; ++i) expect_sees(reaching, i, 0, i + 6);
    const Results unbounded = visible_of(3, 70, {.query_offset = far, .window = {.left = kMost, .right = kMost}});
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
  const Results a = run(x, k, k, {.causal = true, .query_offset = QueryOffset(offsets.view())});
  const std::int64_t seen[3][2] = {{0, 1}, {1, 2}, {5, 6}};
  for_each_index({3, 2}, [&](const Extents& at) {
    const double count = static_cast<double>(seen[at[0]][at[1]]);
    EXPECT_NEAR(read(a.max_weight, {at[0], 0, at[1]}), count == 0 ? 0 : 1 / count, kOneStep * epsilon())
        << to_string(at);
    EXPECT_EQ(read(a.lse, {at[0], 0, at[1]}) == -kInf, count == 0);
  });
}

TEST_P(Positions, TheDefaultOffsetCountsFilledKeys) {
  const Tensor q({2, 1, 2, 2}, dtype());
  const Tensor k({2, 1, 9, 2}, dtype());
  const Tensor lengths = tensor_of({2}, Dtype::kInt32, {4, 1});
  const Results a = run(q, k, k, {.causal = true, .kv_lens = lengths.view()});
  EXPECT_NEAR(read(a.max_weight, {0, 0, 0}), 1.0 / 3, kOneStep * epsilon()) << "position 2 of 4";
  EXPECT_NEAR(read(a.max_weight, {0, 0, 1}), 1.0 / 4, kOneStep * epsilon());
  EXPECT_EQ(read(a.max_key, {1, 0, 0}), -1) << "position -1";
  EXPECT_EQ(read(a.max_weight, {1, 0, 1}), 1);
}

TEST_P(Positions, KeptKeysAreHiddenByPositionNotBySlot) {
  // Of 8 keys 2 to 5 were evicted; the queries are at 6 and 7. By slots, 0 to 3, a window of 4 would hide none.
  const Tensor evicted = tensor_of({8}, Dtype::kBool, {1, 1, 0, 0, 0, 0, 1, 1});
  const AttentionOptions kept{.causal = true, .query_offset = 6, .mask = evicted.view()};
  AttentionOptions windowed = kept;
  windowed.window.left = 3;
  const auto expect_shares = [&](const AttentionOptions& options, const double(&shares)[2][8]) {
    const Results a = visible_of(2, 8, options);
    for_each_index({2, 8}, [&](const Extents& at) {
      const double share = shares[at[0]][at[1]];
      EXPECT_NEAR(read(a.weights, {0, 0, at[0], at[1]}), share, kOneStep * epsilon() * share) << to_string(at);
    });
  };
  constexpr double kThird = 1.0 / 3;
  expect_shares(kept, {{kThird, kThird, 0, 0, 0, 0, kThird, 0}, {0.25, 0.25, 0, 0, 0, 0, 0.25, 0.25}});
  expect_shares(windowed, {{0, 0, 0, 0, 0, 0, 1, 0}, {0, 0, 0, 0, 0, 0, 0.5, 0.5}});
  // The same numbers as with the kept keys alone and a mask by hand.
  const Tensor q = normal({1, 1, 2, 4});
  const Tensor k = normal({1, 1, 8, 4});
  const Tensor v = normal({1, 1, 8, 4});
  Tensor few_k({1, 1, 4, 4}, dtype());
  Tensor few_v({1, 1, 4, 4}, dtype());
  for_each_index({4, 4}, [&](const Extents& at) {
    const std::int64_t from = at[0] < 2 ? at[0] : at[0] + 4;
    write(few_k, {0, 0, at[0], at[1]}, read(k, {0, 0, from, at[1]}));
    write(few_v, {0, 0, at[0], at[1]}, read(v, {0, 0, from, at[1]}));
  });
  const Tensor by_hand = tensor_of({2, 4}, Dtype::kBool, {1, 1, 1, 0, 1, 1, 1, 1});
  const Results expected = run(q, few_k, few_v, {.mask = by_hand.view()});
  const Results actual = run(q, k, v, kept);
  EXPECT_TRUE(close(actual.out, expected.out, kOutTolerance));
  EXPECT_TRUE(close(actual.lse, expected.lse, kRowTolerance));
}

TEST_P(Positions, LeftPaddingAgreesWithEachSequenceAlone) {
  // Each sequence ends at the last key; keys and rows before it are padding, which may hold anything.
  constexpr std::int64_t kLen = 90;
  const std::int64_t lengths[] = {90, 1, 20, 70};
  const Tensor q = normal({4, 2, kLen, 8});
  Tensor k = normal({4, 2, kLen, 8});
  Tensor v = normal({4, 2, kLen, 8});
  Tensor mask({4, 1, 1, kLen}, Dtype::kBool);
  for_each_index(mask.shape(), [&](const Extents& at) { write(mask, at, at[3] >= kLen - lengths[at[0]] ? 1 : 0); });
  for_each_index(k.shape(), [&](const Extents& at) {
    if (at[2] >= kLen - lengths[at[0]]) return;
    write(k, at, kNaN);
    write(v, at, kNaN);
  });
  const Results padded = run(q, k, v, {.causal = true, .mask = mask.view()});
  for (std::int64_t b = 0; b < 4; ++b) {
    SCOPED_TRACE(b);
    const std::int64_t first = kLen - lengths[b];
    for (std::int64_t i = 0; i < first; ++i) expect_empty_row(padded, {b, 1, i});
    const auto part = [&](const Tensor& tensor) { return tensor.view().slice(0, b, b + 1).slice(2, first, kLen); };
    const Results alone = run(part(std::as_const(q)), part(std::as_const(k)), part(std::as_const(v)), {.causal = true});
    NamedViews same = sliced(sliced(padded.views(), 0, b, b + 1), 2, first, kLen);
    same = sliced(same, 3, first, kLen);
    expect_close(same, alone.views());
  }
}

TEST_P(Positions, AlibiOfThePapersSlopes) {
  // Of 8 heads 2^-1 to 2^-8; of 3, both of 2 heads and then the first of 4.
  const double of_three[] = {0.0625, 0.00390625, 0.25};
  for (const std::int64_t heads : {3, 8}) {
    SCOPED_TRACE(heads);
    Tensor slopes({heads}, dtype());
    for (std::int64_t h = 0; h < heads; ++h) {
      write(slopes, {h}, heads == 3 ? of_three[h] : std::ldexp(1, static_cast<int>(-1 - h)));
    }
    const Tensor q({1, heads, 8, 4}, dtype());
    const Tensor k({1, heads, 20, 4}, dtype());
    const Results a = run(q, k, k, {.causal = true, .alibi_slopes = slopes.view()});
    for_each_index({heads, 8}, [&](const Extents& at) {
      // Weights of a row are a geometric series in the distance back from its own key.
      const double ratio = std::exp(-read(slopes, {at[0]}));
      const auto seen = static_cast<double>(13 + at[1]);
      const double sum = (1 - std::pow(ratio, seen)) / (1 - ratio);
      EXPECT_NEAR(read(a.max_weight, {0, at[0], at[1]}), 1 / sum, kSum * epsilon()) << to_string(at);
      EXPECT_EQ(read(a.max_key, {0, at[0], at[1]}), 12 + at[1]);
      EXPECT_NEAR(read(a.weights, {0, at[0], at[1], 0}), std::pow(ratio, seen - 1) / sum, kSum * epsilon());
      EXPECT_NEAR(read(a.lse, {0, at[0], at[1]}), std::log(sum), kSum * epsilon());
    });
  }
}

TEST_P(Positions, AlibiDistancesAreAbsolute) {
  const Tensor q({1, 3, 8, 4}, dtype());
  const Tensor k({1, 3, 20, 4}, dtype());
  const Tensor slopes = tensor({3}, {0.0625, 0.00390625, 0.25});
  const Results a = run(q, k, k, {.alibi_slopes = slopes.view()});
  for_each_index(a.logits.shape(), [&](const Extents& at) {
    const auto distance = static_cast<double>(std::abs(12 + at[2] - at[3]));
    ASSERT_EQ(read(a.logits, at), -read(slopes, {at[1]}) * distance) << to_string(at);
  });
  const Results shifted = run(q, k, k, {.query_offset = -3, .alibi_slopes = slopes.view()});
  for_each_index(a.logits.shape(), [&](const Extents& at) {
    const auto distance = static_cast<double>(std::abs(-3 + at[2] - at[3]));
    ASSERT_EQ(read(shifted.logits, at), -read(slopes, {at[1]}) * distance) << to_string(at);
  });
}

TEST_P(Positions, AlibiSlopesPerBatchAndNegativeOnes) {
  const Tensor q({2, 2, 3, 4}, dtype());
  const Tensor k({2, 2, 5, 4}, dtype());
  const Tensor slopes = tensor({2, 2}, {0.5, -0.25, 0, 2});
  const Results a = run(q, k, k, {.causal = true, .alibi_slopes = slopes.view()});
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
  const Results a = run(q, k, v);
  for (std::int64_t h = 0; h < 4; ++h)
    EXPECT_NEAR(read(a.out, {0, h, 1, 2}), h < 2 ? 0 : 1, kFewSteps * epsilon()) << h;
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
