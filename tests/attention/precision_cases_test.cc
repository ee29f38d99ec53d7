// Numbers near the ends of f32, and logits for which a softmax is easily got wrong. Answers by hand, or by the double
// reference where they are not round.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "support/on_target.h"

namespace qkv::support {
namespace {

class Precision : public OnTarget {
 protected:
  /// One row whose logits are exactly these numbers: q = 1, scale = 1, head_dim = 1.
  struct OneRow {
    Tensor q, k, v;
    AttentionOptions options;
  };
  OneRow with_logits(const std::vector<double>& logits) const {
    const auto keys = static_cast<std::int64_t>(logits.size());
    OneRow row{tensor({1, 1, 1, 1}, {1}), Tensor({1, 1, keys, 1}, dtype()), Tensor({1, 1, keys, 1}, dtype()), {}};
    for (std::int64_t j = 0; j < keys; ++j) {
      write(row.k, {0, 0, j, 0}, logits[static_cast<std::size_t>(j)]);
      write(row.v, {0, 0, j, 0}, static_cast<double>(j));
    }
    row.options.scale = 1;
    return row;
  }
  /// Exactly: the row of with_logits that sees all its weight on one key.
  static void expect_one_hot(const Results& a, std::int64_t key, double logit) {
    EXPECT_EQ(read(a.out, {0, 0, 0, 0}), static_cast<double>(key));
    EXPECT_EQ(read(a.lse, {0, 0, 0}), logit);
    EXPECT_EQ(read(a.max_raw, {0, 0, 0}), logit);
    EXPECT_EQ(read(a.max_logit, {0, 0, 0}), logit);
    EXPECT_EQ(read(a.max_key, {0, 0, 0}), static_cast<double>(key));
    EXPECT_EQ(read(a.max_weight, {0, 0, 0}), 1);
    EXPECT_EQ(read(a.key_weight, {0, 0, 0}), 1);
    EXPECT_EQ(read(a.entropy, {0, 0, 0}), 0);
    for (std::int64_t j = 0; j < a.weights.shape()[3]; ++j) {
      EXPECT_EQ(read(a.weights, {0, 0, 0, j}), j == key ? 1 : 0) << j;
    }
  }
  /// Both ways that kernels form a logit: the product alone, and with terms added.
  template <class Check>
  void with_and_without_bias(const OneRow& row, Check check) const {
    check(row.options);
    const Tensor zero({1}, dtype());
    AttentionOptions biased = row.options;
    biased.bias = zero.view();
    SCOPED_TRACE("with a bias of 0");
    check(biased);
  }
};

TEST_P(Precision, EqualLogitsGiveConstantValuesBackExactly) {
  for (const std::int64_t keys : {512, 4096}) {
    const Tensor q = tensor({1, 1, 1, 8}, {0});
    const Tensor k = tensor({1, 1, keys, 8}, {0});
    const Tensor v = tensor({1, 1, keys, 3}, {1});
    const Results a = run(q, k, v);
    EXPECT_TRUE(all_of_row(a.out, {0, 0, 0}, [](double x) { return x == 1; })) << keys;
    EXPECT_EQ(read(a.max_weight, {0, 0, 0}), 1.0 / static_cast<double>(keys));
  }
}

TEST_P(Precision, OneVisibleKeyIsTheResult) {
  const std::int64_t n = 300;
  const Tensor q = normal({1, 2, n, 24}, 3);
  const Tensor k = normal({1, 2, n, 24}, 3);
  const Tensor v = normal({1, 2, n, 40});
  const AttentionOptions options{.scale = 0.3, .window = {0, 0}};
  EXPECT_TRUE(same_bits(run(q, k, v, options).out, v));
}

TEST_P(Precision, LargeEqualLogitsGiveTheMean) {
  constexpr std::int64_t kKeys = 40;
  const Tensor v = normal({1, 1, kKeys, 5});
  for (const double size : {200.0, 300.0, 133120.0, 1e9, 1e17}) {
    const Results a = run(tensor({1, 1, 2, 64}, {size}), tensor({1, 1, kKeys, 64}, {size}), v);
    for (std::int64_t c = 0; c < 5; ++c) {
      double sum = 0;
      for (std::int64_t j = 0; j < kKeys; ++j) sum += read(v, {0, 0, j, c});
      EXPECT_NEAR(read(a.out, {0, 0, 1, c}), sum / kKeys, kSum * epsilon()) << size;
    }
  }
}

TEST_P(Precision, AConstantOfEveryOperandComesBack) {
  for (const double size : {300.0, 133120.0}) {
    const Tensor x = tensor({1, 1, 64, 64}, {size});
    EXPECT_TRUE(close(run(x, x, x).out, x, {.coefficient = kFewSteps, .size = size}));
  }
}

TEST_P(Precision, ConstantInputHasUniformWeights) {
  constexpr std::int64_t kLen = 50;
  const Tensor x = tensor({1, 1, kLen, 1024}, {1000});
  const Results a = run(x, x, x);
  for_each_index(a.weights.shape(), [&](const Extents& at) {
    ASSERT_EQ(read(a.weights, at), read(a.weights, {0, 0, 0, 0})) << to_string(at);
  });
  EXPECT_NEAR(read(a.weights, {0, 0, 0, 0}), 1.0 / kLen, kFewSteps * epsilon());
  EXPECT_NEAR(read(a.entropy, {0, 0, 7}), std::log(kLen), kSum * epsilon());
  EXPECT_NEAR(read(a.out, {0, 0, 49, 1023}), 1000, 1000 * kSum * epsilon());
}

TEST_P(Precision, AHugeConstantOnEveryLogitLeavesWhatRoundingLeaves) {
  // In f32 logits of a few round away beside 1e9, which makes them equal; in f64 they lose 30 of 52 bits.
  const Tensor q = normal({1, 1, 3, 8});
  const Tensor k = normal({1, 1, 20, 8});
  const Tensor v = normal({1, 1, 20, 8});
  const Tensor bias = tensor({1}, {-1e9});
  const Results a = run(q, k, v, {.bias = bias.view()});
  if (is_f32()) {
    if (GetParam().target == "reference") GTEST_SKIP() << "its logits are double";
    EXPECT_TRUE(close(a.out, run(q, k, v, {.scale = 0}).out, {kSum}));
  } else {
    constexpr Tolerance kThirtyBitsLess{.coefficient = 1e9};
    EXPECT_TRUE(close(a.out, run(q, k, v).out, kThirtyBitsLess));
  }
}

TEST_P(Precision, CapOfHugeLogitsSaturates) {
  const Tensor q = tensor({1, 1, 1, 1}, {1});
  const Tensor k = tensor({1, 1, 4, 1}, {1e5, -1e5, 0, 3});
  const Tensor v = tensor({1, 1, 4, 1}, {1, 2, 3, 4});
  const Results a = run(q, k, v, {.scale = 1, .softcap = 30}, {.stage = LogitsStage::kCapped});
  EXPECT_EQ(read(a.logits, {0, 0, 0, 0}), 30);
  EXPECT_EQ(read(a.logits, {0, 0, 0, 1}), -30);
  EXPECT_EQ(read(a.logits, {0, 0, 0, 2}), 0);
  EXPECT_NEAR(read(a.logits, {0, 0, 0, 3}), 30 * std::tanh(0.1), kSum * epsilon());
  EXPECT_EQ(read(a.max_raw, {0, 0, 0}), is_f32() ? static_cast<double>(1e5f) : 1e5);
  EXPECT_EQ(read(a.max_logit, {0, 0, 0}), 30);
  // The value at logit 30 is 1; what the other keys add is known to be less than an epsilon in f32 alone.
  const double w0 = std::exp(-30), w3 = std::exp(30 * std::tanh(0.1) - 30);
  EXPECT_NEAR(read(a.out, {0, 0, 0, 0}), 1 + 2 * w0 + 3 * w3, kFewSteps * epsilon());
}

TEST_P(Precision, TinyAndHugeCaps) {
  const Tensor q = normal({1, 1, 3, 8});
  const Tensor k = normal({1, 1, 20, 8});
  const Tensor v = normal({1, 1, 20, 8});
  const Results equal = run(q, k, v, {.scale = 0});
  for (const double cap : {1e-300, 1e-46, 1e-40, 1e-20}) {
    SCOPED_TRACE(cap);
    EXPECT_TRUE(close(run(q, k, v, {.softcap = cap}).out, equal.out, {kSum})) << "every logit is capped to about 0";
  }
  const Results uncapped = run(q, k, v);
  for (const double cap : {1e10, 1e30, 1e38, 1e39, 1e300}) {
    SCOPED_TRACE(cap);
    expect_close(run(q, k, v, {.softcap = cap}), uncapped);
  }
}

TEST_P(Precision, WithoutScalingWeightsAreNearlyOneHot) {
  constexpr std::int64_t kLen = 64;
  const Tensor q = normal({1, 1, kLen, 512});
  const Tensor k = normal({1, 1, kLen, 512});
  const Tensor v = normal({1, 1, kLen, 16});
  const auto mean_of_largest = [](const Results& a) {
    double sum = 0;
    for (std::int64_t i = 0; i < kLen; ++i) sum += read(a.max_weight, {0, 0, i});
    return sum / kLen;
  };
  const Results unscaled = run(q, k, v, {.scale = 1});
  for (std::int64_t i = 0; i < kLen; ++i) EXPECT_TRUE(row_is_finite(unscaled.out, {0, 0, i}));
  EXPECT_GT(mean_of_largest(unscaled), 0.85);
  EXPECT_LT(mean_of_largest(run(q, k, v)), 0.2);
}

TEST_P(Precision, FarBelowTheMaximumWeightsVanishButNeverGrow) {
  const std::vector<double> depths{0,    -1,     -80,    -87.3,  -87.4, -87.7, -88,
                                   -100, -103.2, -103.9, -104.5, -1e3,  -1e10, -1e38};
  OneRow row = with_logits(depths);
  with_and_without_bias(row, [&](const AttentionOptions& options) {
    const Results a = run(row.q, row.k, row.v, options);
    const double factor = 1 / (1 + std::exp(-1));
    for (std::size_t j = 0; j < depths.size(); ++j) {
      const double weight = read(a.weights, {0, 0, 0, static_cast<std::int64_t>(j)});
      const double exact = std::exp(depths[j]) * factor;
      if (weight == 0 && depths[j] < -87.6) continue;
      const double allowed = kSmallWeightTolerance.coefficient * epsilon() * exact + (is_f32() ? 0x1p-148 : 0);
      EXPECT_NEAR(weight, exact, allowed) << depths[j];
    }
  });
}

TEST_P(Precision, LogitsNearTheEndOfF32) {
  const std::vector<std::vector<double>> rows{{2.5e38, 3.3e38, 3.3e38, -3.3e38},
                                              {-2.5e38, -2.5e38, -3.3e38},
                                              {-3.3e38, 0, 3.3e38, 3.3e38},
                                              {2.3e38, 1e38, 2.3e38}};
  const std::vector<double> answers{1.5, 0.5, 2.5, 1};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(i);
    OneRow row = with_logits(rows[i]);
    with_and_without_bias(row, [&](const AttentionOptions& options) {
      const Results a = run(row.q, row.k, row.v, options);
      EXPECT_NEAR(read(a.out, {0, 0, 0, 0}), answers[i], kFewSteps * epsilon());
      EXPECT_NEAR(read(a.entropy, {0, 0, 0}), std::log(2), kSum * epsilon());
      EXPECT_EQ(read(a.max_weight, {0, 0, 0}), 0.5);
      EXPECT_TRUE(std::isfinite(read(a.lse, {0, 0, 0})));
    });
  }
}

TEST_P(Precision, LogitsFarApartInDifferentBlocks) {
  // 600 and 5000: the next block of keys, and the next chunk.
  for (const std::int64_t far : {600, 5000}) {
    std::vector<double> logits(static_cast<std::size_t>(far + 2), -2.2e38);
    logits[static_cast<std::size_t>(far)] = logits[static_cast<std::size_t>(far + 1)] = 2.2e38;
    OneRow row = with_logits(logits);
    with_and_without_bias(row, [&](const AttentionOptions& options) {
      const Results a = run(row.q, row.k, row.v, options, {.keys = {far}});
      EXPECT_NEAR(read(a.out, {0, 0, 0, 0}), static_cast<double>(far) + 0.5,
                  2 * static_cast<double>(far) * kOneStep * epsilon());
      EXPECT_NEAR(read(a.entropy, {0, 0, 0}), std::log(2), kSum * epsilon());
      EXPECT_NEAR(read(a.key_weight, {0, 0, 0}), 0.5, kOneStep * epsilon());
      EXPECT_EQ(read(a.max_key, {0, 0, 0}), far);
    });
  }
}

TEST_P(Precision, LogitsFartherApartThanTheLargestNumber) {
  // Their difference is infinite. Two keys, then keys in another block and in another chunk than the largest.
  const double most = is_f32() ? static_cast<double>(3.4e38f) : 1.7e308;
  for (const std::int64_t keys : {2, 70, 602, 5002}) {
    for (const std::int64_t top : {std::int64_t{0}, keys - 1}) {
      SCOPED_TRACE(std::to_string(keys) + " keys, the largest " + std::to_string(top));
      std::vector<double> logits(static_cast<std::size_t>(keys), -most);
      logits[static_cast<std::size_t>(top)] = most;
      OneRow row = with_logits(logits);
      with_and_without_bias(row, [&](const AttentionOptions& options) {
        expect_one_hot(run(row.q, row.k, row.v, options, {.keys = {top}}), top, most);
      });
      const Tensor sink = tensor({1}, {-most});
      row.options.sinks = sink.view();
      expect_one_hot(run(row.q, row.k, row.v, row.options, {.keys = {top}}), top, most);
    }
  }
}

TEST_P(Precision, ASinkFartherAboveThanTheLargestNumberTakesAll) {
  const double most = is_f32() ? static_cast<double>(3.4e38f) : 1.7e308;
  OneRow row = with_logits({-most, -most, -most});
  const Tensor sink = tensor({1}, {most});
  row.options.sinks = sink.view();
  with_and_without_bias(row, [&](const AttentionOptions& options) {
    const Results a = run(row.q, row.k, row.v, options, {.keys = {1}});
    for (const Guarded* nothing : {&a.out, &a.weights, &a.max_weight, &a.entropy, &a.key_weight}) {
      for_each_index(nothing->shape(), [&](const Extents& at) { EXPECT_EQ(read(*nothing, at), 0) << to_string(at); });
    }
    EXPECT_EQ(read(a.lse, {0, 0, 0}), most);
    EXPECT_EQ(read(a.max_logit, {0, 0, 0}), -most);
    EXPECT_EQ(read(a.max_key, {0, 0, 0}), 0);
  });
}

TEST_P(Precision, TheLargerOfTwoHugeNeighboursWins) {
  // Neighbours in f32 are more than 100 apart from 2^31 on, but their rounded multiples by log2(e) may lie anywhere.
  for (double size = 0x1p31; size < 0x1p127; size *= 1.37) {
    const auto top = static_cast<float>(size);
    const float below = std::nextafter(top, 0.0f);
    OneRow row = with_logits({static_cast<double>(below), static_cast<double>(top), static_cast<double>(below)});
    for (const double scale : {1.0, 1.43, 1.9, -1.6}) {
      row.options.scale = scale;
      const double winner = scale > 0 ? 1 : -1;  // with a negative scale the two smaller ones share
      const Results a = run(row.q, row.k, row.v, row.options);
      if (winner > 0) {
        ASSERT_EQ(read(a.weights, {0, 0, 0, 1}), 1) << "size " << size << " scale " << scale;
      } else {
        ASSERT_LT(read(a.weights, {0, 0, 0, 1}), 1e-40) << "size " << size << " scale " << scale;
        ASSERT_NEAR(read(a.weights, {0, 0, 0, 2}), 0.5, kOneStep * epsilon()) << "size " << size << " scale " << scale;
      }
    }
  }
}

TEST_P(Precision, TheLargestWeightIsThatOfTheWeights) {
  for (const double size : {1.0, 1e3, 1e5, 1e7, 3e7, 1e8, 1e12}) {
    for (const double scale : {1.0, 1.43, 1.9}) {
      OneRow row = with_logits({0.0, size, size, size * (1 - 3 * epsilon()), -size});
      row.options.scale = scale;
      const Results a = run(row.q, row.k, row.v, row.options);
      const double largest = std::max(read(a.weights, {0, 0, 0, 1}), read(a.weights, {0, 0, 0, 3}));
      EXPECT_NEAR(read(a.max_weight, {0, 0, 0}), largest, kOneStep * epsilon()) << size << " scale " << scale;
    }
  }
}

TEST_P(Precision, AProductBeyondF32WhoseLogitFits) {
  const Tensor q = tensor({1, 1, 1, 1}, {1e25});
  const Tensor k = tensor({1, 1, 3, 1}, {1e25, 2e25, -1e25});
  const Tensor v = tensor({1, 1, 3, 1}, {1, 2, 3});
  for (const double scale : {1e-50, 0x1p-166, 0x1p-99}) {
    SCOPED_TRACE(scale);
    const Results a = run(q, k, v, {.scale = scale});
    const double logit = 1e50 * scale;
    if (logit > 100) {
      EXPECT_EQ(read(a.out, {0, 0, 0, 0}), 2);
    } else {
      const double w0 = std::exp(logit), w1 = std::exp(2 * logit), w2 = std::exp(-logit);
      EXPECT_NEAR(read(a.out, {0, 0, 0, 0}), (w0 + 2 * w1 + 3 * w2) / (w0 + w1 + w2), kSum * epsilon());
    }
    EXPECT_NEAR(read(a.max_raw, {0, 0, 0}) / (2 * logit), 1, kFewSteps * epsilon());
  }
}

TEST_P(Precision, SumsThatOverflowInTheMiddleOfTheChain) {
  const Tensor q = tensor({1, 1, 1, 3}, {1e20, 1e20, 1});
  const Tensor k = tensor({1, 1, 2, 3}, {1e19, -1e19, 2, 1e19, -1e19, 3});
  const Tensor v = tensor({1, 1, 2, 1}, {0, 1});
  for (const auto stage : {LogitsStage::kScaled, LogitsStage::kCapped, LogitsStage::kMasked}) {
    const Results a = run(q, k, v, {.scale = 1}, {.stage = stage});
    EXPECT_NEAR(read(a.out, {0, 0, 0, 0}), 1 / (1 + std::exp(-1)), kFewSteps * epsilon());
    EXPECT_EQ(read(a.logits, {0, 0, 0, 0}), 2);
    EXPECT_EQ(read(a.logits, {0, 0, 0, 1}), 3);
    EXPECT_EQ(read(a.max_raw, {0, 0, 0}), 3);
  }
}

TEST_P(Precision, ANegativeOverflowInTheMiddleLosesNoKey) {
  const Tensor q = tensor({1, 1, 1, 3}, {1e20, 1e20, 1});
  const Tensor k = tensor({1, 1, 2, 3}, {-1e19, 1e19, 3, 0, 0, 2});
  const Tensor v = tensor({1, 1, 2, 1}, {1, 0});
  const Results a = run(q, k, v, {.scale = 1});
  EXPECT_NEAR(read(a.out, {0, 0, 0, 0}), 1 / (1 + std::exp(-1)), kFewSteps * epsilon());
  EXPECT_EQ(read(a.max_key, {0, 0, 0}), 0);
}

TEST_P(Precision, TermsThatOverflowUntilTheLastOneIsAdded) {
  // -1e38 - 3e38 leaves f32; + 2e38 brings it back to the larger of the two logits.
  OneRow row = with_logits({-1e38, 0});
  const Tensor bias = tensor({2}, {-3e38, -2.5e38});
  const Tensor slopes = tensor({1}, {-2e38});
  row.options.bias = bias.view();
  row.options.alibi_slopes = slopes.view();
  row.options.query_offset = 1;
  const Results a = run(row.q, row.k, row.v, row.options);
  EXPECT_EQ(read(a.weights, {0, 0, 0, 0}), 1);
  EXPECT_EQ(read(a.out, {0, 0, 0, 0}), 0);
  EXPECT_NEAR(read(a.max_logit, {0, 0, 0}) / -2e38, 1, kFewSteps * epsilon());
}

TEST_P(Precision, ConstantValuesNearTheEndComeBack) {
  constexpr std::int64_t kKeys = 100;
  const double size = is_f32() ? 3e38 : 1e300;
  const Tensor q = normal({1, 1, 3, 8});
  const Tensor k = normal({1, 1, kKeys, 8});
  const Tensor v = tensor({1, 1, kKeys, 10}, {size});
  const Results a = run(q, k, v);
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_NEAR(read(a.out, {0, 0, i, 9}) / size, 1, kSum * epsilon());
}

TEST_P(Precision, DenormalOperands) {
  const Tensor q = tensor({1, 1, 1, 1}, {1e38});
  const Tensor k = tensor({1, 1, 2, 1}, {1e-38, 1e-40});
  const Tensor v = tensor({1, 1, 2, 1}, {4e-40, 8e-40});
  const Results a = run(q, k, v, {.scale = 1});
  // 1e-40 has 17 bits in f32, V 18.
  const double w = 1 / (1 + std::exp(-0.99));
  EXPECT_NEAR(read(a.weights, {0, 0, 0, 0}), w, kFewSteps * epsilon());
  const double step = is_f32() ? 0x1p-149 : 8e-40 * epsilon();  // denormals are not relative
  EXPECT_NEAR(read(a.out, {0, 0, 0, 0}), w * 4e-40 + (1 - w) * 8e-40, 4 * step);
}

TEST_P(Precision, AResultTooSmallIsPositiveZero) {
  if (GetParam().target == "reference") GTEST_SKIP() << "rule 9 is the kernels'";
  const Tensor q({1, 1, 1, 1}, dtype());
  const Tensor k({1, 1, 2, 1}, dtype());
  const double smallest = is_f32() ? 0x1p-149 : 0x1p-1074;
  const Tensor v = tensor({1, 1, 2, 1}, {-smallest, 0});
  const double result = read(run(q, k, v).out, {0, 0, 0, 0});
  EXPECT_EQ(result, 0);
  EXPECT_FALSE(std::signbit(result));
}

TEST_P(Precision, ScaleOfZeroIsTheMeanOfWhatIsVisible) {
  const Tensor q = normal({1, 1, 4, 8});
  const Tensor k = normal({1, 1, 70, 8});
  const Tensor v = normal({1, 1, 70, 8});
  const Tensor mask = random_.bool_tensor({4, 70}, 0.5);
  const Results a = run(q, k, v, {.scale = 0, .mask = mask.view()});
  for_each_index({4, 8}, [&](const Extents& at) {
    double sum = 0;
    double count = 0;
    for (std::int64_t j = 0; j < 70; ++j) {
      if (read(mask, {at[0], j}) == 0) continue;
      sum += read(v, {0, 0, j, at[1]});
      ++count;
    }
    EXPECT_NEAR(read(a.out, {0, 0, at[0], at[1]}), sum / count, kSum * epsilon());
    EXPECT_NEAR(read(a.lse, {0, 0, at[0]}), std::log(count), kFewSteps * epsilon());
    EXPECT_EQ(read(a.max_raw, {0, 0, at[0]}), 0);
  });
}

TEST_P(Precision, ANegativeScaleIsThatOfANegatedQuery) {
  const Tensor q = normal({1, 2, 5, 9});
  const Tensor k = normal({1, 2, 70, 9});
  const Tensor v = normal({1, 2, 70, 9});
  Tensor negated(q.shape(), dtype());
  for_each_index(q.shape(), [&](const Extents& at) { write(negated, at, -read(q, at)); });
  expect_same_bits(run(q, k, v, {.scale = -0.3}), run(negated, k, v, {.scale = 0.3}));
}

TEST_P(Precision, ScalesBeyondF32) {
  const Tensor q = normal({1, 1, 3, 8});
  const Tensor k = normal({1, 1, 20, 8});
  const Tensor v = normal({1, 1, 20, 8});
  EXPECT_TRUE(close(run(q, k, v, {.scale = 1e-300}).out, run(q, k, v, {.scale = 0}).out, {kSum}));
  const Results huge = run(q, k, v, {.scale = is_f32() ? 1e300 : 1e290});
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(read(huge.max_weight, {0, 0, i}), 1);
    EXPECT_EQ(read(huge.entropy, {0, 0, i}), 0);
  }
  const Tensor one = tensor({1, 1, 1, 1}, {1e-20});
  const Tensor small = tensor({1, 1, 2, 1}, {1e-20, -1e-20});
  const Tensor values = tensor({1, 1, 2, 1}, {0, 1});
  const Results fits = run(one, small, values, {.scale = 1e40});
  EXPECT_NEAR(read(fits.out, {0, 0, 0, 0}), 1 / (1 + std::exp(2)), kFewSteps * epsilon());
}

INSTANTIATE_TEST_SUITE_P(On, Precision, ::testing::ValuesIn(every_setting()), setting_name);

}  // namespace
}  // namespace qkv::support
