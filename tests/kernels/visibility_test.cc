#include "kernels/visibility.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kernels/key_order.h"
#include "support/random.h"

namespace qkv::kernels {
namespace {

using support::Random;

constexpr std::int64_t kMost = ForwardProblem::kMostPosition;

/// The contract's rules 3 and 4 for one pair, within the limits in which 64 bits are enough.
struct Rules {
  bool causal = false;
  std::int64_t left = ForwardProblem::kUnbounded;
  std::int64_t right = ForwardProblem::kUnbounded;
  std::int64_t offset = 0;
  std::int64_t filled = 0;
  std::int64_t sinks = 0;

  bool see(std::int64_t row, std::int64_t key) const {
    const std::int64_t position = offset + row;
    if (key < 0 || key >= filled) return false;
    if (causal && key > position) return false;
    if (key < sinks) return true;
    if (left != ForwardProblem::kUnbounded && key < position - left) return false;
    return !(right != ForwardProblem::kUnbounded && key > position + right);
  }

  ForwardProblem problem(std::int64_t rows, std::int64_t keys) const {
    ForwardProblem problem;
    problem.batch = problem.num_heads = problem.num_kv_heads = 1;
    problem.q_len = rows;
    problem.kv_len = keys;
    problem.causal = causal;
    problem.window_left = left;
    problem.window_right = right;
    problem.query_offset = {offset};
    problem.kv_lens = {filled};
    problem.num_sink_keys = sinks;
    return problem;
  }

  std::string describe() const {
    return "causal " + std::to_string(causal) + " left " + std::to_string(left) + " right " + std::to_string(right) +
           " offset " + std::to_string(offset) + " filled " + std::to_string(filled) + " sinks " +
           std::to_string(sinks);
  }
};

std::vector<Rules> grid(std::int64_t keys) {
  const std::int64_t unbounded = ForwardProblem::kUnbounded;
  const std::vector<std::int64_t> sides{unbounded, 0, 1, 63, 64, 65, kMost, 4 * kMost - 1};
  std::vector<Rules> all;
  for (const bool causal : {false, true}) {
    for (const std::int64_t left : sides) {
      for (const std::int64_t right : sides) {
        for (const std::int64_t offset : {-kMost, std::int64_t{-70}, std::int64_t{-1}, std::int64_t{0}, std::int64_t{5},
                                          std::int64_t{64}, std::int64_t{130}, kMost}) {
          for (const std::int64_t filled : {std::int64_t{0}, std::int64_t{1}, std::int64_t{64}, keys}) {
            for (const std::int64_t sinks : {0, 3, 64}) all.push_back({causal, left, right, offset, filled, sinks});
          }
        }
      }
    }
  }
  return all;
}

TEST(Visibility, RowKeysAreTheKeysThatTheRulesShow) {
  constexpr std::int64_t kRows = 4;
  constexpr std::int64_t kKeys = 131;
  for (const Rules& rules : grid(kKeys)) {
    const ForwardProblem problem = rules.problem(kRows, kKeys);
    for (std::int64_t row = 0; row < kRows; ++row) {
      const RowKeys keys = row_keys(problem, 0, 0, row);
      ASSERT_EQ(keys.position, rules.offset + row) << rules.describe();
      for (std::int64_t key = 0; key < kKeys; ++key) {
        const bool in = (key >= keys.range.begin && key < keys.range.end) || key < keys.sinks;
        ASSERT_EQ(in, rules.see(row, key)) << rules.describe() << " row " << row << " key " << key;
      }
      ASSERT_GE(keys.range.begin, 0) << rules.describe();
      ASSERT_LE(keys.range.end, rules.filled) << rules.describe();
    }
  }
}

TEST(Visibility, RangeOfRowsIsTheUnionOfTheirs) {
  constexpr std::int64_t kRows = 70;
  constexpr std::int64_t kKeys = 131;
  for (const Rules& rules : grid(kKeys)) {
    const ForwardProblem problem = rules.problem(kRows, kKeys);
    for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, kRows}, {3, 9}, {69, 70}, {5, 5}}) {
      KeyRange expected{std::numeric_limits<std::int64_t>::max(), 0};
      for (std::int64_t row = begin; row < end; ++row) {
        const RowKeys keys = row_keys(problem, 0, 0, row);
        const KeyRange range = keys.range;
        if (range.empty()) continue;
        expected.begin = std::min(expected.begin, keys.begin());
        expected.end = std::max(expected.end, range.end);
      }
      const KeyRange range = rows_span(problem, 0, begin, end).range;
      if (expected.end == 0) {
        ASSERT_TRUE(range.empty()) << rules.describe();
        continue;
      }
      ASSERT_EQ(range.begin, expected.begin) << rules.describe() << " rows " << begin << ".." << end;
      ASSERT_EQ(range.end, expected.end) << rules.describe() << " rows " << begin << ".." << end;
    }
  }
}

TEST(Visibility, AHoleOfASpanHoldsNoKeyThatARowSees) {
  constexpr std::int64_t kKeys = 5000;
  for (const std::int64_t sinks : {1, 255, 256, 257, 600}) {
    for (const std::int64_t left : {0, 100, 255, 256, 1000, 4900}) {
      for (const std::int64_t offset : {-3, 0, 700, 1023, 1024, 1025, 4000, 4990}) {
        const Rules rules{.causal = true, .left = left, .offset = offset, .filled = kKeys, .sinks = sinks};
        const ForwardProblem problem = rules.problem(10, kKeys);
        const KeySpan span = rows_span(problem, 0, 0, 10);
        ASSERT_EQ(span.hole.begin % kKeyBlock, 0);
        ASSERT_EQ(span.hole.end % kKeyBlock, 0);
        std::int64_t index = 0;
        for (std::int64_t key = span.range.begin; key < span.range.end; ++key) {
          const bool in_hole = key >= span.hole.begin && key < span.hole.end;
          bool seen = false;
          for (std::int64_t row = 0; row < 10; ++row) seen |= rules.see(row, key);
          ASSERT_FALSE(seen && in_hole) << rules.describe() << " key " << key;
          if (in_hole) continue;
          ASSERT_EQ(span.index_of(key), index) << rules.describe() << " key " << key;
          ASSERT_EQ(span.key_at(index), key) << rules.describe();
          ++index;
        }
        ASSERT_EQ(span.size(), index) << rules.describe();
        const bool far = offset - left > sinks + 2 * kKeyBlock;
        ASSERT_EQ(far, far && !span.hole.empty()) << rules.describe();
      }
    }
  }
}

TEST(Visibility, EachBatchHasItsOwnOffsetAndLength) {
  ForwardProblem problem = Rules{.causal = true}.problem(2, 100);
  problem.batch = 2;
  problem.query_offset = {10, 90};
  problem.kv_lens = {100, 50};
  EXPECT_EQ(row_keys(problem, 0, 0, 1).range.end, 12);
  EXPECT_EQ(row_keys(problem, 1, 0, 1).range.end, 50);
  EXPECT_EQ(rows_span(problem, 0, 0, 2).range.end, 12);
  EXPECT_EQ(rows_span(problem, 1, 0, 2).range.end, 50);
}

TEST(Visibility, WordsOfARangeWithoutMask) {
  for (const std::int64_t begin : {0, 1, 63, 64, 65, 127, 128, 150}) {
    for (const std::int64_t end : {0, 1, 63, 64, 65, 127, 128, 150, 192}) {
      RowKeys row;
      row.range = {begin, end};
      for (std::int64_t base = 0; base < 256; base += kWordKeys) {
        const std::uint64_t word = visible_word(row, base);
        for (std::int64_t j = 0; j < kWordKeys; ++j) {
          const bool expected = base + j >= begin && base + j < end;
          ASSERT_EQ((word >> j & 1) != 0, expected) << begin << " " << end << " key " << base + j;
        }
      }
    }
  }
}

/// Bytes of a mask, some of them true by an odd value, with canaries of 1 around that no word may show.
class MaskBytes {
 public:
  MaskBytes(std::int64_t keys, std::int64_t stride, Random& random) : stride_(stride) {
    static constexpr std::uint8_t kValues[] = {0, 0, 0, 1, 1, 2, 4, 0x40, 0x7f, 0x80, 0x81, 0xfe, 0xff};
    const std::int64_t reach = std::max<std::int64_t>(0, keys - 1) * (stride < 0 ? -stride : stride);
    bytes_.assign(static_cast<std::size_t>(reach + 1 + 2 * kGuard), 1);
    first_ = stride < 0 ? kGuard + reach : kGuard;
    for (std::int64_t j = 0; j < keys; ++j) {
      bytes_[static_cast<std::size_t>(first_ + j * stride)] = kValues[random.integer(0, std::size(kValues) - 1)];
    }
  }
  RowKeys row(KeyRange range) const {
    RowKeys row;
    row.range = range;
    row.mask = bytes_.data() + first_;
    row.mask_stride = stride_;
    return row;
  }
  bool truth(std::int64_t key) const { return bytes_[static_cast<std::size_t>(first_ + key * stride_)] != 0; }

 private:
  static constexpr std::int64_t kGuard = 16;
  std::int64_t stride_;
  std::int64_t first_ = 0;
  std::vector<std::uint8_t> bytes_;
};

TEST(Visibility, WordsOfAMaskOfAnyStrideAndAnyTruth) {
  Random random(77);
  for (const std::int64_t stride : {0, 1, 3, -1, -2, 64}) {
    for (const std::int64_t keys : {1, 7, 8, 9, 63, 64, 65, 131}) {
      const MaskBytes mask(keys, stride, random);
      for (const std::int64_t begin : {0, 1, 5, 8, 60, 64, 70}) {
        for (const std::int64_t end : {keys, keys - 1, keys - 9, std::int64_t{64}}) {
          if (begin > keys || end > keys || end < 0) continue;
          const RowKeys row = mask.row({begin, end});
          for (std::int64_t base = 0; base < 192; base += kWordKeys) {
            const std::uint64_t word = visible_word(row, base);
            for (std::int64_t j = 0; j < kWordKeys; ++j) {
              const std::int64_t key = base + j;
              const bool expected = key >= begin && key < end && mask.truth(key);
              ASSERT_EQ((word >> j & 1) != 0, expected)
                  << "stride " << stride << " range " << begin << ".." << end << " key " << key;
            }
          }
        }
      }
    }
  }
}

TEST(Visibility, AMaskByteOfEachValueIsTrueUnlessZero) {
  constexpr std::int64_t kKeys = 29;  // sixteen at a time, eight at a time, one by one
  for (int value = 0; value < 256; ++value) {
    for (std::int64_t at = 0; at < kKeys; ++at) {
      std::vector<std::uint8_t> bytes(kKeys, 0);
      bytes[static_cast<std::size_t>(at)] = static_cast<std::uint8_t>(value);
      RowKeys row;
      row.range = {0, kKeys};
      row.mask = bytes.data();
      row.mask_stride = 1;
      ASSERT_EQ(visible_word(row, 0), value == 0 ? 0 : std::uint64_t{1} << at) << value << " at " << at;
    }
  }
}

TEST(Visibility, TheMaskOfARowIsFoundByBatchHeadAndRow) {
  ForwardProblem problem = Rules{.filled = 10}.problem(3, 10);
  problem.batch = 2;
  problem.query_offset = {0, 0};
  problem.kv_lens = {10, 10};
  std::vector<std::uint8_t> bytes(1000);
  problem.mask = {bytes.data(), Dtype::kBool, 300, 100, 10, 2};
  EXPECT_EQ(row_keys(problem, 1, 2, 2).mask, bytes.data() + 300 + 200 + 20);
  EXPECT_EQ(row_keys(problem, 1, 2, 2).mask_stride, 2);
}

}  // namespace
}  // namespace qkv::kernels
