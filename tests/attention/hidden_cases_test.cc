// Inputs that broke masks, empty rows and non-finite numbers elsewhere, with answers worked out by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "qkv/masks.h"
#include "qkv/merge.h"
#include "support/on_target.h"

namespace qkv::support {
namespace {

class HiddenKeys : public OnTarget {
 protected:
  Tensor bools(const Extents& shape, std::initializer_list<double> values) const {
    return tensor_of(shape, Dtype::kBool, values);
  }
};

TEST_P(HiddenKeys, NonFiniteHiddenKeyOrValueChangesNothing) {
  const Tensor clean = tensor({1, 1, 2, 4}, {0, 1, 2, 3, 4, 5, 6, 7});
  const Tensor mask = bools({2, 2}, {1, 0, 1, 0});
  const Tensor expected = tensor({1, 1, 2, 4}, {0, 1, 2, 3, 0, 1, 2, 3});
  for (const double poison : {kNaN, kInf, -kInf}) {
    Tensor k = clean.clone();
    Tensor v = clean.clone();
    write(k, {0, 0, 1, 0}, poison);
    EXPECT_TRUE(same_bits(run(clean, k, clean, {.mask = mask.view()}).out, expected)) << poison << " in k";
    write(v, {0, 0, 1, 0}, poison);
    EXPECT_TRUE(same_bits(run(clean, clean, v, {.mask = mask.view()}).out, expected)) << poison << " in v";
    EXPECT_TRUE(same_bits(run(clean, k, v, {.mask = mask.view()}).out, expected)) << poison << " in both";
  }
}

TEST_P(HiddenKeys, WhatTheBiasHidesStaysHiddenBesideNaN) {
  // Keys 0, 16 and 32 share a lane on every target. Key 16 is hidden by the mask: its bias is nobody's business.
  const Tensor q = normal({1, 1, 1, 4});
  const Tensor k = normal({1, 1, 300, 4});
  Tensor v = normal({1, 1, 300, 70});
  Tensor mask = tensor_of({1, 300}, Dtype::kBool, {1});
  Tensor bias({1, 300}, dtype());
  write(bias, {0, 0}, -kInf);
  for (const bool masked : {false, true}) {
    AttentionOptions options{.bias = bias.view()};
    if (masked) options.mask = mask.view();
    write(mask, {0, 16}, 0);
    for (std::int64_t c = 0; c < 70; ++c) write(v, {0, 0, 0, c}, 1);
    const Results clean = run(q, k, v, options);
    for (std::int64_t c = 0; c < 70; ++c) write(v, {0, 0, 0, c}, kNaN);
    if (masked) write(bias, {0, 16}, kNaN);
    expect_same_bits(run(q, k, v, options), clean);
  }
}

TEST_P(HiddenKeys, PoisonFromKey1000OnLeavesEarlierRowsAlone) {
  constexpr std::int64_t kLen = 1024;
  const Tensor q = normal({1, 1, kLen, 8});
  const Tensor k = normal({1, 1, kLen, 8});
  Tensor v = normal({1, 1, kLen, 9});
  Tensor clean({1, 1, kLen, 9}, dtype());
  Tensor poisoned({1, 1, kLen, 9}, dtype());
  attention(q, k, v, clean, {.causal = true});
  for (const double poison : {kInf, kNaN}) {
    for (std::int64_t c = 0; c < 9; ++c) write(v, {0, 0, 1000, c}, poison);
    attention(q, k, v, poisoned, {.causal = true});
    EXPECT_TRUE(same_bits(poisoned.view().slice(2, 0, 1000), clean.view().slice(2, 0, 1000))) << poison;
    for (std::int64_t i = 1000; i < kLen; ++i) {
      EXPECT_TRUE(
          all_of_row(poisoned, {0, 0, i}, [&](double x) { return std::isnan(poison) ? std::isnan(x) : x == poison; }))
          << "row " << i << " sees " << poison;
    }
  }
}

TEST_P(HiddenKeys, FullyMaskedRowIsZero) {
  const Tensor x = normal({1, 1, 3, 5});
  const Tensor mask = bools({3, 3}, {0, 0, 0, 1, 1, 0, 1, 1, 1});
  const Results a = run(x, x, x, {.mask = mask.view()}, {.keys = {0, 1, 2}});
  expect_empty_row(a, {0, 0, 0});
  for (std::int64_t i = 1; i < 3; ++i) {
    EXPECT_TRUE(row_is_finite(a.out, {0, 0, i}));
    EXPECT_NEAR(read(a.key_weight, {0, 0, i}), 1, kFewSteps * epsilon());
  }
  EXPECT_EQ(read(a.weights, {0, 0, 1, 2}), 0);
}

TEST_P(HiddenKeys, FullyMaskedHeadHasZeroWeights) {
  const Tensor x = normal({1, 4, 6, 8});
  const Tensor mask = bools({4, 1, 1}, {1, 0, 1, 1});
  const Results a = run(x, x, x, {.mask = mask.view()});
  for (std::int64_t i = 0; i < 6; ++i) {
    expect_empty_row(a, {0, 1, i});
    for (const std::int64_t h : {0, 2, 3}) EXPECT_TRUE(row_is_finite(a.out, {0, h, i}));
  }
}

TEST_P(HiddenKeys, AnEmptyRowHasTheSinkAsItsLse) {
  const Tensor x = normal({1, 2, 3, 4});
  const Tensor mask = bools({3, 1}, {0, 1, 0});
  const Tensor sinks = tensor({2}, {0.75, -3});
  const Results a = run(x, x, x, {.mask = mask.view(), .sinks = sinks.view()});
  for (const std::int64_t h : {0, 1}) {
    for (const std::int64_t i : {0, 2}) {
      EXPECT_EQ(read(a.lse, {0, h, i}), read(sinks, {h}));
      EXPECT_TRUE(all_of_row(a.out, {0, h, i}, [](double y) { return y == 0; }));
      EXPECT_TRUE(all_of_row(a.weights, {0, h, i}, [](double y) { return y == 0; }));
    }
  }
}

TEST_P(HiddenKeys, BiasOfTheLowestNumberIsNotAMask) {
  constexpr std::int64_t kKeys = 21;
  const Tensor q = normal({1, 2, 4, 8});
  const Tensor k = normal({1, 2, kKeys, 8});
  const Tensor v = normal({1, 2, kKeys, 7});
  const Tensor bias = tensor({1, kKeys}, {lowest()});
  const Tensor slopes = tensor({2}, {0.5, 2});
  for (const bool further : {false, true}) {
    AttentionOptions options{.bias = bias.view()};
    if (further) options.alibi_slopes = slopes.view();
    const Results a = run(q, k, v, options);
    for_each_index({1, 2, 4, 7}, [&](const Extents& at) {
      double sum = 0;
      for (std::int64_t j = 0; j < kKeys; ++j) sum += read(v, {0, at[1], j, at[3]});
      EXPECT_NEAR(read(a.out, at), sum / kKeys, kSum * epsilon()) << to_string(at) << " further terms " << further;
    });
  }
}

TEST_P(HiddenKeys, BandBiasWithWholeBlocksHidden) {
  constexpr std::int64_t kLen = 600;
  const Tensor q = normal({1, 1, kLen, 4});
  const Tensor k = normal({1, 1, kLen, 4});
  const Tensor v = normal({1, 1, kLen, 4});
  Tensor bias({kLen, kLen}, dtype());
  for_each_index({kLen, kLen}, [&](const Extents& at) {
    const std::int64_t back = at[0] - at[1];
    write(bias, at, back >= 0 && back < 10 ? 0 : -kInf);
  });
  expect_as_reference(q, k, v, {.bias = bias.view()});
  expect_close(run(q, k, v, {.bias = bias.view()}), run(q, k, v, {.window = {.left = 9, .right = 0}}));
}

TEST_P(HiddenKeys, BiasOfMinusInfinityHidesAsAMaskDoes) {
  const Tensor q = normal({1, 2, 9, 8});
  const Tensor k = normal({1, 2, 70, 8});
  Tensor v = normal({1, 2, 70, 8});
  const Tensor mask = random_.bool_tensor({2, 9, 70}, 0.4);
  Tensor zero({2, 9, 70}, dtype());
  Tensor bias({2, 9, 70}, dtype());
  for_each_index(bias.shape(), [&](const Extents& at) { write(bias, at, read(mask, at) != 0 ? 0 : -kInf); });
  expect_same_bits(run(q, k, v, {.bias = bias.view()}), run(q, k, v, {.mask = mask.view(), .bias = zero.view()}));
}

TEST_P(HiddenKeys, PoisonUnderABiasOfMinusInfinityShowsInNoOutput) {
  constexpr std::int64_t kRows = 9, kKeys = 140;
  const Tensor q = normal({1, 2, kRows, 12});
  const Tensor clean_k = normal({1, 2, kKeys, 12});
  const Tensor clean_v = normal({1, 2, kKeys, 10});
  // Alone, at the ends of a word, a whole word, and the last key.
  std::vector<std::int64_t> hidden{0, 5, 63, 139};
  for (std::int64_t j = 64; j < 128; ++j) hidden.push_back(j);
  const Tensor slopes = tensor({2}, {0.5, 0.03});
  const Tensor sinks = tensor({2}, {1, -1});
  for (const bool per_row : {false, true}) {
    Tensor bias = normal(per_row ? Extents{2, kRows, kKeys} : Extents{1, kKeys});
    for_each_index(bias.shape(), [&](const Extents& at) {
      if (std::find(hidden.begin(), hidden.end(), at[at.size() - 1]) != hidden.end()) write(bias, at, -kInf);
    });
    for (const bool further : {false, true}) {
      AttentionOptions options{.bias = bias.view()};
      if (further) {
        options = {
            .causal = true, .softcap = 4, .bias = bias.view(), .sinks = sinks.view(), .alibi_slopes = slopes.view()};
      }
      const Wanted wanted{.keys = {0, 1, 64, 130, 139}};
      const Results clean = run(q, clean_k, clean_v, options, wanted);
      for (const double poison : {kNaN, kInf, -kInf}) {
        SCOPED_TRACE(::testing::Message() << poison << ", bias per row " << per_row << ", further terms " << further);
        Tensor k = clean_k.clone();
        Tensor v = clean_v.clone();
        for (const std::int64_t j : hidden) {
          for (const std::int64_t h : {0, 1}) {
            for (std::int64_t d = 0; d < 12; ++d) write(k, {0, h, j, d}, poison);
            write(v, {0, h, j, 9}, poison);
          }
        }
        expect_same_bits(run(q, k, clean_v, options, wanted), clean);
        expect_same_bits(run(q, k, v, options, wanted), clean);
      }
      for (const std::int64_t j : hidden) {
        EXPECT_EQ(read(clean.logits, {0, 1, 3, j}), -kInf) << j;
        EXPECT_EQ(read(clean.weights, {0, 1, 3, j}), 0) << j;
      }
    }
  }
}

TEST_P(HiddenKeys, MasksBroadcastByNumPysRules) {
  constexpr std::int64_t kB = 2, kH = 3, kL = 4, kS = 5;
  const Extents full{kB, kH, kL, kS};
  const Tensor q = normal({kB, kH, kL, 6});
  const Tensor k = normal({kB, kH, kS, 6});
  const Tensor v = normal({kB, kH, kS, 6});
  for (const Extents& shape : {Extents{kS}, Extents{kL, kS}, Extents{kH, 1, kS}, Extents{kB, 1, 1, kS},
                               Extents{kB, 1, kL, kS}, Extents{1, 1, 1, 1}, Extents{kL, 1}, Extents{}}) {
    const Tensor mask = random_.bool_tensor(shape, 0.5);
    Tensor expanded(full, Dtype::kBool);
    for_each_index(full, [&](const Extents& at) {
      Extents from = shape;
      for (int axis = 0; axis < shape.size(); ++axis) {
        from[axis] = shape[axis] == 1 ? 0 : at[4 - shape.size() + axis];
      }
      write(expanded, at, read(mask, from));
    });
    SCOPED_TRACE(to_string(shape));
    expect_same_bits(run(q, k, v, {.mask = mask.view()}), run(q, k, v, {.mask = expanded.view()}));
  }
}

TEST_P(HiddenKeys, MaskAndCausalAreJoinedByAnd) {
  const Tensor q = normal({1, 2, 40, 8});
  const Tensor k = normal({1, 2, 70, 8});
  const Tensor v = normal({1, 2, 70, 8});
  const Tensor mask = random_.bool_tensor({2, 40, 70}, 0.5);
  Tensor both = mask.clone();
  for_each_index(both.shape(), [&](const Extents& at) {
    if (at[2] > at[1] + 30) write(both, at, 0);
  });
  expect_same_bits(run(q, k, v, {.causal = true, .mask = mask.view()}), run(q, k, v, {.mask = both.view()}));
}

TEST_P(HiddenKeys, GapsInWhatNeighboursSeeChangeNothing) {
  // Words of 64 keys that no row of a group sees are left out: a row's sums must not notice which.
  constexpr std::int64_t kKeys = 640;
  const Tensor q = normal({1, 1, 6, 8});
  const Tensor k = normal({1, 1, kKeys, 8});
  const Tensor v = normal({1, 1, kKeys, 8});
  for (int trial = 0; trial < 20; ++trial) {
    Tensor mask({6, kKeys}, Dtype::kBool);
    for (std::int64_t i = 0; i < 6; ++i) {
      for (std::int64_t word = 0; word < kKeys; word += 64) {
        if (random_.chance(0.5)) continue;
        const std::int64_t begin = word + random_.integer(0, 63);
        for (std::int64_t j = begin; j < word + 64; ++j) write(mask, {i, j}, random_.chance(0.8) ? 1 : 0);
      }
    }
    const Results together = run(q, k, v, {.mask = mask.view()});
    for (std::int64_t i = 0; i < 6; ++i) {
      const Results alone = run(q.view().slice(2, i, i + 1), k, v, {.mask = mask.view().slice(0, i, i + 1)});
      SCOPED_TRACE(std::to_string(trial) + " row " + std::to_string(i));
      expect_same_bits(alone.views(), sliced(together.views(), 2, i, i + 1));
    }
  }
}

TEST_P(HiddenKeys, ACausalMaskAndCausalAreOneAtAnyLength) {
  for (const std::int64_t len : {1, 5, 64, 65, 130, 513}) {
    SCOPED_TRACE(len);
    const std::int64_t rows = std::min<std::int64_t>(len, 70);
    const Tensor q = normal({1, 1, rows, 4});
    const Tensor k = normal({1, 1, len, 4});
    const Tensor v = normal({1, 1, len, 4});
    const Tensor mask = causal_mask(rows, len);
    const Results causal = run(q, k, v, {.causal = true});
    expect_same_bits(run(q, k, v, {.mask = mask.view()}), causal);
    expect_same_bits(run(q, k, v, {.causal = true, .mask = mask.view()}), causal);
  }
}

TEST_P(HiddenKeys, ACapDoesNotBringAHiddenKeyBack) {
  const Tensor q = normal({1, 1, 4, 8});
  const Tensor k = normal({1, 1, 6, 8});
  Tensor v = tensor({1, 1, 6, 1}, {1});
  write(v, {0, 0, 3, 0}, 1000);
  const Tensor bias = tensor({6}, {0, 0, 0, -kInf, 0, 0});
  const Results a = run(q, k, v, {.softcap = 0.5, .bias = bias.view()});
  for (std::int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(read(a.weights, {0, 0, i, 3}), 0);
    EXPECT_NEAR(read(a.out, {0, 0, i, 0}), 1, kFewSteps * epsilon());
  }
}

TEST_P(HiddenKeys, ManyRowsOnFewKeysLeaveTheFirstRowsEmpty) {
  const Tensor q = normal({1, 1, 5, 4});
  const Tensor k = normal({1, 1, 2, 4});
  const Tensor v = normal({1, 1, 2, 4});
  const Results a = run(q, k, v, {.causal = true});
  for (std::int64_t i = 0; i < 3; ++i) expect_empty_row(a, {0, 0, i});
  for (std::int64_t c = 0; c < 4; ++c) {
    EXPECT_NEAR(read(a.out, {0, 0, 3, c}), read(v, {0, 0, 0, c}), kFewSteps * epsilon());
  }
  EXPECT_TRUE(row_is_finite(a.out, {0, 0, 4}));
}

TEST_P(HiddenKeys, LengthZeroIsARowThatSeesNothing) {
  const Tensor x = normal({3, 2, 6, 4});
  const Tensor lengths = tensor_of({3}, Dtype::kInt32, {0, 6, 0});
  for (const bool causal : {false, true}) {
    const Results a = run(x, x, x, {.causal = causal, .kv_lens = lengths.view()});
    for (const std::int64_t b : {0, 2}) {
      for (std::int64_t i = 0; i < 6; ++i) expect_empty_row(a, {b, 1, i});
    }
    EXPECT_TRUE(row_is_finite(a.out, {1, 0, 0}));
  }
}

TEST_P(HiddenKeys, PaddingPerBatchIsALoopOverTheBatch) {
  const Tensor q = normal({2, 4, 5, 8});
  const Tensor k = normal({2, 2, 9, 8});
  const Tensor v = normal({2, 2, 9, 8});
  const Tensor lengths = tensor_of({2}, Dtype::kInt64, {4, 9});
  const Results whole = run(q, k, v, {.kv_lens = lengths.view()});
  for (std::int64_t b = 0; b < 2; ++b) {
    const auto filled = static_cast<std::int64_t>(read(lengths, {b}));
    const Results alone = run(q.view().slice(0, b, b + 1), k.view().slice(0, b, b + 1).slice(2, 0, filled),
                              v.view().slice(0, b, b + 1).slice(2, 0, filled));
    SCOPED_TRACE(b);
    expect_same_bits(sliced(sliced(whole.views(), 0, b, b + 1), 3, 0, filled), alone.views());
  }
}

TEST_P(HiddenKeys, TwoEmptyPartsMergeToAnEmptyOne) {
  const Tensor x = normal({1, 1, 2, 4});
  const Tensor nobody = bools({1}, {0});
  const Results a = run(x, x, x, {.mask = nobody.view()});
  const Results b = run(x, x, x, {.mask = nobody.view()});
  const PartialAttention parts[] = {{a.out, a.lse}, {b.out, b.lse}};
  Tensor out({1, 1, 2, 4}, dtype());
  Tensor lse({1, 1, 2}, dtype());
  merge_states(parts, out, lse.view());
  EXPECT_TRUE(same_bits(out, a.out));
  EXPECT_TRUE(same_bits(lse, a.lse));
  EXPECT_EQ(read(lse, {0, 0, 0}), -kInf);
}

INSTANTIATE_TEST_SUITE_P(On, HiddenKeys, ::testing::ValuesIn(every_setting()), setting_name);

}  // namespace
}  // namespace qkv::support
