// Which weights dropout takes, and what it makes of a row.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "qkv/varlen.h"
#include "support/draw_dropout.h"
#include "support/kept.h"
#include "support/on_target.h"

namespace qkv::support {
namespace {

class DropoutCases : public OnTarget {
 protected:
  /// Which weights are kept, read off a call whose row i has equal weights and whose V is the unit matrix.
  Tensor kept_keys(const Extents& rows, std::int64_t keys, const AttentionOptions& options) const {
    const Tensor q = tensor({rows[0], rows[1], rows[2], 4}, {0});
    const Tensor k = tensor({1, 1, keys, 4}, {0});
    Tensor v({1, 1, keys, keys}, dtype());
    for_each_index(v.shape(), [&](const Extents& at) { write(v, at, at[2] == at[3] ? 1 : 0); });
    const ConstTensorView all_k = static_cast<ConstTensorView>(k).broadcast_to({rows[0], 1, keys, 4});
    const ConstTensorView all_v = static_cast<ConstTensorView>(v).broadcast_to({rows[0], 1, keys, keys});
    Tensor out({rows[0], rows[1], rows[2], keys}, dtype());
    attention(q, all_k, all_v, out, options);
    return out;
  }
};

TEST_P(DropoutCases, KeepsAShareOfWeightsThatNothingTies) {
  constexpr std::int64_t kBatch = 2, kHeads = 3, kRows = 40, kKeys = 700;  // more than 512 columns: two passes
  for (const double p : {0.1, 0.5, 0.85}) {
    SCOPED_TRACE(p);
    const AttentionOptions options{.dropout = {.p = p, .seed = 12345}};
    const Tensor out = kept_keys({kBatch, kHeads, kRows}, kKeys, options);
    const double share = 1.0 / static_cast<double>(kKeys) / (1 - p);
    std::vector<double> bits;  // deviations of 0 or 1 from their mean
    for_each_index(out.shape(), [&](const Extents& at) {
      const double x = read(out, at);
      if (x != 0) {
        EXPECT_NEAR(x, share, kFewSteps * epsilon() * share) << to_string(at);
      }
      bits.push_back((x != 0 ? 1 : 0) - (1 - p));
    });
    const auto count = static_cast<double>(bits.size());
    double sum = 0;
    for (const double bit : bits) sum += bit;
    const double variance = p * (1 - p);
    EXPECT_LT(std::abs(sum), 5 * std::sqrt(count * variance)) << "the share that is kept";
    // Neighbours along each axis, the places of one counter, words of 64 keys, and blocks of 256.
    for (const std::int64_t distance : {std::int64_t{1}, std::int64_t{16}, std::int64_t{64}, std::int64_t{256}, kKeys,
                                        kRows * kKeys, kHeads * kRows * kKeys}) {
      double product = 0;
      for (std::size_t i = 0; i + static_cast<std::size_t>(distance) < bits.size(); ++i) {
        product += bits[i] * bits[i + static_cast<std::size_t>(distance)];
      }
      EXPECT_LT(std::abs(product), 5 * std::sqrt(count) * variance) << "what lies " << distance << " apart is tied";
    }
  }
}

TEST_P(DropoutCases, AnotherSeedDropsOthers) {
  const auto kept = [&](std::uint64_t seed) {
    return kept_keys({1, 1, 8}, 256, {.dropout = {.p = 0.5, .seed = seed}});
  };
  const Tensor first = kept(1);
  EXPECT_TRUE(same_bits(kept(1), first));
  for (const std::uint64_t seed : {std::uint64_t{2}, std::uint64_t{1} << 32 | 1, std::uint64_t{1} << 63 | 1}) {
    const Tensor other = kept(seed);
    std::int64_t same = 0;
    for_each_index(first.shape(), [&](const Extents& at) { same += (read(first, at) != 0) == (read(other, at) != 0); });
    EXPECT_NEAR(static_cast<double>(same), 1024, 5 * std::sqrt(2048 * 0.25)) << seed;
  }
}

TEST_P(DropoutCases, GoesByPositionsWhateverIsVisible) {
  // The rows of 30 positions from 70 on, in calls that see other keys: a mask, a window, causal, other lengths.
  const auto kept = [&](AttentionOptions options, std::int64_t keys) {
    options.query_offset = 70;
    options.dropout = {.p = 0.4, .seed = 99};
    return kept_keys({1, 2, 30}, keys, options);
  };
  const Tensor whole = kept({}, 200);
  Tensor mask = random_.bool_tensor({30, 200}, 0.6);
  const std::vector<std::pair<Tensor, std::string>> others = [&] {
    std::vector<std::pair<Tensor, std::string>> all;
    all.emplace_back(kept({.causal = true}, 200), "causal");
    all.emplace_back(kept({.window = {.left = 9, .right = 70}}, 200), "window");
    all.emplace_back(kept({.mask = mask.view()}, 200), "mask");
    all.emplace_back(kept({}, 131), "fewer keys");
    return all;
  }();
  for (const auto& [other, name] : others) {
    SCOPED_TRACE(name);
    std::int64_t shown = 0;
    for_each_index(other.shape(), [&](const Extents& at) {
      const std::int64_t position = 70 + at[2];
      const bool visible = (name != "causal" || at[3] <= position) &&
                           (name != "window" || (at[3] >= position - 9 && at[3] <= position + 70)) &&
                           (name != "mask" || read(mask, {at[2], at[3]}) != 0);
      const bool expected = visible && read(whole, at) != 0;
      ASSERT_EQ(read(other, at) != 0, expected) << to_string(at);
      shown += expected;
    });
    EXPECT_GT(shown, 500);
  }
}

TEST_P(DropoutCases, ARowThatSeesOneKeyIsItsValueOrZero) {
  constexpr std::int64_t kRows = 200, kColumns = 20;
  const double p = 0.3;
  const Tensor q = normal({1, 1, kRows, 8});
  const Tensor k = normal({1, 1, kRows, 8});
  const Tensor v = normal({1, 1, kRows, kColumns});
  Tensor out(v.shape(), dtype());
  attention(q, k, v, out, {.window = {.left = 0, .right = 0}, .dropout = {.p = p, .seed = 5}});
  std::int64_t kept = 0;
  for (std::int64_t i = 0; i < kRows; ++i) {
    const bool is_kept = read(out, {0, 0, i, 0}) != 0;
    kept += is_kept;
    for (std::int64_t c = 0; c < kColumns; ++c) {
      const double expected = is_kept ? read(v, {0, 0, i, c}) / (1 - p) : 0;
      ASSERT_NEAR(read(out, {0, 0, i, c}), expected, kOneStep * epsilon() * std::abs(expected)) << i;
    }
  }
  EXPECT_NEAR(static_cast<double>(kept), kRows * (1 - p), 5 * std::sqrt(kRows * p * (1 - p)));
}

TEST_P(DropoutCases, NeverHidesAVisibleNaN) {
  constexpr std::int64_t kRows = 9, kKeys = 150, kColumns = 21;
  const Tensor q = normal({1, 1, kRows, 12});
  const Tensor k = normal({1, 1, kKeys, 12});
  Tensor v = normal({1, 1, kKeys, kColumns});
  for (const double p : {0.5, 1.0}) {
    SCOPED_TRACE(p);
    // Rows 0..3 do not see key 70; its column 3 reaches the others, whether or not its weight is dropped.
    Tensor mask = tensor_of({kRows, kKeys}, Dtype::kBool, {1});
    for (std::int64_t i = 0; i < 4; ++i) write(mask, {i, 70}, 0);
    const AttentionOptions options{.mask = mask.view(), .dropout = {.p = p, .seed = 8}};
    const Results clean = run(q, k, v, options, {.matrices = false});
    for (const double poison : {kNaN, kInf}) {
      const double before = read(v, {0, 0, 70, 3});
      write(v, {0, 0, 70, 3}, poison);
      const Results poisoned = run(q, k, v, options, {.matrices = false});
      write(v, {0, 0, 70, 3}, before);
      std::int64_t infinite = 0;
      for_each_index(poisoned.out.shape(), [&](const Extents& at) {
        const double x = read(poisoned.out, at);
        if (at[2] < 4 || at[3] != 3) {
          ASSERT_EQ(x, read(clean.out, at)) << to_string(at);
        } else {
          ASSERT_FALSE(std::isfinite(x)) << to_string(at);
          infinite += std::isinf(x);
        }
      });
      if (std::isnan(poison) || p == 1) {
        EXPECT_EQ(infinite, 0) << "0 times infinity is NaN";
      }
    }
    const Tensor bad_q = tensor({1, 1, kRows, 12}, {kNaN});
    EXPECT_TRUE(row_is_nan(run(bad_q, k, v, options, {.matrices = false}).out, {0, 0, 5}));
  }
}

/// Of numbers that 16 bits cannot hold.
class DropoutOfLargeNumbers : public DropoutCases {};

TEST_P(DropoutOfLargeNumbers, RowsThatLeaveFloat32HaveIt) {
  // Logits of 1e39 and a scale that brings them back: rows of the double kernel.
  const Tensor q = normal({1, 2, 5, 6}, 1e20);
  const Tensor k = normal({1, 1, 90, 6}, 1e19);
  expect_as_reference(q, k, normal({1, 1, 90, 17}), {.scale = 1e-39, .dropout = {.p = 0.2, .seed = 4}});
}

TEST_P(DropoutOfLargeNumbers, ColumnsThatLeaveFloat32HaveIt) {
  const Tensor q = normal({1, 2, 5, 6}, 0.1);
  const Tensor k = normal({1, 1, 90, 6}, 0.1);
  Tensor v({1, 1, 90, 17}, dtype());
  for_each_index(v.shape(), [&](const Extents& at) { write(v, at, random_.uniform(1e38, 2e38)); });
  const AttentionOptions options{.dropout = {.p = 0.1, .seed = 4}};
  expect_as_reference(q, k, v, options, {.matrices = false});
  const Results all = run(q, k, v, options, {.matrices = false});
  EXPECT_TRUE(row_is_finite(all.out, {0, 1, 4}));
}

TEST_P(DropoutCases, CutsLongRowsIntoChunksWithoutAChange) {
  // A few rows over more than a chunk of 4096 keys: pieces of a row on several threads.
  const Tensor q = normal({1, 2, 2, 16});
  const Tensor k = normal({1, 1, 9000, 16});
  const Tensor v = normal({1, 1, 9000, 24});
  const AttentionOptions options{.dropout = {.p = 0.25, .seed = 31}};
  const auto with_threads = [&](int threads) {
    const ThreadScope scope(threads);
    return run(q, k, v, options, {.matrices = false});
  };
  const Results one = with_threads(1);
  for (const int threads : {2, 3, 8}) expect_same_bits(with_threads(threads), one);
  expect_as_reference(q, k, v, options, {.matrices = false});
}

TEST_P(DropoutCases, IsTheSameOverACache) {
  for (const Keeping keeping : {Keeping::kSlots, Keeping::kPages, Keeping::kRing}) {
    for (std::uint64_t seed = 1; seed <= (kSanitized ? 6U : 15U) && !HasFailure(); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " keeping " + std::to_string(static_cast<int>(keeping)));
      Random random(seed);
      Call call = draw_call(random, dtype(), 300);
      if (keeping == Keeping::kRing) call.options.window.left = random.integer(0, 40);
      call.options.dropout = draw_dropout(random);
      const bool whole = is_f32() && call.k->dtype() == dtype() && call.v->dtype() == dtype() && random.chance(0.5);
      const Kept kept = KeptMaker(random, call, keeping).make(whole, whole);
      AttentionOptions options = call.full_options();
      options.kv_lens.reset();
      Guarded out({call.batch, call.num_heads, call.q_len, call.value_dim}, dtype());
      attention(*call.q, kept.view(), out, options);
      window_to_mask(call, kept);
      EXPECT_TRUE(same_bits(out, *support::run(call)));
    }
  }
}

/// A batch of equal sequences as a ragged one: [batch * length, heads, dim].
Tensor end_to_end(const ConstTensorView& dense) {
  Tensor ragged({dense.extent(0) * dense.extent(2), dense.extent(1), dense.extent(3)}, dense.dtype());
  for_each_index(dense.shape(), [&](const Extents& at) {
    write(ragged, {at[0] * dense.extent(2) + at[2], at[1], at[3]}, read(dense, at));
  });
  return ragged;
}

TEST_P(DropoutCases, TakesTheNumberOfASegmentForItsBatch) {
  constexpr std::int64_t kSegments = 4, kRows = 21, kKeys = 70;
  const Tensor q = normal({kSegments, 4, kRows, 16});
  const Tensor k = normal({kSegments, 2, kKeys, 16});
  const Tensor v = normal({kSegments, 2, kKeys, 24});
  const AttentionOptions options{.causal = true, .dropout = {.p = 0.3, .seed = 17}};
  Tensor dense({kSegments, 4, kRows, 24}, dtype());
  attention(q, k, v, dense, options);
  const Tensor cu_q = tensor_of({kSegments + 1}, Dtype::kInt32, {0, kRows, 2 * kRows, 3 * kRows, 4 * kRows});
  const Tensor cu_k = tensor_of({kSegments + 1}, Dtype::kInt32, {0, kKeys, 2 * kKeys, 3 * kKeys, 4 * kKeys});
  Tensor ragged({kSegments * kRows, 4, 24}, dtype());
  attention_varlen(end_to_end(q), end_to_end(k), end_to_end(v), ragged,
                   {.cu_seqlens_q = cu_q, .cu_seqlens_k = cu_k, .attention = options});
  EXPECT_TRUE(same_bits(ragged, end_to_end(dense)));
  // A segment without queries counts too.
  const Tensor empty_q = tensor_of({kSegments + 1}, Dtype::kInt32, {0, kRows, kRows, 2 * kRows, 3 * kRows});
  Tensor fewer({3 * kRows, 4, 24}, dtype());
  const Tensor all_q = end_to_end(q);
  Tensor some_q({3 * kRows, 4, 16}, dtype());
  copy(static_cast<ConstTensorView>(all_q).slice(0, 0, kRows), some_q.view().slice(0, 0, kRows));
  copy(static_cast<ConstTensorView>(all_q).slice(0, 2 * kRows, 4 * kRows), some_q.view().slice(0, kRows, 3 * kRows));
  attention_varlen(some_q, end_to_end(k), end_to_end(v), fewer,
                   {.cu_seqlens_q = empty_q, .cu_seqlens_k = cu_k, .attention = options});
  EXPECT_TRUE(same_bits(static_cast<ConstTensorView>(fewer).slice(0, kRows, 3 * kRows),
                        static_cast<ConstTensorView>(ragged).slice(0, 2 * kRows, 4 * kRows)));
}

INSTANTIATE_TEST_SUITE_P(On, DropoutCases, ::testing::ValuesIn(every_setting()), setting_name);
INSTANTIATE_TEST_SUITE_P(On, DropoutOfLargeNumbers, ::testing::ValuesIn(every_setting()), setting_name);
INSTANTIATE_TEST_SUITE_P(Half, DropoutCases, ::testing::ValuesIn(half_settings()), setting_name);

}  // namespace
}  // namespace qkv::support
