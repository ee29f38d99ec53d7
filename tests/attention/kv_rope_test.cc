// Caches that turn: the bits are those of rows and keys that were turned before, whatever way they came.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "attention/kv_ropes.h"
#include "attention/rope_rows.h"
#include "support/guarded.h"
#include "support/on_target.h"

namespace qkv::support {
namespace {

constexpr Dtype kReal[] = {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16};
constexpr std::int64_t kLength = 75;

class CacheThatTurns : public ::testing::TestWithParam<Dtype> {
 protected:
  Tensor normal(std::uint64_t seed, const Extents& shape) const {
    return Random(seed).normal_tensor(shape, GetParam());
  }
  KVCacheOptions slots(const Rope& rope) const { return with_rope(small_options(GetParam()), rope); }
  PagedKVCacheOptions pages(const Rope& rope, std::int64_t size) const {
    PagedKVCacheOptions options = small_pages(GetParam(), size);
    options.num_pages = 2 * (kLength / size + 1);
    return with_rope(options, rope);
  }
  template <class Cache>
  Tensor in_pieces(Cache cache, const Tokens& tokens, const Tensor& q) const {
    for (const auto& [begin, end] : {std::pair{0, 1}, {1, 8}, {8, 72}, {72, 75}}) append(cache, tokens, begin, end);
    return attend_to(q, cache.view(), {.causal = true});
  }
};

TEST_P(CacheThatTurns, HasTheBitsOfTurnedRowsAndKeys) {
  Random random(1);
  const Tokens tokens(random, {2, 2, kLength, kRopeDim}, GetParam());
  const Tensor q = normal(2, {2, 4, kLength, kRopeDim});
  for (const auto& [name, rope] : ropes_of_caches()) {
    SCOPED_TRACE(name);
    Tensor expected(q.shape(), GetParam());
    attention(turned(rope, q), turned(rope, tokens.k), tokens.v, expected, {.causal = true});
    EXPECT_TRUE(same_bits(in_pieces(KVCache(slots(rope)), tokens, q), expected));
    EXPECT_TRUE(same_bits(in_pieces(PagedKVCache(pages(rope, 16)), tokens, q), expected));
    EXPECT_TRUE(same_bits(in_pieces(PagedKVCache(pages(rope, 7)), tokens, q), expected));
  }
}

TEST_P(CacheThatTurns, TheReferenceTurnsAlike) {
  Random random(3);
  const Tokens tokens(random, {2, 2, kLength, kRopeDim}, GetParam());
  const Tensor q = normal(4, {2, 4, 5, kRopeDim});
  for (const auto& [name, rope] : ropes_of_caches()) {
    SCOPED_TRACE(name);
    KVCache cache(slots(rope));
    append(cache, tokens, 0, kLength);
    Tensor expected(q.shape(), GetParam());
    Tensor out(q.shape(), GetParam());
    reference::attention(turned(rope, q, kLength - 5), turned(rope, tokens.k), tokens.v, expected, {.causal = true});
    reference::attention(q, cache.view(), out, {.causal = true});
    EXPECT_TRUE(same_bits(out, expected));
    const TargetScope scope("reference");
    EXPECT_TRUE(same_bits(attend_to(q, cache.view(), {.causal = true}), expected));
  }
}

TEST_P(CacheThatTurns, StepByStepIsOnePass) {
  Random random(5);
  const Tokens tokens(random, {2, 2, kLength, kRopeDim}, GetParam());
  const Tensor q = normal(6, {2, 4, kLength, kRopeDim});
  for (const auto& [name, rope] : ropes_of_caches()) {
    SCOPED_TRACE(name);
    KVCache whole(slots(rope));
    append(whole, tokens, 0, kLength);
    const Tensor expected = attend_to(q, whole.view(), {.causal = true});
    KVCache cache(slots(rope));
    for (std::int64_t i = 0; i < kLength; i += i == 20 ? 30 : 1) {  // a chunk among the steps
      const std::int64_t end = i == 20 ? 50 : i + 1;
      append(cache, tokens, i, end);
      Tensor rows({2, 4, end - i, kRopeDim}, GetParam());
      copy(q.view().slice(2, i, end), rows);
      ASSERT_TRUE(same_bits(attend_to(rows, cache.view(), {.causal = true}), expected.view().slice(2, i, end))) << i;
    }
  }
}

/// What turns in float64 before anything is rounded, as apply does with float64: the oracle of single roundings.
TEST_P(CacheThatTurns, KeysAreRoundedOnce) {
  for (const auto& [name, rope] : ropes_of_caches()) {
    for (const Dtype from : {Dtype::kFloat32, Dtype::kFloat64}) {
      for (const Layout layout : kAllLayouts) {
        SCOPED_TRACE(name + " from " + std::string(name_of(from)));
        const Guarded k({2, 2, 40, kRopeDim}, from, layout);
        Random(7).fill_normal(k);
        const Tensor expected = cast(turned(rope, cast(k, Dtype::kFloat64)), GetParam());
        KVCache cache(slots(rope));
        cache.append(k.view().slice(2, 0, 1), k.view().slice(2, 0, 1));
        cache.append(k.view().slice(2, 1, 40), k.view().slice(2, 1, 40));
        EXPECT_TRUE(same_bits(cache.view().k.slice(2, 0, 40), expected));
        EXPECT_TRUE(same_bits(cache.view().v.slice(2, 0, 40), cast(k, GetParam()))) << "values do not turn";
      }
    }
  }
}

TEST_P(CacheThatTurns, KeysOf16BitsTurnInFloat32) {
  for (const auto& [name, rope] : ropes_of_caches()) {
    for (const Dtype from : {Dtype::kFloat16, Dtype::kBFloat16}) {
      SCOPED_TRACE(name + " from " + std::string(name_of(from)));
      const Tensor k = Random(8).normal_tensor({2, 2, 9, kRopeDim}, from);
      Tensor expected(k.shape(), Dtype::kFloat32);
      attention_detail::RopeRows rows(rope, {from, Dtype::kFloat32}, 1);
      for_each_index({2, 2, 9}, [&](const Extents& at) {
        const std::int64_t offset = ((at[0] * 2 + at[1]) * 9 + at[2]) * kRopeDim;
        rows.set_turn(0, at[2]);
        rows.rotate({.from = static_cast<const char*>(k.view().data()) + 2 * offset,
                     .to = expected.as<float>() + offset,
                     .count = 1});
      });
      KVCache cache(slots(rope));
      cache.append(k, k);
      EXPECT_TRUE(same_bits(cache.view().k.slice(2, 0, 9), cast(expected, GetParam())));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CacheThatTurns, ::testing::ValuesIn(kReal),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

TEST(KVRope, EightBitsAreThoseOfTurnedKeysAndWithinTheBound) {
  Random random(9);
  const Tokens tokens(random, {2, 2, 60, kRopeDim});
  for (const auto& [name, rope] : ropes_of_caches()) {
    SCOPED_TRACE(name);
    KVCache cache(with_rope(small_options(Dtype::kInt8), rope));
    KVCache plain(small_options(Dtype::kInt8));
    append(cache, tokens, 0, 60);
    const Tensor exact = turned(rope, tokens.k);
    plain.append(exact, tokens.v);
    EXPECT_TRUE(same_bits(cache.view().k.slice(2, 0, 60), plain.view().k.slice(2, 0, 60)));
    EXPECT_TRUE(same_bits(cache.view().k_scales->slice(2, 0, 60), plain.view().k_scales->slice(2, 0, 60)));
    for_each_index(exact.shape(), [&](const Extents& at) {
      const double scale = read(*cache.view().k_scales, {at[0], at[1], at[2]});
      ASSERT_LE(std::abs(read(exact, at) - static_cast<float>(read(cache.view().k, at) * scale)), 0.5001 * scale);
    });
  }
}

TEST(KVRope, RowsOfEveryDtypeBeside16Bits) {
  Random random(10);
  const Rope rope(kRopeDim);
  const Tokens tokens(random, {2, 2, 30, kRopeDim}, Dtype::kBFloat16);
  KVCache cache(with_rope(small_options(Dtype::kBFloat16), rope));
  append(cache, tokens, 0, 30);
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBFloat16}) {
    const Tensor q = random.normal_tensor({2, 4, 3, kRopeDim}, dtype);
    Tensor expected(q.shape(), dtype);
    attention(turned(rope, q, 27), turned(rope, tokens.k), tokens.v, expected, {.causal = true});
    EXPECT_TRUE(same_bits(attend_to(q, cache.view(), {.causal = true}), expected)) << name_of(dtype);
  }
}

TEST(KVRope, EverySequenceHasItsOwnPositions) {
  Random random(11);
  const Rope rope(kRopeDim);
  const Tokens tokens(random, {3, 2, 20, kRopeDim});
  const Tensor q = random.normal_tensor({3, 4, 2, kRopeDim}, Dtype::kFloat32);
  const std::vector<std::int64_t> first{3, 20, 0};  // from one position on, of the second more than of the first
  const std::vector<std::int64_t> then{12, 1, 7};
  const auto check = [&](auto cache, const AttentionOptions& options, const std::vector<std::int64_t>& rows) {
    cache.append(tokens.k, tokens.v, first);
    cache.append(tokens.k, tokens.v, then);
    const Tensor out = attend_to(q, cache.view(), options);
    for (std::int64_t b = 0; b < 3; ++b) {
      const auto at = static_cast<std::size_t>(b);
      const std::int64_t length = first[at] + then[at];
      Tensor k({1, 2, length, kRopeDim}, Dtype::kFloat32);
      Tensor v(k.shape(), Dtype::kFloat32);
      for (const auto& [from, to] : {std::pair{&tokens.k, &k}, {&tokens.v, &v}}) {
        const ConstTensorView mine = from->view().slice(0, b, b + 1);
        const TensorView kept = *to;
        copy(mine.slice(2, 0, first[at]), kept.slice(2, 0, first[at]));
        copy(mine.slice(2, 0, then[at]), kept.slice(2, first[at], length));
      }
      Tensor expected({1, 4, 2, kRopeDim}, Dtype::kFloat32);
      AttentionOptions alone = options;
      alone.query_offset = rows[at];
      attention(turned(rope, q.view().slice(0, b, b + 1), rows[at]), turned(rope, k), v, expected, alone);
      EXPECT_TRUE(same_bits(out.view().slice(0, b, b + 1), expected)) << b;
    }
  };
  const KVCacheOptions slots{.batch = 3, .num_kv_heads = 2, .head_dim = kRopeDim, .capacity = 30};
  const PagedKVCacheOptions pages{.batch = 3, .num_kv_heads = 2, .head_dim = kRopeDim, .num_pages = 20, .page_size = 4};
  check(KVCache(with_rope(slots, rope)), {.causal = true}, {13, 19, 5});
  check(PagedKVCache(with_rope(pages, rope)), {.causal = true}, {13, 19, 5});
  const std::vector<std::int64_t> given{-4, 100, 7};
  check(KVCache(with_rope(slots, rope)), {.query_offset = view(given.data(), {3})}, given);
  check(KVCache(with_rope(slots, rope)), {.query_offset = 40}, {40, 40, 40});
}

TEST(KVRope, SharedPagesHoldTurnedKeys) {
  Random random(12);
  const Rope rope(kRopeDim);
  const Tokens prompt(random, {1, 2, 21, kRopeDim});
  const Tokens more(random, {2, 2, 9, kRopeDim});
  const Tensor q = random.normal_tensor({2, 4, 1, kRopeDim}, Dtype::kFloat32);
  PagedKVCacheOptions options = with_rope(small_pages(Dtype::kFloat32, 8), rope);
  options.batch = 1;
  PagedKVCache cache(options);
  append(cache, prompt, 0, 21);
  cache.grow(2);
  cache.share(0, 1, 21);
  append(cache, more, 0, 9);
  const Tensor out = attend_to(q, cache.view());
  for (std::int64_t b = 0; b < 2; ++b) {
    PagedKVCache alone(options);
    append(alone, prompt, 0, 21);
    alone.append(more.keys(0, 9).slice(0, b, b + 1), more.values(0, 9).slice(0, b, b + 1));
    Tensor row({1, 4, 1, kRopeDim}, Dtype::kFloat32);
    copy(q.view().slice(0, b, b + 1), row);
    EXPECT_TRUE(same_bits(out.view().slice(0, b, b + 1), attend_to(row, alone.view()))) << b;
  }
}

TEST(KVRope, TruncatedGrownAndMovedCachesGoOnTurning) {
  Random random(13);
  const Rope rope(kRopeDim);
  const Tokens tokens(random, {2, 2, 60, kRopeDim});
  const Tensor q = random.normal_tensor({2, 4, 3, kRopeDim}, Dtype::kFloat32);
  const auto check = [&](auto cache) {
    append(cache, tokens, 0, 40);
    cache.truncate(std::vector<std::int64_t>{25, 25});
    auto moved = std::move(cache);
    moved.grow(3);
    moved.append(cast(Random(14).normal_tensor({3, 2, 60, kRopeDim}, Dtype::kFloat32), Dtype::kFloat64),
                 Random(14).normal_tensor({3, 2, 60, kRopeDim}, Dtype::kFloat32), std::vector<std::int64_t>{0, 0, 9});
    Tokens rest(random, {3, 2, 30, kRopeDim});
    for (auto* tensor : {&rest.k, &rest.v}) {
      const Tensor& all = tensor == &rest.k ? tokens.k : tokens.v;
      copy(all.view().slice(2, 25, 55), tensor->view().slice(0, 0, 2));
    }
    moved.append(rest.k, rest.v, std::vector<std::int64_t>{30, 30, 0});
    EXPECT_THAT(moved.lengths(), ::testing::ElementsAre(55, 55, 9));
    Tensor rows({3, 4, 3, kRopeDim}, Dtype::kFloat32);
    copy(q, rows.view().slice(0, 0, 2));
    Tensor expected(q.shape(), Dtype::kFloat32);
    attention(turned(rope, q, 52), turned(rope, tokens.keys(0, 55)), tokens.values(0, 55), expected, {.causal = true});
    EXPECT_TRUE(same_bits(attend_to(rows, moved.view(), {.causal = true}).view().slice(0, 0, 2), expected));
  };
  check(KVCache(with_rope(small_options(), rope)));
  check(PagedKVCache(with_rope(small_pages(Dtype::kFloat32, 8), rope)));
}

TEST(KVRope, ARopeThatWasMovedFromStillTurns) {
  Rope rope(kRopeDim);
  const Rope moved = std::move(rope);
  KVCacheOptions options = small_options();
  options.rope = std::move(rope);  // NOLINT(bugprone-use-after-move,performance-move-const-arg)
  const KVCacheOptions given = std::move(options);
  EXPECT_EQ(KVCache(options).options().rope->head_dim(), kRopeDim);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(KVCache(given).view().rope->head_dim(), moved.head_dim());
}

}  // namespace
}  // namespace qkv::support
