#ifndef QKV_TESTS_REFERENCE_BY_HAND_H_
#define QKV_TESTS_REFERENCE_BY_HAND_H_

#include <gtest/gtest.h>

#include <initializer_list>

#include "qkv/attention.h"
#include "support/attend.h"
#include "support/compare.h"
#include "support/elements.h"

namespace qkv {

using support::attend;
using support::close;
using support::kInf;
using support::kNaN;
using support::Results;
using support::tensor_of;
using support::Tolerance;

inline constexpr Dtype kF64 = Dtype::kFloat64;
/// A handful of operations in double, each rounded once.
inline constexpr Tolerance kByHand{.coefficient = 8};

/// The numbers of an output, in row-major order; a single one stands for all.
inline void expect_numbers(const ConstTensorView& actual, std::initializer_list<double> expected,
                           const Tolerance& tolerance = kByHand) {
  EXPECT_TRUE(close(actual, tensor_of(actual.shape(), actual.dtype(), expected), tolerance));
}

}  // namespace qkv

#endif  // QKV_TESTS_REFERENCE_BY_HAND_H_
