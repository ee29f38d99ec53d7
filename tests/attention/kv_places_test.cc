// Laws of caches whose keys turn by their places: when they are those of absolute positions, and what changes no bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "attention/kv_ropes.h"
#include "support/on_target.h"

namespace qkv::support {
namespace {

constexpr std::int64_t kLength = 75;
constexpr Dtype kStored[] = {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16, Dtype::kInt8};

/// What a q may be beside keys of a dtype.
std::vector<Dtype> rows_beside(Dtype stored) {
  if (size_of(stored) >= 4) return {stored};
  return {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBFloat16};
}

Tensor rows_of(const Tensor& q, std::int64_t begin, std::int64_t end) {
  Tensor rows({q.shape()[0], q.shape()[1], end - begin, q.shape()[3]}, q.dtype());
  copy(q.view().slice(2, begin, end), rows);
  return rows;
}

class Places : public ::testing::TestWithParam<Dtype> {
 protected:
  Tokens tokens(std::uint64_t seed, const Extents& shape = {2, 2, kLength, kRopeDim}) const {
    Random random(seed);
    return {random, shape};
  }
};

TEST_P(Places, BeforeAKeyIsLeftAreAbsolutePositions) {
  const Tokens all = tokens(1);
  const bool wide = size_of(GetParam()) >= 4;
  for (const Dtype q_dtype : rows_beside(GetParam())) {
    const Tensor q = Random(2).normal_tensor({2, 4, kLength, kRopeDim}, q_dtype);
    for (const auto& [name, rope] : ropes_of_caches()) {
      SCOPED_TRACE(name);
      KVCache absolute(with_rope(small_options(GetParam()), rope));
      KVCache slots(in_places(with_rope(small_options(GetParam()), rope)));
      PagedKVCacheOptions of_pages = in_places(with_rope(small_pages(GetParam(), 7), rope));
      of_pages.num_pages = 22;
      PagedKVCache pages(of_pages);
      append(absolute, all, 0, kLength);
      append(slots, all, 0, kLength);
      append(pages, all, 0, kLength);
      const Tensor expected = attend_to(q, absolute.view(), {.causal = true});
      const Tensor out = attend_to(q, slots.view(), {.causal = true});
      EXPECT_TRUE(same_bits(attend_to(q, pages.view(), {.causal = true}), out));
      if (wide) {
        EXPECT_TRUE(same_bits(out, expected));
      } else {  // turned before keys are rounded there, after it here: each by half a step of what is stored
        const double step = GetParam() == Dtype::kInt8 ? 0.1 : 8 * epsilon_of(GetParam());
        EXPECT_TRUE(close(out, expected, {.coefficient = step / epsilon_of(q_dtype) + 2}));
      }
    }
  }
}

TEST_P(Places, OnePassIsStepByStep) {
  const Tokens all = tokens(3);
  for (const Dtype q_dtype : rows_beside(GetParam())) {
    const Tensor q = Random(4).normal_tensor({2, 4, kLength, kRopeDim}, q_dtype);
    for (const auto& [name, rope] : ropes_in_places()) {
      SCOPED_TRACE(name);
      KVCache whole(ring_in_places(GetParam(), rope));
      append(whole, all, 0, kLength);
      const Tensor expected = attend_to(q, whole.view(), {.causal = true});
      KVCacheOptions tight = ring_in_places(GetParam(), rope);
      tight.capacity = 12 + 3 + 9;
      KVCache cache(tight);
      for (std::int64_t i = 0; i < kLength; i += i == 20 ? 10 : 1) {  // a chunk among the steps
        const std::int64_t end = i == 20 ? 30 : i + 1;
        append(cache, all, i, end);
        const Tensor rows = attend_to(rows_of(q, i, end), cache.view(), {.causal = true});
        ASSERT_TRUE(same_bits(rows, expected.view().slice(2, i, end))) << i;
      }
    }
  }
}

TEST_P(Places, KeysAreKeptAsTheyCame) {
  const Tokens all = tokens(5);
  KVCache plain(small_options(GetParam()));
  KVCache turning(in_places(with_rope(small_options(GetParam()), Rope(kRopeDim))));
  append(plain, all, 0, 60);
  append(turning, all, 0, 60);
  EXPECT_TRUE(same_bits(turning.view().k.slice(2, 0, 60), plain.view().k.slice(2, 0, 60)));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Places, ::testing::ValuesIn(kStored),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

TEST(KVPlaces, EverySequenceHasItsOwn) {
  Random random(6);
  const Tokens all(random, {3, 2, 60, kRopeDim});
  const Tensor q = random.normal_tensor({3, 4, 2, kRopeDim}, Dtype::kFloat32);
  const std::vector<std::int64_t> lengths{60, 5, 17};
  for (const auto& [name, rope] : ropes_in_places()) {
    SCOPED_TRACE(name);
    KVCacheOptions options = ring_in_places(Dtype::kFloat32, rope);
    options.batch = 3;
    KVCache cache(options);
    cache.append(all.k, all.v, lengths);
    const Tensor out = attend_to(q, cache.view(), {.causal = true});
    options.batch = 1;
    for (std::int64_t b = 0; b < 3; ++b) {
      KVCache alone(options);
      alone.append(all.k.view().slice(0, b, b + 1), all.v.view().slice(0, b, b + 1),
                   std::vector<std::int64_t>{lengths[static_cast<std::size_t>(b)]});
      Tensor rows({1, 4, 2, kRopeDim}, Dtype::kFloat32);
      copy(q.view().slice(0, b, b + 1), rows);
      EXPECT_TRUE(same_bits(out.view().slice(0, b, b + 1), attend_to(rows, alone.view(), {.causal = true}))) << b;
    }
  }
}

/// The window of the call, wherever the keys lie: the place of the last row is the left side.
TEST(KVPlaces, GoByTheWindowOfTheCall) {
  Random random(7);
  const Rope rope(kRopeDim);
  const Tokens all(random, {2, 2, 60, kRopeDim});
  const Tensor q = random.normal_tensor({2, 4, 1, kRopeDim}, Dtype::kFloat32);
  const auto check = [&](auto cache) {
    append(cache, all, 0, 60);
    for (const std::int64_t left : {0, 4, 40, 59, 80}) {
      const std::int64_t first = std::max<std::int64_t>(59 - left, 0);
      Tensor k({2, 2, 60 - first, kRopeDim}, Dtype::kFloat32);
      rope.apply(all.keys(first, 60), 0, k);
      Tensor expected(q.shape(), Dtype::kFloat32);
      attention(turned(rope, q, 59 - first), k, all.values(first, 60), expected);
      const Tensor out = attend_to(q, cache.view(), {.window = {.left = left}});
      // Elsewhere in the order of keys: the same sums, cut at other places.
      EXPECT_TRUE(close(out, expected, kOutTolerance)) << left;
    }
  };
  check(KVCache(in_places(with_rope(small_options(), rope))));
  check(PagedKVCache(in_places(with_rope(small_pages(Dtype::kFloat32, 7), rope))));
}

TEST(KVPlaces, DynamicScalingGoesByTheRowsPlace) {
  Random random(8);
  const Rope rope = dynamic_rope();
  const Tokens all(random, {2, 2, 40, kRopeDim});
  KVCache cache(ring_in_places(Dtype::kFloat32, rope));
  for (std::int64_t i = 0; i < 40; ++i) {
    append(cache, all, i, i + 1);
    const Tensor q = random.normal_tensor({2, 4, 1, kRopeDim}, Dtype::kFloat32);
    const std::int64_t count = std::min<std::int64_t>(i + 1, 15);
    Tensor k({2, 2, count, kRopeDim}, Dtype::kFloat32);
    Tensor v(k.shape(), Dtype::kFloat32);
    for (std::int64_t place = 0; place < count; ++place) {
      const std::int64_t key = place < 3 ? place : i + 1 - count + place;
      copy(all.keys(key, key + 1), k.view().slice(2, place, place + 1));
      copy(all.values(key, key + 1), v.view().slice(2, place, place + 1));
    }
    rope.apply(k, 0, k, {.seq_len = count});
    Tensor row(q.shape(), Dtype::kFloat32);
    rope.apply(q, count - 1, row, {.seq_len = count});
    Tensor expected(q.shape(), Dtype::kFloat32);
    attention(row, k, v, expected);
    ASSERT_TRUE(close(attend_to(q, cache.view()), expected, kOutTolerance)) << i;
  }
}

TEST(KVPlaces, WeightsOfChosenRowsAreThoseOfAll) {
  Random random(9);
  const Tokens all(random, {2, 2, 40, kRopeDim});
  KVCache cache(ring_in_places(Dtype::kFloat32, Rope(kRopeDim)));
  append(cache, all, 0, 40);
  const Tensor q = random.normal_tensor({2, 4, 40, kRopeDim}, Dtype::kFloat32);
  Tensor out(q.shape(), Dtype::kFloat32);
  Tensor whole({2, 4, 40, 40}, Dtype::kFloat32);
  attention(q, cache.view(), out, {.causal = true}, {.weights = Weights{.out = whole}});
  const std::vector<std::int64_t> heads{3, 0};
  const std::vector<std::int64_t> rows{39, 2, 17, 39, 16};
  Tensor chosen({2, 2, 5, 40}, Dtype::kFloat32);
  attention(q, cache.view(), out, {.causal = true}, {.weights = Weights{.out = chosen, .heads = heads, .rows = rows}});
  for_each_index(chosen.shape(), [&](const Extents& at) {
    const Extents of_all{at[0], heads[static_cast<std::size_t>(at[1])], rows[static_cast<std::size_t>(at[2])], at[3]};
    ASSERT_EQ(read(chosen, at), read(whole, of_all)) << to_string(at);
  });
  for_each_index({2, 2, 5}, [&](const Extents& at) {
    double sum = 0;
    for (std::int64_t j = 0; j < 40; ++j) sum += read(chosen, {at[0], at[1], at[2], j});
    EXPECT_NEAR(sum, 1, 1e-5) << to_string(at);
  });
}

TEST(KVPlaces, LogitsBeforeMasksAreOfEveryKey) {
  Random random(12);
  const Tokens all(random, {2, 2, 40, kRopeDim});
  const Tensor q = random.normal_tensor({2, 4, 5, kRopeDim}, Dtype::kFloat32);
  const auto logits_of = [&](const KVCacheOptions& options) {
    KVCache cache(options);
    append(cache, all, 0, 40);
    Tensor out(q.shape(), Dtype::kFloat32);
    Tensor logits({2, 4, 5, 40}, Dtype::kFloat32);
    // Rows at 10 to 14, the last of which sees key 3 and the sinks: none has been left, and most lie behind.
    attention(q, cache.view(), out, {.causal = true, .query_offset = 10},
              {.logits = Logits{.out = logits, .stage = LogitsStage::kScaled}});
    return logits;
  };
  const KVCacheOptions places = ring_in_places(Dtype::kFloat32, Rope(kRopeDim));
  KVCacheOptions absolute = places;
  absolute.positions = CachePositions::kAbsolute;
  EXPECT_TRUE(same_bits(logits_of(places), logits_of(absolute)));
}

TEST(KVPlaces, TruncatedGrownAndSharedCachesGoOn) {
  Random random(10);
  const Tokens all(random, {2, 2, 60, kRopeDim});
  const Tensor q = random.normal_tensor({2, 4, 3, kRopeDim}, Dtype::kFloat32);
  KVCache fresh(ring_in_places(Dtype::kFloat32, Rope(kRopeDim)));
  append(fresh, all, 0, 50);
  const Tensor expected = attend_to(q, fresh.view(), {.causal = true});
  KVCache cache(ring_in_places(Dtype::kFloat32, Rope(kRopeDim)));
  append(cache, all, 0, 60);
  cache.truncate(std::vector<std::int64_t>{45, 45});
  KVCache moved = std::move(cache);
  append(moved, all, 45, 50);
  EXPECT_TRUE(same_bits(attend_to(q, moved.view(), {.causal = true}), expected));
  moved.grow(3);
  EXPECT_EQ(moved.options().positions, CachePositions::kCache);
  Tensor three({3, 4, 3, kRopeDim}, Dtype::kFloat32);
  copy(q, three.view().slice(0, 0, 2));
  EXPECT_TRUE(same_bits(attend_to(three, moved.view(), {.causal = true}).view().slice(0, 0, 2), expected));

  PagedKVCache pages(in_places(with_rope(small_pages(), Rope(kRopeDim))));
  append(pages, all, 0, 60);
  pages.truncate(std::vector<std::int64_t>{50, 0});
  pages.share(0, 1, 50);
  const AttentionOptions window{.window = {.left = 11}};
  const Tensor shared = attend_to(q, pages.view(), window);
  Tensor twice(q.shape(), Dtype::kFloat32);
  for (const std::int64_t b : {0, 1}) copy(q.view().slice(0, 0, 1), twice.view().slice(0, b, b + 1));
  const Tensor both = attend_to(twice, pages.view(), window);
  EXPECT_TRUE(same_bits(both.view().slice(0, 1, 2), shared.view().slice(0, 0, 1)));
}

}  // namespace
}  // namespace qkv::support
