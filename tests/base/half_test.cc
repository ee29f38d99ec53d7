#include "qkv/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "qkv/tensor.h"

namespace qkv {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

template <class T>
T from_bits(int bits) {
  T x;
  x.bits = static_cast<std::uint16_t>(bits);
  return x;
}

/// What the bits mean, by the definition of a binary format: an oracle that rounds nothing.
double meaning(int bits, int fraction_bits) {
  const int exponent_bits = 15 - fraction_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = (bits & 0x7fff) >> fraction_bits;
  const double fraction = std::ldexp(bits & ((1 << fraction_bits) - 1), -fraction_bits);
  if (exponent == (1 << exponent_bits) - 1) return fraction != 0 ? std::nan("") : sign * kInf;
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias));
}

template <class T>
struct Half : ::testing::Test {};
struct BFloat16Format {
  using Type = BFloat16;
  static constexpr int kFractionBits = 7;
};
struct Float16Format {
  using Type = Float16;
  static constexpr int kFractionBits = 10;
};
using Formats = ::testing::Types<BFloat16Format, Float16Format>;
TYPED_TEST_SUITE(Half, Formats);

TYPED_TEST(Half, EveryPatternMeansWhatTheFormatSays) {
  using T = typename TypeParam::Type;
  for (int bits = 0; bits < 65536; ++bits) {
    const double expected = meaning(bits, TypeParam::kFractionBits);
    const auto actual = static_cast<double>(from_bits<T>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual)) << bits;
      ASSERT_TRUE(std::isnan(static_cast<double>(T(actual)))) << bits;
      continue;
    }
    ASSERT_EQ(actual, expected) << bits;
    ASSERT_EQ(std::signbit(actual), std::signbit(expected)) << bits;
    ASSERT_EQ(T(expected).bits, bits) << "an exact number is changed";
  }
}

TYPED_TEST(Half, RoundsToTheNearestWithTiesToEven) {
  using T = typename TypeParam::Type;
  for (int bits = 0; bits < 0x7fff; ++bits) {
    const double low = meaning(bits, TypeParam::kFractionBits);
    const double high = meaning(bits + 1, TypeParam::kFractionBits);
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const double middle = (low + high) / 2;  // exact
    const int even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(T(middle).bits, even) << bits;
    // As near to the middle as double comes: an intermediate float would land on it, and round a second time.
    ASSERT_EQ(T(std::nextafter(middle, -kInf)).bits, bits) << bits;
    ASSERT_EQ(T(std::nextafter(middle, kInf)).bits, bits + 1) << bits;
    ASSERT_EQ(T(-middle).bits, even | 0x8000) << bits;
  }
}

TEST(Float16, EndsAt65504) {
  EXPECT_EQ(static_cast<double>(Float16(65504)), 65504);
  EXPECT_EQ(static_cast<double>(Float16(65519.999)), 65504);
  EXPECT_EQ(static_cast<double>(Float16(65520)), kInf);
  EXPECT_EQ(static_cast<double>(Float16(-1e300)), -kInf);
  EXPECT_EQ(Float16(1e-300).bits, 0);
  EXPECT_EQ(Float16(-1e-300).bits, 0x8000);
}

TEST(BFloat16, EndsWhereFloatEnds) {
  EXPECT_EQ(BFloat16(static_cast<double>(std::numeric_limits<float>::max())).bits, 0x7f80);
  EXPECT_EQ(BFloat16(3.39e38).bits, 0x7f7f);
  EXPECT_EQ(static_cast<double>(BFloat16(133120)), 133120);
  EXPECT_EQ(BFloat16(-kInf).bits, 0xff80);
}

TEST(HalfViews, HaveADtype) {
  std::vector<BFloat16> numbers(6);
  EXPECT_EQ(view(numbers.data(), {2, 3}).dtype(), Dtype::kBFloat16);
  std::vector<Float16> others(6);
  EXPECT_EQ(view(others.data(), {2, 3}).dtype(), Dtype::kFloat16);
  EXPECT_EQ(sizeof(BFloat16), 2U);
  EXPECT_EQ(sizeof(Float16), 2U);
}

}  // namespace
}  // namespace qkv
