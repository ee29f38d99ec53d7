// Numbers rounded to 16 bits, on every instruction set that it is built for: once, whatever they come from.
#include "kernels/narrow.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "qkv/half.h"
#include "support/built_target.h"
#include "support/random.h"

namespace qkv::kernels {
namespace {

class Narrow : public support::OnBuiltTarget {};

/// Ties of 16 bits and what lies a little beside them, ends of ranges, and numbers of every size.
std::vector<double> hard_numbers() {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  std::vector<double> numbers{0.0, kInf, 65504, 65519.99999, 65520, 3e38, 3.4e38, 3.5e38, 1e300, 1e-300, 0x1p-1074};
  support::Random random(1);
  for (int i = 0; i < 4000; ++i) {
    const auto exponent = static_cast<int>(random.integer(-150, 130));
    const double tie = std::ldexp(static_cast<double>(random.integer(1, 1 << 13)), exponent - 12);
    for (const double beside : {0.0, 0x1p-20, 0x1p-29, 0x1p-30, 0x1p-51, -0x1p-30, -0x1p-51}) {
      numbers.push_back(tie * (1 + beside));
    }
  }
  const std::size_t count = numbers.size();
  for (std::size_t i = 0; i < count; ++i) numbers.push_back(-numbers[i]);
  return numbers;
}

template <class T>
void expect_rounded_once(const std::vector<double>& numbers) {
  std::vector<T> rounded(numbers.size());
  narrow(numbers.data(), static_cast<std::int64_t>(numbers.size()), rounded.data());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    ASSERT_EQ(rounded[i].bits, T(numbers[i]).bits) << std::hexfloat << numbers[i];
  }
}

TEST_P(Narrow, RoundsDoublesOnce) {
  expect_rounded_once<BFloat16>(hard_numbers());
  expect_rounded_once<Float16>(hard_numbers());
}

TEST_P(Narrow, TakesEveryCount) {
  support::Random random(2);
  for (std::size_t count = 0; count < 40; ++count) {
    std::vector<double> numbers(count);
    for (double& x : numbers) x = random.normal();
    expect_rounded_once<BFloat16>(numbers);
    expect_rounded_once<Float16>(numbers);
  }
}

TEST_P(Narrow, KeepsNaNWhoseBitsAreAllAtTheEnd) {
  const std::uint64_t bits = 0x7ff0000000000001U;
  std::vector<double> numbers(17, 1.0);
  std::memcpy(&numbers[3], &bits, sizeof bits);
  std::vector<BFloat16> brain(numbers.size());
  std::vector<Float16> half(numbers.size());
  narrow(numbers.data(), 17, brain.data());
  narrow(numbers.data(), 17, half.data());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(std::isnan(static_cast<float>(brain[i])), i == 3);
    EXPECT_EQ(std::isnan(static_cast<float>(half[i])), i == 3);
  }
}

INSTANTIATE_TEST_SUITE_P(On, Narrow, ::testing::ValuesIn(support::built_targets()), support::built_target_name);

}  // namespace
}  // namespace qkv::kernels
