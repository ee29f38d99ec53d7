// NaN and infinity where a row sees them and where it does not: in every operand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "support/on_target.h"

namespace qkv::support {
namespace {

class NonFinite : public OnTarget {
 protected:
  // Long enough for several vectors, words and groups of rows, with a rest in each.
  static constexpr std::int64_t kRows = 9;
  static constexpr std::int64_t kKeys = 77;
  static constexpr std::int64_t kDim = 12;

  Tensor q_ = normal({1, 2, kRows, kDim});
  Tensor k_ = normal({1, 2, kKeys, kDim});
  Tensor v_ = normal({1, 2, kKeys, kDim});
  // Hides key 70 from rows 0..3 and everything from row 8.
  Tensor mask_ = [] {
    Tensor mask = tensor_of({kRows, kKeys}, Dtype::kBool, {1});
    for (std::int64_t i = 0; i < 4; ++i) write(mask, {i, 70}, 0);
    for (std::int64_t j = 0; j < kKeys; ++j) write(mask, {8, j}, 0);
    return mask;
  }();
  static constexpr std::int64_t kHiddenKey = 70;

  AttentionOptions masked() const { return {.mask = mask_.view()}; }

  /// Rows 4..7 of a head are NaN, the others as in `clean`; row 8 is empty.
  void expect_seers_nan(const Results& a, const Results& clean, std::int64_t head) const {
    for (std::int64_t i = 0; i < kRows; ++i) {
      SCOPED_TRACE(i);
      if (i >= 4 && i < 8) {
        EXPECT_TRUE(row_is_nan(a.out, {0, head, i}));
        EXPECT_TRUE(std::isnan(read(a.lse, {0, head, i})));
      } else {
        expect_row_as(a, clean, head, i);
      }
    }
  }

  static void expect_row_as(const Results& a, const Results& clean, std::int64_t head, std::int64_t i) {
    SCOPED_TRACE("row " + std::to_string(i) + " of head " + std::to_string(head));
    const auto row = [&](const Results& results) {
      return sliced(sliced(results.views(), 1, head, head + 1), 2, i, i + 1);
    };
    expect_same_bits(row(a), row(clean));
  }

  void expect_head_as(const Results& a, const Results& clean, std::int64_t head) const {
    for (std::int64_t i = 0; i < kRows; ++i) expect_row_as(a, clean, head, i);
  }
};

TEST_P(NonFinite, NaNInAQueryRowStaysInItsRow) {
  const Results clean = run(q_, k_, v_);
  write(q_, {0, 1, 3, 5}, kNaN);
  const Results a = run(q_, k_, v_);
  EXPECT_TRUE(row_is_nan(a.out, {0, 1, 3}));
  EXPECT_TRUE(row_is_nan(a.weights, {0, 1, 3}));
  EXPECT_TRUE(std::isnan(read(a.lse, {0, 1, 3})));
  for (std::int64_t i = 0; i < kRows; ++i) {
    if (i != 3) expect_row_as(a, clean, 1, i);
  }
  expect_head_as(a, clean, 0);
}

TEST_P(NonFinite, NaNInAQueryRowBesideColumnsThatAreComputedInParts) {
  write(q_, {0, 0, 3, 0}, kNaN);
  const Results a = run(q_, k_, normal({1, 2, kKeys, 1100}));
  EXPECT_TRUE(row_is_nan(a.out, {0, 0, 3}));
  EXPECT_TRUE(row_is_nan(a.weights, {0, 0, 3}));
  EXPECT_TRUE(row_is_finite(a.out, {0, 0, 4}));
}

TEST_P(NonFinite, NaNInAQueryRowThatSeesNothingIsNotSeen) {
  write(q_, {0, 0, 8, 0}, kNaN);
  expect_empty_row(run(q_, k_, v_, masked()), {0, 0, 8});
}

TEST_P(NonFinite, NaNKeyMakesNaNOfTheRowsThatSeeIt) {
  for (const double softcap : {0.0, 5.0}) {
    AttentionOptions options = masked();
    options.softcap = softcap;
    Tensor k = k_.clone();
    const Results clean = run(q_, k, v_, options);
    write(k, {0, 1, kHiddenKey, 3}, kNaN);
    const Results a = run(q_, k, v_, options);
    expect_seers_nan(a, clean, 1);
    expect_head_as(a, clean, 0);
  }
}

TEST_P(NonFinite, NaNValueMakesNaNOfItsColumn) {
  const Results clean = run(q_, k_, v_, masked());
  write(v_, {0, 0, kHiddenKey, 11}, kNaN);
  const Results a = run(q_, k_, v_, masked());
  for (std::int64_t i = 0; i < kRows; ++i) {
    if (i < 4 || i == 8) {
      expect_row_as(a, clean, 0, i);
      continue;
    }
    EXPECT_TRUE(std::isnan(read(a.out, {0, 0, i, 11})));
    EXPECT_TRUE(std::isfinite(read(a.lse, {0, 0, i}))) << "lse does not see V";
  }
  expect_head_as(a, clean, 1);
}

TEST_P(NonFinite, VisibleInfinityInAValueIsInfinityInItsColumn) {
  write(v_, {0, 0, kHiddenKey, 2}, -kInf);
  const Results a = run(q_, k_, v_, masked());
  for (std::int64_t i = 4; i < 8; ++i) {
    EXPECT_EQ(read(a.out, {0, 0, i, 2}), -kInf);
    EXPECT_TRUE(std::isfinite(read(a.out, {0, 0, i, 1})));
  }
  EXPECT_TRUE(row_is_finite(a.out, {0, 0, 3}));
  write(v_, {0, 0, 1, 2}, kInf);
  const Results both = run(q_, k_, v_, masked());
  EXPECT_TRUE(std::isnan(read(both.out, {0, 0, 5, 2}))) << "inf - inf";
  EXPECT_EQ(read(both.out, {0, 0, 2, 2}), kInf) << "sees one of them";
}

TEST_P(NonFinite, VisibleInfiniteKeyFollowsTheFormula) {
  write(k_, {0, 0, kHiddenKey, 2}, kInf);
  write(q_, {0, 0, 4, 2}, -1.5);  // logit -inf: weight 0
  write(q_, {0, 0, 5, 2}, 1.5);   // logit +inf: inf / inf
  write(q_, {0, 0, 6, 2}, 0);     // logit 0 * inf
  const Results a = run(q_, k_, v_, masked());
  Tensor without = mask_.clone();
  write(without, {4, kHiddenKey}, 0);
  const Results expected = run(q_, k_, v_, {.mask = without.view()});
  EXPECT_TRUE(
      close(a.out.view().slice(1, 0, 1).slice(2, 4, 5), expected.out.view().slice(1, 0, 1).slice(2, 4, 5), {kSum}));
  EXPECT_EQ(read(a.weights, {0, 0, 4, kHiddenKey}), 0);
  EXPECT_TRUE(std::isfinite(read(a.lse, {0, 0, 4})));
  EXPECT_TRUE(row_is_nan(a.out, {0, 0, 5}));
  EXPECT_TRUE(row_is_nan(a.out, {0, 0, 6}));
  EXPECT_TRUE(row_is_finite(a.out, {0, 0, 0}));
}

TEST_P(NonFinite, VisibleNaNValueCountsAtWeightZero) {
  write(k_, {0, 0, kHiddenKey, 2}, kInf);
  write(q_, {0, 0, 4, 2}, -1.5);
  write(v_, {0, 0, kHiddenKey, 0}, kNaN);
  const Results a = run(q_, k_, v_, masked());
  EXPECT_TRUE(std::isnan(read(a.out, {0, 0, 4, 0}))) << "0 * NaN is NaN where the key is visible";
  EXPECT_TRUE(row_is_finite(a.out, {0, 0, 3}));
}

TEST_P(NonFinite, NaNAndInfinityInTheBias) {
  Tensor bias({kRows, kKeys}, dtype());
  AttentionOptions options = masked();
  options.bias = bias.view();
  const Results clean = run(q_, k_, v_, options);
  for (const double poison : {kNaN, kInf}) {
    for (std::int64_t i = 0; i < kRows; ++i) write(bias, {i, kHiddenKey}, poison);
    const Results a = run(q_, k_, v_, options);
    expect_seers_nan(a, clean, 0);
    expect_seers_nan(a, clean, 1);
  }
}

TEST_P(NonFinite, AChunkThatSeesNaNAloneIsNotTakenForAnEmptyOne) {
  if (GetParam().target == "reference") GTEST_SKIP() << "has no chunks, and takes minutes";
  // Keys 4096 to 8191 are a chunk of their own in the order of arithmetic.
  const Tensor q = normal({1, 1, 2, 2});
  const Tensor k = normal({1, 1, 8192, 2});
  Tensor bias({2, 8192}, dtype());
  write(bias, {1, 4096}, kNaN);
  for (std::int64_t j = 4097; j < 8192; ++j) write(bias, {1, j}, -kInf);
  const Results a = run(q, k, k, {.bias = bias.view()}, {.matrices = false});
  EXPECT_TRUE(row_is_finite(a.out, {0, 0, 0}));
  EXPECT_TRUE(row_is_nan(a.out, {0, 0, 1}));
}

TEST_P(NonFinite, NaNSlopeMakesNaNOfItsHead) {
  Tensor slopes = tensor({2}, {0.5, 0.25});
  AttentionOptions options = masked();
  options.alibi_slopes = slopes.view();
  const Results clean = run(q_, k_, v_, options);
  write(slopes, {1}, kNaN);
  const Results a = run(q_, k_, v_, options);
  expect_head_as(a, clean, 0);
  for (std::int64_t i = 0; i < 8; ++i) EXPECT_TRUE(row_is_nan(a.out, {0, 1, i}));
  expect_empty_row(a, {0, 1, 8});
}

TEST_P(NonFinite, NaNOrInfiniteSinkMakesNaNOfRowsThatSeeSomething) {
  Tensor sinks = tensor({2}, {0.5, 0.25});
  AttentionOptions options = masked();
  options.sinks = sinks.view();
  const Results clean = run(q_, k_, v_, options);
  for (const double poison : {kNaN, kInf}) {
    SCOPED_TRACE(poison);
    write(sinks, {1}, poison);
    const Results a = run(q_, k_, v_, options);
    expect_head_as(a, clean, 0);
    for (std::int64_t i = 0; i < 8; ++i) EXPECT_TRUE(row_is_nan(a.out, {0, 1, i}));
    for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(read(a.weights, {0, 1, i, kHiddenKey}), 0) << "hidden";
    EXPECT_TRUE(all_of_row(a.out, {0, 1, 8}, [](double x) { return x == 0; })) << "an empty row's out is 0";
    EXPECT_TRUE(all_of_row(a.weights, {0, 1, 8}, [](double x) { return x == 0; }));
    const double lse = read(a.lse, {0, 1, 8});
    EXPECT_TRUE(lse == poison || (std::isnan(lse) && std::isnan(poison))) << lse << ", expected the sink";
    EXPECT_EQ(read(a.entropy, {0, 1, 8}), 0);
    EXPECT_EQ(read(a.max_weight, {0, 1, 8}), 0);
  }
}

TEST_P(NonFinite, ASinkOfMinusInfinityIsNoSink) {
  const Tensor sinks = tensor({2}, {-kInf});
  AttentionOptions options = masked();
  const Results clean = run(q_, k_, v_, options);
  options.sinks = sinks.view();
  expect_close(run(q_, k_, v_, options), clean);
}

TEST_P(NonFinite, RowOfInfiniteNegativeLogitsIsNaN) {
  const Tensor q = tensor({1, 1, 1, 1}, {1});
  const Tensor k = tensor({1, 1, 3, 1}, {-kInf});
  const Tensor v = tensor({1, 1, 3, 1}, {5});
  EXPECT_TRUE(std::isnan(read(run(q, k, v).out, {0, 0, 0, 0}))) << "0 / 0, not a row that sees nothing";
}

INSTANTIATE_TEST_SUITE_P(On, NonFinite, ::testing::ValuesIn(every_setting()), setting_name);

}  // namespace
}  // namespace qkv::support
