#ifndef QKV_TESTS_SUPPORT_COMPARE_H_
#define QKV_TESTS_SUPPORT_COMPARE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "base/overlap.h"
#include "qkv/tensor.h"
#include "support/elements.h"

namespace qkv::support {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// An element may be off by coefficient * eps * max(|expected|, size). The coefficient is named where it is defined,
/// with the reason for it; eps is that of the dtype of the actual values.
struct Tolerance {
  double coefficient = 0;
  /// Of the terms that were summed to make an element: an error does not shrink because the sum happens to.
  double size = 1;
};

inline double epsilon_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64:
      return std::numeric_limits<double>::epsilon();
    case Dtype::kFloat16:
      return 0x1p-10;
    case Dtype::kBFloat16:
      return 0x1p-7;
    default:
      return static_cast<double>(std::numeric_limits<float>::epsilon());
  }
}

/// Fails unless the two are comparable at all: equal shapes, and memory of their own (a result compared with itself
/// is always right).
inline ::testing::AssertionResult comparable(const ConstTensorView& actual, const ConstTensorView& expected) {
  if (!(actual.shape() == expected.shape())) {
    return ::testing::AssertionFailure() << "shape " << to_string(actual.shape()) << ", expected "
                                         << to_string(expected.shape());
  }
  if (share_memory(actual, expected)) {
    return ::testing::AssertionFailure() << "actual and expected share memory: the comparison would prove nothing";
  }
  return ::testing::AssertionSuccess();
}

/// Within the tolerance; NaN equals NaN, and an infinity only itself. Reports the worst element.
inline ::testing::AssertionResult close(const ConstTensorView& actual, const ConstTensorView& expected,
                                        const Tolerance& tolerance) {
  if (auto result = comparable(actual, expected); !result) return result;
  double worst = 0;  // in units of what is allowed
  std::string report;
  std::int64_t wrong = 0;
  for_each_index(actual.shape(), [&](const Extents& index) {
    const double a = read(actual, index);
    const double e = read(expected, index);
    if (a == e || (std::isnan(a) && std::isnan(e))) return;
    const double allowed = tolerance.coefficient * epsilon_of(actual.dtype()) * std::max(std::abs(e), tolerance.size);
    double off = std::abs(a - e) / allowed;
    if (!std::isfinite(off)) off = std::numeric_limits<double>::infinity();
    if (off > 1) ++wrong;
    if (off <= worst) return;
    worst = off;
    report = "at " + to_string(index) + ": " + std::to_string(a) + ", expected " + std::to_string(e) + " (difference " +
             ::testing::PrintToString(a - e) + ", allowed " + ::testing::PrintToString(allowed) + ")";
  });
  if (wrong == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << wrong << " of " << actual.num_elements() << " elements are off, the worst "
                                       << report;
}

/// Equal bit for bit, signs of zeros included; any NaN equals any other.
inline ::testing::AssertionResult same_bits(const ConstTensorView& actual, const ConstTensorView& expected) {
  if (auto result = comparable(actual, expected); !result) return result;
  if (actual.dtype() != expected.dtype()) return ::testing::AssertionFailure() << "dtypes differ";
  const auto item = static_cast<std::int64_t>(size_of(actual.dtype()));
  std::int64_t wrong = 0;
  std::string report;
  for_each_index(actual.shape(), [&](const Extents& index) {
    const auto* a = static_cast<const char*>(actual.data()) + offset_of(actual, index) * item;
    const auto* e = static_cast<const char*>(expected.data()) + offset_of(expected, index) * item;
    if (std::memcmp(a, e, static_cast<std::size_t>(item)) == 0) return;
    if (std::isnan(read(actual, index)) && std::isnan(read(expected, index))) return;
    if (wrong++ > 0) return;
    report = "at " + to_string(index) + ": " + ::testing::PrintToString(read(actual, index)) + ", expected " +
             ::testing::PrintToString(read(expected, index)) + " (difference " +
             ::testing::PrintToString(read(actual, index) - read(expected, index)) + ")";
  });
  if (wrong == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << wrong << " of " << actual.num_elements() << " elements differ, the first "
                                       << report;
}

}  // namespace qkv::support

#endif  // QKV_TESTS_SUPPORT_COMPARE_H_
