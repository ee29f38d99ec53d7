#ifndef QKV_TESTS_SUPPORT_RESULTS_H_
#define QKV_TESTS_SUPPORT_RESULTS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "qkv/attention.h"
#include "support/compare.h"
#include "support/guarded.h"

namespace qkv::support {

/// What else to ask for, and how the outputs lie in memory.
struct Wanted {
  LogitsStage stage = LogitsStage::kMasked;
  std::vector<std::int64_t> keys = {};  ///< for key_weight
  Layout layout = Layout::kDense;
  bool matrices = true;  ///< weights and logits too
};

/// Terms are of size 1; a logit of head_dim products is off by a few eps times its own size, and so is a weight: the
/// exponential turns an absolute error into a relative one. Logits reach some 30.
inline constexpr Tolerance kOutTolerance{.coefficient = 64};
inline constexpr Tolerance kRowTolerance{.coefficient = 32};
inline constexpr Tolerance kLogitTolerance{.coefficient = 32, .size = 4};
/// A small weight inherits its logit's absolute error, up to 100 times a few eps, as a relative one.
inline constexpr Tolerance kSmallWeightTolerance{.coefficient = 256, .size = 1e-6};
/// w ln w has slope ln w: up to 16 bits of weights below eps count.
inline constexpr Tolerance kEntropyTolerance{.coefficient = 512};

/// With 16 bits: the rounding at the end, and that of each weight before it meets V in bfloat16.
inline constexpr Tolerance kHalfOutTolerance{.coefficient = 1.5};
/// A sum of weights that were rounded to bfloat16, in float32.
inline constexpr Tolerance kRoundedWeightTolerance{.coefficient = 0x1p15};

/// Of lse, weights, logits and statistics.
inline Dtype stats_dtype(Dtype q) { return q == Dtype::kFloat64 ? Dtype::kFloat64 : Dtype::kFloat32; }

/// One output, or a part of one.
struct NamedView {
  std::string name;
  ConstTensorView view;
  Tolerance tolerance;   ///< for a comparison with the same output formed in another order
  bool per_key = false;  ///< its last axis is kv_len
};
using NamedViews = std::vector<NamedView>;

/// The part [begin, end) along one axis of every output that has it: 0 to 2 are of all, 3 is keys.
inline NamedViews sliced(NamedViews views, int axis, std::int64_t begin, std::int64_t end) {
  for (NamedView& each : views) {
    if (axis < 3 || each.per_key) each.view = each.view.slice(axis, begin, end);
  }
  return views;
}

/// Everything that a call can write, amid canaries: what it forgets to write stays NaN, what it writes elsewhere shows
/// in intact().
struct Results {
  /// For a call on operands of four axes.
  Results(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v, const Wanted& how = {})
      : wanted(how),
        out({q.extent(0), q.extent(1), q.extent(2), v.extent(3)}, q.dtype(), how.layout),
        lse(per_row(q), stats_dtype(q.dtype()), how.layout),
        weights(per_key(q, k, how), stats_dtype(q.dtype()), how.layout),
        logits(per_key(q, k, how), stats_dtype(q.dtype()), how.layout),
        max_raw(per_row(q), stats_dtype(q.dtype()), how.layout),
        max_logit(per_row(q), stats_dtype(q.dtype()), how.layout),
        max_key(per_row(q), Dtype::kInt64, how.layout),
        max_weight(per_row(q), stats_dtype(q.dtype()), how.layout),
        entropy(per_row(q), stats_dtype(q.dtype()), how.layout),
        key_weight(per_row(q), stats_dtype(q.dtype()), how.layout) {}

  AttentionOutputs outputs() const {
    AttentionOutputs all;
    all.lse = lse;
    all.stats = Stats{.max_raw = max_raw,
                      .max_logit = max_logit,
                      .max_key = max_key,
                      .max_weight = max_weight,
                      .entropy = entropy,
                      .key_weight = key_weight,
                      .keys = wanted.keys};
    if (wanted.matrices) {
      all.weights = Weights{.out = weights};
      all.logits = Logits{.out = logits, .stage = wanted.stage};
    }
    return all;
  }

  NamedViews views() const {
    NamedViews all{{"out", out, kOutTolerance},
                   {"lse", lse, kRowTolerance},
                   {"weights", weights, kOutTolerance, true},
                   {"logits", logits, kLogitTolerance, true},
                   {"max_raw", max_raw, kRowTolerance},
                   {"max_logit", max_logit, kRowTolerance},
                   {"max_key", max_key, {}},
                   {"max_weight", max_weight, kOutTolerance},
                   {"entropy", entropy, kEntropyTolerance},
                   {"key_weight", key_weight, kOutTolerance}};
    for (NamedView& each : all) each.tolerance.coefficient *= spread;
    if (size_of(out.dtype()) == 2) all.front().tolerance = kHalfOutTolerance;
    if (out.dtype() == Dtype::kBFloat16) all.back().tolerance = kRoundedWeightTolerance;
    return all;
  }

  /// Whether nothing but elements of the outputs was written.
  bool intact() const {
    for (const Guarded* output :
         {&out, &lse, &weights, &logits, &max_raw, &max_logit, &max_key, &max_weight, &entropy, &key_weight}) {
      if (!output->intact()) return false;
    }
    return true;
  }

  Wanted wanted;
  double spread = 1;  ///< how many times wider than usual the terms of a logit are, and so its error
  Guarded out;        ///< [batch, num_heads, q_len, value_dim]
  Guarded lse;        ///< this, and the statistics, [batch, num_heads, q_len]
  Guarded weights;    ///< these two [batch, num_heads, q_len, kv_len]; without elements unless wanted
  Guarded logits;
  Guarded max_raw, max_logit, max_key, max_weight, entropy, key_weight;

 private:
  static Extents per_row(const ConstTensorView& q) { return {q.extent(0), q.extent(1), q.extent(2)}; }
  static Extents per_key(const ConstTensorView& q, const ConstTensorView& k, const Wanted& how) {
    if (!how.matrices) return {0, 0, 0, 0};
    return {q.extent(0), q.extent(1), q.extent(2), k.extent(2)};
  }
};

inline void expect_same_bits(const NamedViews& actual, const NamedViews& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].name, expected[i].name);
    EXPECT_TRUE(same_bits(actual[i].view, expected[i].view)) << actual[i].name;
  }
}
/// Every output of two calls.
inline void expect_same_bits(const Results& actual, const Results& expected) {
  expect_same_bits(actual.views(), expected.views());
}

/// max_key is left out: it may differ where two logits are equal but for rounding.
inline void expect_close(const NamedViews& actual, const NamedViews& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const std::string& name = actual[i].name;
    const ConstTensorView& view = actual[i].view;
    ASSERT_EQ(name, expected[i].name);
    if (name == "max_key") continue;
    EXPECT_TRUE(close(view, expected[i].view, actual[i].tolerance)) << name;
    if (name != "weights") continue;
    Tolerance small = kSmallWeightTolerance;
    small.coefficient *= actual[i].tolerance.coefficient / kOutTolerance.coefficient;
    EXPECT_TRUE(close(view, expected[i].view, small)) << name << ", relatively";
  }
}
inline void expect_close(const Results& actual, const Results& expected) {
  expect_close(actual.views(), expected.views());
}

}  // namespace qkv::support

#endif  // QKV_TESTS_SUPPORT_RESULTS_H_
