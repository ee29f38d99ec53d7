// The caches: what is appended, in whatever pieces, is what attention reads; nothing is lost or overwritten in silence.
#include "qkv/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "attention/kv_tokens.h"
#include "support/on_target.h"

namespace qkv::support {
namespace {

using ::testing::HasSubstr;

constexpr Dtype kStorage[] = {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBFloat16, Dtype::kInt8};

/// A number as the dtype keeps it.
double kept_as(double x, Dtype dtype) {
  Tensor number({}, dtype);
  write(number, {}, x);
  return read(number, {});
}

class CacheOfDtype : public ::testing::TestWithParam<Dtype> {};

TEST_P(CacheOfDtype, PiecesGiveTheBitsOfOneAppend) {
  Random random(1);
  const Tokens tokens(random, {2, 2, 75, 24});
  const Tensor q = random.normal_tensor({2, 4, 3, 24}, Dtype::kFloat32);
  const auto in_pieces = [&](auto cache) {
    for (const auto& [begin, end] : {std::pair{0, 1}, {1, 8}, {8, 72}, {72, 75}}) append(cache, tokens, begin, end);
    return attend_to(q, cache.view(), {.causal = true});
  };
  KVCache whole(small_options(GetParam()));
  append(whole, tokens, 0, 75);
  const Tensor expected = attend_to(q, whole.view(), {.causal = true});
  EXPECT_TRUE(same_bits(in_pieces(KVCache(small_options(GetParam()))), expected));
  EXPECT_TRUE(same_bits(in_pieces(PagedKVCache(small_pages(GetParam()))), expected));
  PagedKVCacheOptions odd = small_pages(GetParam(), 7);
  odd.num_pages = 22;
  EXPECT_TRUE(same_bits(in_pieces(PagedKVCache(odd)), expected));
}

TEST_P(CacheOfDtype, ChunkedPrefillIsOnePass) {
  Random random(2);
  const Tokens tokens(random, {2, 2, 75, 24});
  const Tensor q = random.normal_tensor({2, 4, 75, 24}, Dtype::kFloat32);
  KVCache whole(small_options(GetParam()));
  append(whole, tokens, 0, 75);
  const Tensor expected = attend_to(q, whole.view(), {.causal = true});
  KVCache cache(small_options(GetParam()));
  for (const auto& [begin, end] : {std::pair{0, 30}, {30, 31}, {31, 75}}) {
    append(cache, tokens, begin, end);
    Tensor rows({2, 4, end - begin, 24}, Dtype::kFloat32);
    copy(q.view().slice(2, begin, end), rows);
    EXPECT_TRUE(same_bits(attend_to(rows, cache.view(), {.causal = true}), expected.view().slice(2, begin, end)));
  }
}

TEST_P(CacheOfDtype, KeepsNumbersRoundedOnce) {
  Random random(3);
  const Tokens tokens(random, {2, 2, 9, 24});
  KVCache cache(small_options(GetParam()));
  append(cache, tokens, 0, 9);
  const KVView kv = cache.view();
  for_each_index({2, 2, 9}, [&](const Extents& at) {
    double largest = 0;
    for (std::int64_t c = 0; c < 24; ++c)
      largest = std::max(largest, std::abs(read(tokens.k, {at[0], at[1], at[2], c})));
    for (std::int64_t c = 0; c < 24; ++c) {
      const double x = read(tokens.k, {at[0], at[1], at[2], c});
      const double kept = read(kv.k, {at[0], at[1], at[2], c});
      if (GetParam() != Dtype::kInt8) {
        ASSERT_EQ(kept, kept_as(x, GetParam())) << to_string(at);
        continue;
      }
      const double scale = read(*kv.k_scales, at);
      ASSERT_EQ(scale, static_cast<double>(static_cast<float>(largest / 127))) << to_string(at);
      ASSERT_LE(std::abs(x - static_cast<float>(kept * scale)), 0.5001 * scale) << to_string(at);
    }
  });
}

TEST(KVCache, NumbersOfAnyDtypeAndStrideAreRoundedOnce) {
  // The middle between two numbers of 16 bits, and a little more: float32 rounds it to the middle, which then goes to even.
  const double tie = 1 + 0x1p-8 + 0x1p-30;
  const double half_tie = 1 + 0x1p-11 + 0x1p-30;
  for (const Dtype to : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16}) {
    for (const Dtype from : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16}) {
      for (const Layout layout : kAllLayouts) {
        SCOPED_TRACE(std::string(name_of(from)) + " to " + std::string(name_of(to)));
        Random random(15);
        Guarded k({1, 2, 3, 7}, from, layout);
        random.fill_normal(k);
        write(k, {0, 0, 0, 0}, tie);
        write(k, {0, 1, 2, 6}, half_tie);
        KVCache cache({.num_kv_heads = 2, .head_dim = 7, .capacity = 3, .k_dtype = to, .v_dtype = to});
        cache.append(k, k);
        for_each_index({1, 2, 3, 7}, [&](const Extents& at) {
          ASSERT_EQ(read(cache.view().k, at), kept_as(read(k, at), to)) << to_string(at);
          ASSERT_EQ(read(cache.view().v, at), kept_as(read(k, at), to)) << to_string(at);
        });
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CacheOfDtype, ::testing::ValuesIn(kStorage),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

TEST(KVCache, KeysAndValuesHaveTheirOwnDtypes) {
  Random random(4);
  const Tokens tokens(random, {1, 1, 20, 16});
  for (const Dtype k_dtype : kStorage) {
    for (const Dtype v_dtype : kStorage) {
      KVCache cache({.head_dim = 16, .capacity = 20, .k_dtype = k_dtype, .v_dtype = v_dtype});
      append(cache, tokens, 0, 20);
      const KVView kv = cache.view();
      EXPECT_EQ(kv.k.dtype(), k_dtype);
      EXPECT_EQ(kv.v.dtype(), v_dtype);
      EXPECT_EQ(kv.k_scales.has_value(), k_dtype == Dtype::kInt8);
      EXPECT_EQ(kv.v_scales.has_value(), v_dtype == Dtype::kInt8);
      EXPECT_EQ(cache.nbytes(), 20 * 16 * static_cast<std::int64_t>(size_of(k_dtype) + size_of(v_dtype)) +
                                    20 * 4 * ((k_dtype == Dtype::kInt8 ? 1 : 0) + (v_dtype == Dtype::kInt8 ? 1 : 0)));
    }
  }
}

TEST(KVCache, BytesAreTheFormulaForMhaGqaAndMqa) {
  for (const std::int64_t kv_heads : {32, 8, 1}) {
    const KVCacheOptions options{.batch = 2,
                                 .num_kv_heads = kv_heads,
                                 .head_dim = 128,
                                 .capacity = 64,
                                 .value_dim = 96,
                                 .k_dtype = Dtype::kBFloat16,
                                 .v_dtype = Dtype::kInt8};
    EXPECT_EQ(KVCache(options).nbytes(), 2 * kv_heads * 64 * (128 * 2 + 96 * 1 + 4));
  }
  EXPECT_EQ(PagedKVCache({.num_kv_heads = 8, .head_dim = 128, .num_pages = 10, .page_size = 16}).nbytes(),
            10 * 8 * 16 * 2 * 128 * 4);
}

TEST(KVCache, AScaleHasNoFloorAndZerosStayZeros) {
  KVCache cache({.head_dim = 4, .capacity = 4, .k_dtype = Dtype::kInt8, .v_dtype = Dtype::kInt8});
  const Tensor k = tensor_of({1, 1, 2, 4}, Dtype::kFloat32, {0.3, -0.1, 0.2, 0, 0, 0, 0, 0});
  cache.append(k, k);
  const KVView kv = cache.view();
  EXPECT_EQ(read(*kv.k_scales, {0, 0, 0}), static_cast<double>(0.3f / 127));
  EXPECT_EQ(read(*kv.k_scales, {0, 0, 1}), 0);
  EXPECT_EQ(read(kv.k, {0, 0, 0, 0}), 127);
  const Tensor q = tensor_of({1, 1, 1, 4}, Dtype::kFloat32, {0});
  EXPECT_NEAR(read(attend_to(q, kv), {0, 0, 0, 0}), 0.15, 1e-6);
}

TEST(KVCache, EightBitsHoldTheSmallestAndTheLargestNumbers) {
  const double most = static_cast<double>(std::numeric_limits<float>::max());
  for (const double largest : {most, most * 0.9, 1e38, 1.0, 1e-30, 1e-38, 1e-40, 2e-43, 1.4e-45}) {
    KVCache cache({.head_dim = 3, .capacity = 1, .k_dtype = Dtype::kInt8, .v_dtype = Dtype::kInt8});
    const Tensor row = tensor_of({1, 1, 1, 3}, Dtype::kFloat32, {largest, -largest / 3, largest / 7});
    cache.append(row, row);
    const double scale = read(*cache.view().k_scales, {0, 0, 0});
    ASSERT_TRUE(std::isfinite(static_cast<float>(127 * scale))) << largest;
    for (std::int64_t c = 0; c < 3; ++c) {
      const double kept = static_cast<float>(read(cache.view().k, {0, 0, 0, c}) * scale);
      EXPECT_LE(std::abs(kept - read(row, {0, 0, 0, c})), 0.5001 * scale) << largest << " column " << c;
    }
  }
}

TEST(KVCache, ATokenThatIsNotFiniteIsNaNInEightBits) {
  for (const double bad : {kNaN, kInf, -kInf}) {
    KVCache cache({.num_kv_heads = 2, .head_dim = 2, .capacity = 4, .k_dtype = Dtype::kInt8, .v_dtype = Dtype::kInt8});
    Tensor k = tensor_of({1, 2, 2, 2}, Dtype::kFloat32, {1});
    write(k, {0, 1, 1, 0}, bad);
    cache.append(k, tensor_of({1, 2, 2, 2}, Dtype::kFloat32, {1}));
    const Tensor q = tensor_of({1, 2, 2, 2}, Dtype::kFloat32, {1});
    const Tensor out = attend_to(q, cache.view(), {.causal = true});
    EXPECT_EQ(read(out, {0, 0, 1, 0}), 1) << "another head";
    EXPECT_EQ(read(out, {0, 1, 0, 0}), 1) << "a row that does not see it";
    EXPECT_TRUE(std::isnan(read(out, {0, 1, 1, 0})));
  }
}

TEST(KVCache, EightBitsAreOffByNoMoreThanTheBound) {
  // With delta the largest error of a logit, weights change by factors within exp(+-2 delta), and what meets them by half
  // a step: |error| <= (exp(2 delta) - 1) * (sum of weights * |v|) + half the largest step of v.
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Tokens tokens(random, {1, 1, 50, 32});
    const Tensor q = random.normal_tensor({1, 1, 4, 32}, Dtype::kFloat32);
    KVCache cache({.head_dim = 32, .capacity = 50, .k_dtype = Dtype::kInt8, .v_dtype = Dtype::kInt8});
    append(cache, tokens, 0, 50);
    Tensor exact({1, 1, 4, 32}, Dtype::kFloat32);
    reference::attention(q, tokens.k, tokens.v, exact);
    Tensor sizes(tokens.v.shape(), Dtype::kFloat32);
    double v_step = 0;
    double k_step = 0;
    for_each_index(sizes.shape(), [&](const Extents& at) { write(sizes, at, std::abs(read(tokens.v, at))); });
    for (std::int64_t j = 0; j < 50; ++j) {
      v_step = std::max(v_step, read(*cache.view().v_scales, {0, 0, j}));
      k_step = std::max(k_step, read(*cache.view().k_scales, {0, 0, j}));
    }
    Tensor weighted({1, 1, 4, 32}, Dtype::kFloat32);
    reference::attention(q, tokens.k, sizes, weighted);
    const Tensor out = attend_to(q, cache.view());
    for_each_index(out.shape(), [&](const Extents& at) {
      double q_size = 0;
      for (std::int64_t c = 0; c < 32; ++c) q_size += std::abs(read(q, {0, 0, at[2], c}));
      const double delta = q_size * 0.5001 * k_step / std::sqrt(32.0);
      const double allowed = std::expm1(2 * delta) * read(weighted, at) + 0.5001 * v_step + 1e-5;
      ASSERT_LE(std::abs(read(out, at) - read(exact, at)), allowed) << to_string(at);
    });
  }
}

TEST(KVCache, SequencesOfABatchGrowAtTheirOwnPace) {
  Random random(5);
  const Tokens tokens(random, {3, 1, 10, 8});
  const Tensor q = random.normal_tensor({3, 1, 1, 8}, Dtype::kFloat32);
  const std::vector<std::int64_t> counts{10, 0, 4};
  const auto check = [&](auto cache) {
    cache.append(tokens.k, tokens.v, counts);
    EXPECT_THAT(cache.lengths(), ::testing::ElementsAre(10, 0, 4));
    const Tensor out = attend_to(q, cache.view());
    for (std::int64_t b = 0; b < 3; ++b) {
      Tensor alone({1, 1, 1, 8}, Dtype::kFloat32);
      attention(q.view().slice(0, b, b + 1), tokens.keys(0, counts[static_cast<std::size_t>(b)]).slice(0, b, b + 1),
                tokens.values(0, counts[static_cast<std::size_t>(b)]).slice(0, b, b + 1), alone);
      EXPECT_TRUE(same_bits(out.view().slice(0, b, b + 1), alone)) << b;
    }
  };
  check(KVCache({.batch = 3, .head_dim = 8, .capacity = 12}));
  check(PagedKVCache({.batch = 3, .head_dim = 8, .num_pages = 5, .page_size = 4}));
}

TEST(KVCache, AFullCacheSaysHowFullAndKeepsWhatItHas) {
  Random random(6);
  const Tokens tokens(random, {2, 2, 81, 24});
  const Tensor q = random.normal_tensor({2, 2, 1, 24}, Dtype::kFloat32);
  KVCache cache(small_options());
  append(cache, tokens, 0, 78);
  const Tensor before = attend_to(q, cache.view());
  EXPECT_EQ(
      error_of<ValueError>([&] { append(cache, tokens, 78, 81); }),
      "qkv::KVCache::append: k: the cache is full: sequence 0 holds 78 of 80 keys and has room for 2 more, got 3; "
      "nothing was appended");
  EXPECT_THAT(cache.lengths(), ::testing::ElementsAre(78, 78));
  EXPECT_TRUE(same_bits(attend_to(q, cache.view()), before));
  append(cache, tokens, 78, 80);

  KVCache uneven(small_options());
  uneven.append(tokens.k.view().slice(2, 0, 78), tokens.v.view().slice(2, 0, 78), std::vector<std::int64_t>{40, 78});
  EXPECT_THAT(error_of<ValueError>([&] { append(uneven, tokens, 0, 3); }), HasSubstr("sequence 1 holds 78 of 80 keys"));
  EXPECT_THAT(uneven.lengths(), ::testing::ElementsAre(40, 78));

  PagedKVCache pages(small_pages(Dtype::kFloat32, 8));
  append(pages, tokens, 0, 78);
  EXPECT_EQ(
      error_of<ValueError>([&] { append(pages, tokens, 78, 81); }),
      "qkv::PagedKVCache::append: k: the cache is full: 0 pages of 8 keys are free of 20, 2 are needed; nothing was "
      "appended");
  EXPECT_THAT(pages.lengths(), ::testing::ElementsAre(78, 78));
  append(pages, tokens, 78, 80);
}

TEST(KVCache, TruncatedKeysAreForgotten) {
  Random random(7);
  const Tokens first(random, {2, 2, 60, 24});
  const Tokens second(random, {2, 2, 10, 24});
  const Tensor q = random.normal_tensor({2, 2, 2, 24}, Dtype::kFloat32);
  const auto check = [&](auto cache, auto fresh) {
    append(cache, first, 0, 60);
    cache.truncate(std::vector<std::int64_t>{20, 33});
    append(cache, second, 0, 10);
    fresh.append(first.k, first.v, std::vector<std::int64_t>{20, 33});
    append(fresh, second, 0, 10);
    EXPECT_TRUE(same_bits(attend_to(q, cache.view()), attend_to(q, fresh.view())));
  };
  check(KVCache(small_options(Dtype::kInt8)), KVCache(small_options(Dtype::kInt8)));
  check(PagedKVCache(small_pages()), PagedKVCache(small_pages()));
}

TEST(KVCache, GrowingLeavesWhatIsThere) {
  Random random(8);
  const Tokens one(random, {1, 2, 30, 24});
  const Tokens two(random, {2, 2, 15, 24});
  const Tensor q = random.normal_tensor({2, 2, 1, 24}, Dtype::kFloat32);
  const auto check = [&](auto cache, auto alone) {
    append(cache, one, 0, 30);
    cache.grow(2);
    append(cache, two, 0, 15);
    EXPECT_THAT(cache.lengths(), ::testing::ElementsAre(45, 15));
    append(alone, one, 0, 30);
    alone.append(two.k.view().slice(0, 0, 1), two.v.view().slice(0, 0, 1));
    const Tensor out = attend_to(q, cache.view());
    Tensor first({1, 2, 1, 24}, Dtype::kFloat32);
    attention(q.view().slice(0, 0, 1), alone.view(), first);
    EXPECT_TRUE(same_bits(out.view().slice(0, 0, 1), first));
  };
  const KVCacheOptions options{
      .num_kv_heads = 2, .head_dim = 24, .capacity = 50, .k_dtype = Dtype::kInt8, .v_dtype = Dtype::kInt8};
  check(KVCache(options), KVCache(options));
  const PagedKVCacheOptions pages{.num_kv_heads = 2,
                                  .head_dim = 24,
                                  .num_pages = 8,
                                  .page_size = 16,
                                  .k_dtype = Dtype::kInt8,
                                  .v_dtype = Dtype::kInt8};
  check(PagedKVCache(pages), PagedKVCache(pages));
  KVCache cache(options);
  cache.grow(3);
  EXPECT_THAT(error_of<ValueError>([&] { cache.grow(2); }), HasSubstr("grow: batch: expected 3 to 2147483647, got 2"));
}

TEST(KVCache, SizesNameWhatIsWrong) {
  const auto made = [](const KVCacheOptions& options) { return error_of<ValueError>([&] { KVCache cache(options); }); };
  EXPECT_EQ(made({.batch = -1}), "qkv::KVCache: batch: expected 0 to 2147483647, got -1");
  EXPECT_EQ(made({.batch = std::int64_t{1} << 60}),
            "qkv::KVCache: batch: expected 0 to 2147483647, got 1152921504606846976");
  EXPECT_EQ(made({.num_kv_heads = 0}), "qkv::KVCache: num_kv_heads: expected 1 or more, got 0");
  EXPECT_EQ(made({.head_dim = 0}), "qkv::KVCache: head_dim: expected 1 or more, got 0");
  EXPECT_EQ(made({.value_dim = -1}), "qkv::KVCache: value_dim: expected 0 or more, got -1");
  EXPECT_EQ(made({.capacity = -1}), "qkv::KVCache: capacity: expected 0 or more, got -1");
  EXPECT_EQ(
      made({.capacity = std::int64_t{1} << 62}),
      "qkv::KVCache: 1 entries of 1 heads, 4611686018427387904 slots and 64 columns have more bytes than 63 bits can "
      "count");
  EXPECT_THAT(error_of<DtypeError>([] { KVCache cache({.k_dtype = Dtype::kInt32}); }),
              HasSubstr("k_dtype: expected float32, float64, float16, bfloat16 or int8, got int32"));
  EXPECT_EQ(error_of<ValueError>([] { PagedKVCache cache({.page_size = 0}); }),
            "qkv::PagedKVCache: page_size: expected 1 to 2147483647, got 0");
}

TEST(KVCache, ItsOwnMemoryIsNotAppendedToIt) {
  Random random(13);
  const Tokens tokens(random, {1, 1, 4, 8});
  const auto check = [&](auto cache) {
    append(cache, tokens, 0, 4);
    const KVView kv = cache.view();
    EXPECT_THAT(error_of<ValueError>([&] { cache.append(kv.k.slice(2, 0, 2), tokens.values(0, 2)); }),
                HasSubstr("append: k: [1, 1, 2, 8] shares memory with the cache"));
    EXPECT_THAT(error_of<ValueError>([&] { cache.append(tokens.keys(0, 2), kv.v.slice(2, 0, 2)); }),
                HasSubstr("append: v: [1, 1, 2, 8] shares memory with the cache"));
    EXPECT_THAT(error_of<ValueError>([&] { cache.append(kv.v.slice(2, 0, 2), tokens.values(0, 2)); }),
                HasSubstr("append: k: [1, 1, 2, 8] shares memory with the cache"));
  };
  check(KVCache({.head_dim = 8, .capacity = 4, .window = 4}));
  check(PagedKVCache({.head_dim = 8, .num_pages = 1, .page_size = 16}));
}

TEST(KVCache, AfterAMoveItSaysSo) {
  KVCache cache(small_options());
  const KVCache moved = std::move(cache);
  EXPECT_EQ(error_of<ValueError>([&] { cache.view(); }),  // NOLINT(bugprone-use-after-move)
            "qkv::KVCache: used after it was moved from");
  PagedKVCache pages(small_pages());
  const PagedKVCache taken = std::move(pages);
  EXPECT_EQ(error_of<ValueError>([&] { pages.num_free_pages(); }),  // NOLINT(bugprone-use-after-move)
            "qkv::PagedKVCache: used after it was moved from");
}

TEST(KVCache, ValuesMayHaveNoColumns) {
  const auto check = [](auto cache) {
    const Tensor k({1, 1, 3, 8}, Dtype::kFloat32);
    const ConstTensorView v(nullptr, Dtype::kFloat32, {1, 1, 3, 0}, {std::int64_t{1} << 62, -1, -5, 7});
    cache.append(k, v);
    Tensor out({1, 1, 1, 0}, Dtype::kFloat32);
    attention(k.view().slice(2, 0, 1), cache.view(), out);
    EXPECT_THAT(cache.lengths(), ::testing::ElementsAre(3));
  };
  check(KVCache({.head_dim = 8, .capacity = 4, .value_dim = 0}));
  check(PagedKVCache({.head_dim = 8, .num_pages = 2, .page_size = 2, .value_dim = 0}));
}

TEST(KVCache, LogitsBeforeMasksNeedEqualLengths) {
  Random random(14);
  const Tokens tokens(random, {2, 1, 5, 8});
  KVCache cache({.batch = 2, .head_dim = 8, .capacity = 5});
  cache.append(tokens.k, tokens.v, std::vector<std::int64_t>{5, 2});
  Tensor out({2, 1, 1, 8}, Dtype::kFloat32);
  Tensor logits({2, 1, 1, 5}, Dtype::kFloat32);
  const auto ask = [&](LogitsStage stage) {
    attention(tokens.keys(0, 1), cache.view(), out, {}, {.logits = Logits{.out = logits, .stage = stage}});
  };
  EXPECT_EQ(error_of<ValueError>([&] { ask(LogitsStage::kScaled); }),
            "qkv::attention: logits: before masks they are of every key, and batch 1 has 2 of 5 keys");
  ask(LogitsStage::kMasked);
  EXPECT_EQ(read(logits, {1, 0, 0, 2}), -kInf);
}

}  // namespace
}  // namespace qkv::support
