#ifndef QKV_TESTS_SUPPORT_ON_TARGET_H_
#define QKV_TESTS_SUPPORT_ON_TARGET_H_

#include <gtest/gtest.h>

#include <initializer_list>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "qkv/attention.h"
#include "support/attend.h"
#include "support/call.h"
#include "support/compare.h"
#include "support/random.h"

namespace qkv::support {

/// Coefficients of epsilon for answers worked out by hand, by what rounds on the way to them: a product or a quotient,
/// a few operations and an exponential, a sum of tens of such terms.
inline constexpr double kOneStep = 2;
inline constexpr double kFewSteps = 8;
inline constexpr double kSum = 32;

/// Where a case runs.
struct Setting {
  std::string target;
  Dtype dtype = Dtype::kFloat32;

  friend std::ostream& operator<<(std::ostream& to, const Setting& setting) {
    return to << setting.target << " " << name_of(setting.dtype);
  }
};

/// Targets with kernels of their own: every SIMD target in f32, and the one kernel that f64 has.
inline std::vector<Setting> kernel_settings() {
  std::vector<Setting> settings;
  for (const std::string& name : kernel_targets()) settings.push_back({name, Dtype::kFloat32});
  settings.push_back({kernel_targets().front(), Dtype::kFloat64});
  return settings;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// The same targets with 16 bits. Sanitizers, which slow everything down, look at the best: conversions apart, the code is
/// that of f32. Where that one multiplies pairs, bfloat16 takes the usual way on the next.
inline std::vector<Setting> half_settings() {
  std::vector<Setting> settings;
  bool pairs = false;
  for (const std::string& name : kernel_targets()) {
    const bool best = settings.empty();
    if (best || !kSanitized) settings.push_back({name, Dtype::kFloat16});
    if (best || pairs || !kSanitized) settings.push_back({name, Dtype::kBFloat16});
    pairs = name.ends_with("_bf16");
  }
  return settings;
}

/// These and the reference, for results that are known without it. Sanitizers, which slow everything down, look at the
/// kernels alone: the reference has tests of its own.
inline std::vector<Setting> every_setting() {
  std::vector<Setting> settings = kernel_settings();
  if (kSanitized) return settings;
  settings.push_back({"reference", Dtype::kFloat32});
  settings.push_back({"reference", Dtype::kFloat64});
  return settings;
}

inline std::string setting_name(const ::testing::TestParamInfo<Setting>& info) {
  return info.param.target + "_" + std::string(name_of(info.param.dtype));
}

/// A suite whose cases run on one target and dtype after the other.
class OnTarget : public ::testing::TestWithParam<Setting> {
 protected:
  Dtype dtype() const { return GetParam().dtype; }
  bool is_f32() const { return dtype() == Dtype::kFloat32; }
  double epsilon() const { return epsilon_of(dtype()); }
  /// The most negative finite number.
  double lowest() const {
    return is_f32() ? static_cast<double>(std::numeric_limits<float>::lowest()) : std::numeric_limits<double>::lowest();
  }

  Tensor tensor(const Extents& shape, std::initializer_list<double> values) const {
    return tensor_of(shape, dtype(), values);
  }
  Tensor normal(const Extents& shape, double deviation = 1) { return random_.normal_tensor(shape, dtype(), deviation); }

  Results run(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
              const AttentionOptions& options = {}, const Wanted& wanted = {}) const {
    return attend(&attention, q, k, v, options, wanted);
  }

  /// Every output of this target against the double reference.
  void expect_as_reference(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                           const AttentionOptions& options = {}, const Wanted& wanted = {}) const {
    if (GetParam().target == "reference") return;  // it would be compared with itself
    expect_close(run(q, k, v, options, wanted), attend(&reference::attention, q, k, v, options, wanted));
  }

  /// What a row that sees nothing has, by rule 6, where there is no sink.
  static void expect_empty_row(const Results& a, const Extents& row) {
    const Extents& shape = a.out.shape();
    const ConstTensorView weights = a.weights;
    for (std::int64_t c = 0; c < shape[3]; ++c) EXPECT_EQ(read(a.out, {row[0], row[1], row[2], c}), 0);
    for (std::int64_t j = 0; j < weights.extent(3); ++j) EXPECT_EQ(read(weights, {row[0], row[1], row[2], j}), 0);
    EXPECT_EQ(read(a.lse, row), -kInf);
    EXPECT_EQ(read(a.max_raw, row), -kInf);
    EXPECT_EQ(read(a.max_logit, row), -kInf);
    EXPECT_EQ(read(a.max_key, row), -1);
    EXPECT_EQ(read(a.max_weight, row), 0);
    EXPECT_EQ(read(a.entropy, row), 0);
    EXPECT_EQ(read(a.key_weight, row), 0);
  }

  /// Whether all numbers of the last axis at `row` satisfy the predicate.
  template <class Predicate>
  static bool all_of_row(const ConstTensorView& view, const Extents& row, Predicate predicate) {
    for (std::int64_t c = 0; c < view.extent(3); ++c) {
      if (!predicate(read(view, {row[0], row[1], row[2], c}))) return false;
    }
    return true;
  }
  static bool row_is_nan(const ConstTensorView& view, const Extents& row) {
    return all_of_row(view, row, [](double x) { return std::isnan(x); });
  }
  static bool row_is_finite(const ConstTensorView& view, const Extents& row) {
    return all_of_row(view, row, [](double x) { return std::isfinite(x); });
  }

  Random random_{20240917};

 private:
  const TargetScope scope_{GetParam().target};
};

}  // namespace qkv::support

#endif  // QKV_TESTS_SUPPORT_ON_TARGET_H_
