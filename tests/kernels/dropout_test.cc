// The words of dropout, on every instruction set that they are built for, against the definition in docs/op/dropout.md.
#include "kernels/dropout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dropout_test.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets the target of each pass.
#include "hwy/highway.h"
#include "kernels/dropout-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

std::uint64_t word_of(const RowDropout& row, std::int64_t base) { return kept_bits(row, base); }

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "support/built_target.h"
#include "support/random.h"

namespace qkv::kernels {
namespace {

HWY_EXPORT(word_of);

using support::Random;

/// Whether a key is kept, as the definition has it: p as a threshold of 32 bits.
bool kept(std::uint64_t seed, std::uint32_t batch, std::uint32_t head, std::int64_t position, std::int64_t key,
          std::uint64_t threshold) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x & 0xffffffff); };
  const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  const auto at = static_cast<std::uint64_t>(position);
  const Philox::Counter r = Philox::words({low(at), high(at), head, batch}, {low(seed), high(seed)}, 10);
  const auto word = static_cast<std::uint64_t>(key) / 64;
  const std::uint64_t i = static_cast<std::uint64_t>(key) % 64 / 16;
  const std::uint64_t c = static_cast<std::uint64_t>(key) % 16;
  const Philox::Counter x = Philox::words({low(16 * word + c), high(16 * word + c), r[2], r[3]}, {r[0], r[1]}, 7);
  return x[static_cast<std::size_t>(i)] >= threshold;
}

ForwardProblem problem_of(double p, std::uint64_t seed) {
  ForwardProblem problem;
  problem.dropout = p;
  problem.seed = seed;
  return problem;
}

constexpr std::int64_t kMost = ForwardProblem::kMostPosition;

/// Keys below and above what 32 bits of a counter hold, and the last there may be.
const std::vector<std::int64_t>& bases() {
  static const std::vector<std::int64_t> all{
      0, 64, 128, 4096, (std::int64_t{1} << 34) - 64, std::int64_t{1} << 34, std::int64_t{1} << 40, kMost - 64};
  return all;
}

TEST(Dropout, WordsAreThoseOfTheDefinition) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const double p = random.uniform();
    const std::uint64_t key = random.bits();
    ForwardProblem problem = problem_of(p, key);
    problem.first_batch = random.integer(0, 5);
    const std::int64_t batch = random.integer(0, 1000);
    const std::int64_t head = random.integer(0, 1000);
    const std::int64_t position = random.chance(0.5) ? random.integer(-100, 100) : random.integer(-kMost, kMost);
    const RowDropout row = row_dropout(problem, batch, head, position);
    const auto threshold = static_cast<std::uint64_t>(std::floor(p * 4294967296.0 + 0.5));
    for (const std::int64_t base : bases()) {
      const std::uint64_t word = kept_word(row, base);
      for (std::int64_t j = 0; j < 64; ++j) {
        const bool expected = kept(key, static_cast<std::uint32_t>(problem.first_batch + batch),
                                   static_cast<std::uint32_t>(head), position, base + j, threshold);
        ASSERT_EQ((word >> j & 1) != 0, expected) << "key " << base + j;
      }
    }
  }
}

TEST(Dropout, ThresholdsAreRoundedAndReachBothEnds) {
  const auto threshold = [](double p) { return row_dropout(problem_of(p, 1), 0, 0, 0).threshold; };
  EXPECT_EQ(threshold(0.5), std::uint64_t{1} << 31);
  EXPECT_EQ(threshold(0.1), 429496730U);  // 429496729.6
  EXPECT_EQ(threshold(1), std::uint64_t{1} << 32);
  EXPECT_EQ(threshold(0x1p-40), 0U);
  EXPECT_EQ(threshold(0x1p-33), 1U);
  EXPECT_EQ(kept_word(row_dropout(problem_of(1, 1), 0, 0, 0), 0), 0U);
  EXPECT_EQ(kept_word(row_dropout(problem_of(1e-12, 1), 0, 0, 0), 0), ~std::uint64_t{0});
}

TEST(Dropout, EachPartOfItsKeyMatters) {
  ForwardProblem problem = problem_of(0.5, 7);
  const auto word = [&](std::int64_t batch, std::int64_t head, std::int64_t position, std::int64_t base) {
    return kept_word(row_dropout(problem, batch, head, position), base);
  };
  const std::uint64_t first = word(1, 2, 3, 64);
  EXPECT_NE(word(2, 2, 3, 64), first);
  EXPECT_NE(word(1, 3, 3, 64), first);
  EXPECT_NE(word(1, 2, 4, 64), first);
  EXPECT_NE(word(1, 2, 3 + (std::int64_t{1} << 32), 64), first);
  EXPECT_NE(word(1, 2, 3, 128), first);
  EXPECT_NE(word(1, 2, 3, 64 + (std::int64_t{1} << 36)), first);
  EXPECT_NE(word(2, 1, 3, 64), first);
  problem.seed += std::uint64_t{1} << 32;
  EXPECT_NE(word(1, 2, 3, 64), first);
  problem.seed = 7;
  problem.first_batch = 1;
  EXPECT_EQ(word(0, 2, 3, 64), first);
}

class DropoutWords : public support::OnBuiltTarget {};

TEST_P(DropoutWords, OfVectorsAreTheSame) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const double p = random.chance(0.1) ? 1 : random.uniform();
    const RowDropout row = row_dropout(problem_of(p, random.bits()), random.integer(0, 3), random.integer(0, 20),
                                       random.integer(-10, 5000));
    for (const std::int64_t base : bases()) {
      ASSERT_EQ(HWY_DYNAMIC_DISPATCH(word_of)(row, base), kept_word(row, base)) << p << " key " << base;
    }
  }
}

TEST_P(DropoutWords, ComparesNumbersWithoutASign) {
  // Thresholds at the ends of 32 bits, and where a sign would be.
  RowDropout row = row_dropout(problem_of(0.5, 3), 0, 0, 0);
  for (const std::uint64_t threshold :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{0x7fffffff}, std::uint64_t{0x80000000},
        std::uint64_t{0x80000001}, std::uint64_t{0xffffffff}, std::uint64_t{1} << 32}) {
    row.threshold = threshold;
    for (std::int64_t base = 0; base < 6400; base += 64) {
      ASSERT_EQ(HWY_DYNAMIC_DISPATCH(word_of)(row, base), kept_word(row, base)) << threshold;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(On, DropoutWords, ::testing::ValuesIn(support::built_targets()), support::built_target_name);

}  // namespace
}  // namespace qkv::kernels
#endif  // HWY_ONCE
