// The exponential of the kernels, on every instruction set that they are built for.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/exp2_test.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets the target of each pass.
#include "hwy/highway.h"
#include "kernels/exp2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

/// In place; count is a multiple of 16.
void exp2_all(float* numbers, std::size_t count) {
  for (std::size_t i = 0; i < count; i += kLanes) {
    hn::StoreU(exp2_nonpositive(hn::LoadU(kF32, numbers + i)), kF32, numbers + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "support/built_target.h"

namespace qkv::kernels {
namespace {

HWY_EXPORT(exp2_all);

class Exp2 : public support::OnBuiltTarget {
 protected:
  static std::vector<float> exp2_of(std::vector<float> numbers) {
    const std::size_t count = numbers.size();
    numbers.resize((count + 15) / 16 * 16);
    HWY_DYNAMIC_DISPATCH(exp2_all)(numbers.data(), numbers.size());
    numbers.resize(count);
    return numbers;
  }
  static float exp2_of(float number) { return exp2_of(std::vector<float>{number})[0]; }
};

TEST_P(Exp2, IsWithinItsStatedError) {
  constexpr double kStated = 1.8e-7;
  std::vector<float> numbers;
  for (double x = -126; x <= 64; x += 1.0 / 4099) numbers.push_back(static_cast<float>(x));
  for (float x = 1e-20f; x < 64; x *= 1.0037f) {
    numbers.push_back(x);
    numbers.push_back(-x);
  }
  for (int whole = -126; whole <= 63; ++whole) {  // the ends of the polynomial
    const float half = static_cast<float>(whole) + 0.5f;
    for (const float x : {half, std::nextafter(half, -200.0f), std::nextafter(half, 200.0f)}) numbers.push_back(x);
  }
  const std::vector<float> actual = exp2_of(numbers);
  double worst = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double exact = std::exp2(static_cast<double>(numbers[i]));
    if (exact < 0x1p-126) continue;
    worst = std::max(worst, std::abs(static_cast<double>(actual[i]) / exact - 1));
    ASSERT_LT(worst, kStated) << "at " << numbers[i];
  }
}

TEST_P(Exp2, IsExactAtWholeNumbers) {
  EXPECT_EQ(exp2_of(0.0f), 1.0f);
  EXPECT_EQ(exp2_of(-0.0f), 1.0f);
  for (int whole = -126; whole <= 64; ++whole) {
    EXPECT_EQ(exp2_of(static_cast<float>(whole)), std::ldexp(1.0f, whole)) << whole;
  }
}

TEST_P(Exp2, EndsInARoundedDenormalAndThenZero) {
  for (double x = -126.499; x < -126; x += 0.0137) {
    const auto number = static_cast<float>(x);
    EXPECT_NEAR(exp2_of(number), std::exp2(static_cast<double>(number)), 0x1p-126 * 1.8e-7 + 0x1p-150) << number;
  }
  for (const float x : {-126.51f, -127.0f, -149.0f, -1000.0f, -1e10f, -1e38f, std::numeric_limits<float>::lowest(),
                        -std::numeric_limits<float>::infinity()}) {
    const float result = exp2_of(x);
    EXPECT_EQ(result, 0.0f) << x;
    EXPECT_FALSE(std::signbit(result)) << x;
  }
}

TEST_P(Exp2, KeepsNaNOfAnyPayload) {
  for (std::uint32_t payload = 1; payload < 0x800000; payload = payload * 3 + 1) {
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const float nan = std::bit_cast<float>(0x7f800000u | payload | sign);
      EXPECT_TRUE(std::isnan(exp2_of(nan))) << std::hex << payload;
    }
  }
  // The low bits become an exponent: each of its 256 values, with both signs, must not make a number of NaN.
  for (std::uint32_t low = 0; low < 512; ++low) {
    EXPECT_TRUE(std::isnan(exp2_of(std::bit_cast<float>(0x7fc00000u | low)))) << low;
    EXPECT_TRUE(std::isnan(exp2_of(std::bit_cast<float>(0xffc00000u | low)))) << low;
  }
}

INSTANTIATE_TEST_SUITE_P(On, Exp2, ::testing::ValuesIn(support::built_targets()), support::built_target_name);

}  // namespace
}  // namespace qkv::kernels
#endif  // HWY_ONCE
