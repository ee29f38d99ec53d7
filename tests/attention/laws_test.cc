// What must hold for any numbers: oracles that need no second implementation, and long rows against the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "qkv/merge.h"
#include "support/on_target.h"

namespace qkv::support {
namespace {

class Laws : public OnTarget {
 protected:
  static constexpr std::int64_t kRows = 7;
  static constexpr std::int64_t kKeys = 600;
  static constexpr std::int64_t kDim = 16;
  Tensor q_ = normal({1, 2, kRows, kDim});
  Tensor k_ = normal({1, 2, kKeys, kDim});
  Tensor v_ = normal({1, 2, kKeys, kDim});
};

TEST_P(Laws, TheOrderOfKeysDoesNotMatter) {
  std::vector<std::int64_t> order(kKeys);
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size() - 1; i > 0; --i) {
    std::swap(order[i], order[static_cast<std::size_t>(random_.integer(0, static_cast<std::int64_t>(i)))]);
  }
  Tensor k(k_.shape(), dtype());
  Tensor v(v_.shape(), dtype());
  for_each_index(k.shape(), [&](const Extents& at) {
    const Extents from{at[0], at[1], order[static_cast<std::size_t>(at[2])], at[3]};
    write(k, at, read(k_, from));
    write(v, at, read(v_, from));
  });
  const Results a = run(q_, k, v);
  const Results b = run(q_, k_, v_);
  EXPECT_TRUE(close(a.out, b.out, {kSum}));
  EXPECT_TRUE(close(a.lse, b.lse, {kSum}));
  EXPECT_TRUE(close(a.entropy, b.entropy, kEntropyTolerance));
  for_each_index(a.max_key.shape(), [&](const Extents& row) {
    EXPECT_EQ(order[static_cast<std::size_t>(read(a.max_key, row))], read(b.max_key, row));
  });
}

TEST_P(Laws, AConstantAddedToARowMovesOnlyItsLse) {
  Tensor bias({kRows, 1}, dtype());
  const Results a = run(q_, k_, v_, {.bias = bias.view()});
  for (std::int64_t i = 0; i < kRows; ++i) write(bias, {i, 0}, 3.5 * static_cast<double>(i - 3));
  const Results b = run(q_, k_, v_, {.bias = bias.view()});
  EXPECT_TRUE(close(b.out, a.out, kOutTolerance));
  EXPECT_TRUE(close(b.weights, a.weights, kOutTolerance));
  for_each_index(a.lse.shape(), [&](const Extents& row) {
    EXPECT_NEAR(read(b.lse, row) - read(a.lse, row), read(bias, {row[2], 0}), 2 * kSum * epsilon());
  });
}

TEST_P(Laws, PartsMergedByLseAreTheWhole) {
  const Results whole = run(q_, k_, v_);
  for (const std::vector<std::int64_t>& cuts :
       {std::vector<std::int64_t>{0, 596, 600}, {0, 1, 64, 300, 600}, {0, 0, 600}, {0, 512, 600}}) {
    std::vector<Results> attended;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      attended.push_back(run(q_, k_.view().slice(2, cuts[i], cuts[i + 1]), v_.view().slice(2, cuts[i], cuts[i + 1])));
    }
    std::vector<PartialAttention> parts;
    for (const Results& part : attended) parts.push_back({part.out, part.lse});
    Tensor out(whole.out.shape(), dtype());
    Tensor lse(whole.lse.shape(), dtype());
    merge_states(parts, out, lse.view());
    EXPECT_TRUE(close(out, whole.out, {kSum})) << cuts.size() << " cuts";
    EXPECT_TRUE(close(lse, whole.lse, {kSum})) << cuts.size() << " cuts";
  }
}

TEST_P(Laws, FourKeysMergedInto4096) {
  // To 1e-6 of the number in f32, which is 8 epsilon.
  constexpr Tolerance kPromised{.coefficient = 8};
  static_assert(8 * std::numeric_limits<float>::epsilon() < 1e-6f);
  constexpr std::int64_t kPast = 4096, kAll = 4100;
  const Tensor q = normal({1, 2, 4, 8});
  const Tensor k = normal({1, 2, kAll, 8});
  const Tensor v = normal({1, 2, kAll, 8});
  for (const bool causal : {false, true}) {
    SCOPED_TRACE(causal);
    const Results whole = run(q, k, v, {.causal = causal});
    const Results past = run(q, k.view().slice(2, 0, kPast), v.view().slice(2, 0, kPast));
    const Results recent =
        run(q, k.view().slice(2, kPast, kAll), v.view().slice(2, kPast, kAll), {.causal = causal, .query_offset = 0});
    const PartialAttention parts[] = {{past.out, past.lse}, {recent.out, recent.lse}};
    Tensor out(whole.out.shape(), dtype());
    Tensor lse(whole.lse.shape(), dtype());
    merge_states(parts, out, lse.view());
    EXPECT_TRUE(close(out, whole.out, kPromised));
    EXPECT_TRUE(close(lse, whole.lse, kPromised));
  }
}

TEST_P(Laws, ValuesAreLinear) {
  Tensor twice(v_.shape(), dtype());
  for_each_index(v_.shape(), [&](const Extents& at) { write(twice, at, 2 * read(v_, at)); });
  const Results a = run(q_, k_, v_, {.causal = true});
  const Results b = run(q_, k_, twice, {.causal = true});
  for_each_index(a.out.shape(), [&](const Extents& at) { ASSERT_EQ(read(b.out, at), 2 * read(a.out, at)); });
  EXPECT_TRUE(same_bits(a.lse, b.lse));
}

TEST_P(Laws, ARowDependsOnItsPastAlone) {
  const AttentionOptions causal{.causal = true, .query_offset = 590};
  const Results a = run(q_, k_, v_, causal);
  const std::int64_t seen = 593;  // by the rows up to 2
  const Results b = run(q_.view().slice(2, 0, 3), k_.view().slice(2, 0, seen), v_.view().slice(2, 0, seen), causal);
  expect_same_bits(b.views(), sliced(sliced(a.views(), 2, 0, 3), 3, 0, seen));
}

INSTANTIATE_TEST_SUITE_P(On, Laws, ::testing::ValuesIn(every_setting()), setting_name);

/// Rows longer than a chunk of keys, with states merged, against the reference.
class Chunks : public OnTarget {
 protected:
  static constexpr std::int64_t kDim = 8;
  void check(std::int64_t rows, std::int64_t keys, const AttentionOptions& options) {
    SCOPED_TRACE(keys);
    std::vector<std::int64_t> chosen{0, keys / 2, keys - 1};
    expect_as_reference(normal({1, 1, rows, kDim}), normal({1, 1, keys, kDim}), normal({1, 1, keys, kDim + 1}), options,
                        {.keys = chosen});
  }
};

TEST_P(Chunks, EdgesOfAChunk) {
  for (const std::int64_t keys : {4095, 4096, 4097, 4100, 8192, 8193}) check(3, keys, {});
}

TEST_P(Chunks, ManyChunks) { check(8, 13000, {.causal = true}); }

TEST_P(Chunks, AWindowAcrossTheEdge) {
  for (const std::int64_t offset : {4090, 4096, 8195}) {
    check(13, 9000, {.causal = true, .query_offset = offset, .window = {.left = 20}});
  }
}

TEST_P(Chunks, RowsBeforeTheEdgeAmongRowsBeyond) {
  constexpr std::int64_t kRows = 12;
  const Tensor q = normal({1, 1, kRows, kDim});
  const Tensor k = normal({1, 1, 4200, kDim});
  const Tensor v = normal({1, 1, 4200, kDim});
  const Results together = run(q, k, v, {.causal = true, .query_offset = 4090});
  for (std::int64_t i = 0; i < kRows; ++i) {
    const Results alone = run(q.view().slice(2, i, i + 1), k, v, {.causal = true, .query_offset = 4090 + i});
    SCOPED_TRACE(i);
    expect_same_bits(alone.views(), sliced(together.views(), 2, i, i + 1));
  }
}

TEST_P(Chunks, TermsAndSinksAcrossChunks) {
  constexpr std::int64_t kKeys = 9000;
  const Tensor bias = normal({kKeys});
  const Tensor mask = random_.bool_tensor({5, kKeys}, 0.3);
  const Tensor sinks = tensor({1}, {4});
  const Tensor slopes = tensor({1}, {0.001});
  check(5, kKeys,
        {.softcap = 4, .mask = mask.view(), .bias = bias.view(), .sinks = sinks.view(), .alibi_slopes = slopes.view()});
}

TEST_P(Chunks, AChunkThatARowDoesNotSee) {
  constexpr std::int64_t kKeys = 12500;
  Tensor mask = tensor_of({3, kKeys}, Dtype::kBool, {1});
  for (std::int64_t j = 4096; j < 8192; ++j) write(mask, {0, j}, 0);
  for (std::int64_t j = 0; j < 8192; ++j) write(mask, {1, j}, 0);
  for (std::int64_t j = 4096; j < kKeys; ++j) write(mask, {2, j}, 0);
  check(3, kKeys, {.mask = mask.view()});
}

TEST_P(Chunks, TheMaximumInEachChunk) {
  constexpr std::int64_t kKeys = 9000;
  const Tensor q = tensor({1, 1, 1, 1}, {1});
  Tensor k = normal({1, 1, kKeys, 1});
  const Tensor v = normal({1, 1, kKeys, 3});
  for (const std::int64_t top : {100, 4095, 4096, 8192, 8999}) {
    const double before = read(k, {0, 0, top, 0});
    write(k, {0, 0, top, 0}, 12);
    SCOPED_TRACE(top);
    expect_as_reference(q, k, v, {.scale = 1}, {.keys = {top}});
    EXPECT_EQ(read(run(q, k, v, {.scale = 1}).max_key, {0, 0, 0}), top);
    write(k, {0, 0, top, 0}, before);
  }
}

INSTANTIATE_TEST_SUITE_P(On, Chunks, ::testing::ValuesIn(kernel_settings()), setting_name);

}  // namespace
}  // namespace qkv::support
