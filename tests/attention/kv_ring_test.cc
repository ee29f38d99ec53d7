// A ring with sinks: what it keeps is at its absolute position, and what it has dropped is never read in silence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attention/kv_tokens.h"
#include "support/on_target.h"

namespace qkv::support {
namespace {

using ::testing::HasSubstr;

/// One long sequence of keys, values and queries.
struct Stream {
  Tensor q, k, v;
  explicit Stream(std::int64_t length) {
    Random random(1);
    q = random.normal_tensor({1, 2, length, 16}, Dtype::kFloat32);
    k = random.normal_tensor({1, 1, length, 16}, Dtype::kFloat32);
    v = random.normal_tensor({1, 1, length, 16}, Dtype::kFloat32);
  }

  /// The same rows over all keys, the visible ones by a mask.
  Tensor by_mask(std::int64_t window, std::int64_t sinks) const {
    const std::int64_t length = q.shape()[2];
    Tensor mask({length, length}, Dtype::kBool);
    for_each_index(mask.shape(), [&](const Extents& at) {
      write(mask, at, at[1] <= at[0] && (at[1] > at[0] - window || at[1] < sinks) ? 1 : 0);
    });
    Tensor out(q.shape(), Dtype::kFloat32);
    attention(q, k, v, out, {.mask = mask.view()});
    return out;
  }

  void append(KVCache& cache, std::int64_t begin, std::int64_t end) const {
    cache.append(k.view().slice(2, begin, end), v.view().slice(2, begin, end));
  }
  Tensor attend(const KVCache& cache, std::int64_t begin, std::int64_t end, const Window& window = {}) const {
    Tensor out({1, 2, end - begin, 16}, Dtype::kFloat32);
    attention(q.view().slice(2, begin, end), cache.view(), out, {.causal = true, .window = window});
    return out;
  }
};

KVCacheOptions ring(std::int64_t window, std::int64_t sinks, std::int64_t more) {
  return {.head_dim = 16, .capacity = window + sinks + more, .window = window, .num_sinks = sinks};
}

TEST(KVRing, DecodingIsASlidingWindowBesideTheSinks) {
  constexpr std::int64_t kLength = 700;
  const Stream stream(kLength);
  for (const std::int64_t sinks : {0, 4}) {
    const Tensor expected = stream.by_mask(30, sinks);
    KVCache cache(ring(30, sinks, 0));
    for (std::int64_t i = 0; i < kLength; ++i) {
      stream.append(cache, i, i + 1);
      ASSERT_TRUE(same_bits(stream.attend(cache, i, i + 1), expected.view().slice(2, i, i + 1))) << i;
    }
    EXPECT_THAT(cache.lengths(), ::testing::ElementsAre(kLength));
  }
}

TEST(KVRing, SequencesOfABatchTurnAtTheirOwnPace) {
  constexpr std::int64_t kLength = 150;
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16, Dtype::kInt8}) {
    Random random(4);
    const Tensor k = random.normal_tensor({3, 2, kLength, 16}, Dtype::kFloat32);
    const Tensor v = random.normal_tensor({3, 2, kLength, 16}, Dtype::kFloat32);
    const Tensor q = random.normal_tensor({3, 4, 1, 16}, Dtype::kFloat32);
    KVCache ring_cache({.batch = 3,
                        .num_kv_heads = 2,
                        .head_dim = 16,
                        .capacity = 31,
                        .k_dtype = dtype,
                        .v_dtype = dtype,
                        .window = 20,
                        .num_sinks = 3});
    KVCache whole({.batch = 3,
                   .num_kv_heads = 2,
                   .head_dim = 16,
                   .capacity = 500,
                   .k_dtype = dtype,
                   .v_dtype = dtype,
                   .num_sinks = 3});
    for (int round = 0; round < 40; ++round) {
      std::vector<std::int64_t> counts;
      for (int b = 0; b < 3; ++b) counts.push_back(random.integer(0, 8));
      const std::int64_t begin = random.integer(0, kLength - 8);
      for (KVCache* cache : {&ring_cache, &whole}) {
        cache->append(k.view().slice(2, begin, begin + 8), v.view().slice(2, begin, begin + 8), counts);
      }
      Tensor out(q.shape(), Dtype::kFloat32);
      Tensor expected(q.shape(), Dtype::kFloat32);
      attention(q, ring_cache.view(), out, {.causal = true});
      attention(q, whole.view(), expected, {.causal = true, .window = {.left = 19}});
      ASSERT_TRUE(same_bits(out, expected)) << name_of(dtype) << " round " << round;
    }
    EXPECT_GT(ring_cache.lengths()[0], 31);
  }
}

TEST(KVRing, SpareSlotsLetSeveralRowsAttendAtOnce) {
  const Stream stream(400);
  const Tensor expected = stream.by_mask(30, 4);
  KVCache cache(ring(30, 4, 19));
  for (std::int64_t i = 0; i < 400; i += 20) {
    stream.append(cache, i, i + 20);
    ASSERT_TRUE(same_bits(stream.attend(cache, i, i + 20), expected.view().slice(2, i, i + 20))) << i;
  }
  stream.append(cache, 0, 21);  // one more than the spare slots allow
  EXPECT_EQ(
      error_of<ValueError>([&] { stream.attend(cache, 0, 21); }),
      "qkv::attention: q: the first of 21 rows of batch 0, at position 400, sees keys from 371 on, but the ring holds "
      "those from 372 on; append fewer keys between two calls, or give a narrower window");
  EXPECT_NO_THROW(stream.attend(cache, 0, 21, {.left = 28}));
  EXPECT_NO_THROW(stream.attend(cache, 0, 20));
}

TEST(KVRing, MoreThanItHoldsKeepsTheSinksAndTheLast) {
  const Stream stream(300);
  KVCache at_once(ring(30, 4, 0));
  stream.append(at_once, 0, 300);
  const Tensor expected = stream.by_mask(30, 4);
  EXPECT_TRUE(same_bits(stream.attend(at_once, 299, 300), expected.view().slice(2, 299, 300)));
}

TEST(KVRing, SinksAreVisibleWhateverTheWindowSays) {
  const Stream stream(300);
  KVCache cache(ring(30, 4, 0));
  stream.append(cache, 0, 300);
  const Tensor expected = stream.by_mask(1, 4);
  EXPECT_TRUE(same_bits(stream.attend(cache, 299, 300, {.left = 0, .right = 0}), expected.view().slice(2, 299, 300)));
}

TEST(KVRing, PositionsGoOnAfterTheOldestKeysAreGone) {
  // Keys 0, 1 (sinks), 6 and 7 are left: the rows at 6 and 7 are told apart by position, not by slot.
  KVCache cache({.head_dim = 1, .capacity = 4, .window = 1, .num_sinks = 2});
  const Tensor k({1, 1, 8, 1}, Dtype::kFloat32);
  Tensor v({1, 1, 8, 1}, Dtype::kFloat32);
  for (std::int64_t j = 0; j < 8; ++j) write(v, {0, 0, j, 0}, static_cast<double>(std::int64_t{3} << (3 * j)));
  cache.append(k, v);
  Tensor out({1, 1, 2, 1}, Dtype::kFloat32);
  attention(Tensor({1, 1, 2, 1}, Dtype::kFloat32), cache.view(), out, {.causal = true});
  EXPECT_NEAR(read(out, {0, 0, 0, 0}), (1 + 8 + (1 << 18)), 0.1);
  EXPECT_NEAR(read(out, {0, 0, 1, 0}), (1 + 8 + (1 << 21)), 1);
}

TEST(KVRing, TruncationStopsWhereKeysAreGone) {
  const Stream stream(300);
  KVCache cache(ring(30, 4, 10));
  stream.append(cache, 0, 100);
  EXPECT_THAT(error_of<ValueError>([&] { cache.truncate(std::vector<std::int64_t>{89}); }),
              HasSubstr("expected at most 4 sinks, or 90 keys or more for sequence 0, whose ring has overwritten those "
                        "before 60, got 89"));
  cache.truncate(std::vector<std::int64_t>{90});
  const Tensor expected = stream.by_mask(30, 4);
  for (std::int64_t i = 90; i < 140; ++i) {
    stream.append(cache, i, i + 1);
    ASSERT_TRUE(same_bits(stream.attend(cache, i, i + 1), expected.view().slice(2, i, i + 1))) << i;
  }
  cache.truncate(std::vector<std::int64_t>{3});
  for (std::int64_t i = 3; i < 50; ++i) {
    stream.append(cache, i, i + 1);
    ASSERT_TRUE(same_bits(stream.attend(cache, i, i + 1), expected.view().slice(2, i, i + 1))) << i;
  }
}

TEST(KVRing, LogitsOfKeysThatAreGoneAreRefused) {
  const Stream stream(60);
  KVCache cache(ring(30, 4, 0));
  stream.append(cache, 0, 60);
  Tensor logits({1, 2, 1, 60}, Dtype::kFloat32);
  Tensor out({1, 2, 1, 16}, Dtype::kFloat32);
  const auto ask = [&](LogitsStage stage) {
    attention(stream.q.view().slice(2, 59, 60), cache.view(), out, {.causal = true},
              {.logits = Logits{.out = logits, .stage = stage}});
  };
  EXPECT_THAT(error_of<ValueError>([&] { ask(LogitsStage::kScaled); }),
              HasSubstr("logits: before masks they are of every key, and the ring holds keys from 30 on alone"));
  ask(LogitsStage::kMasked);
  EXPECT_EQ(read(logits, {0, 0, 0, 10}), -kInf);
  EXPECT_NE(read(logits, {0, 0, 0, 3}), -kInf);
}

TEST(KVRing, PositionsEndAtTwoToThe60) {
  KVCache cache({.head_dim = 1, .capacity = 8, .window = 4, .num_sinks = 1});
  const float one = 1;
  const ConstTensorView many(&one, Dtype::kFloat32, {1, 1, std::int64_t{1} << 59, 1}, {0, 0, 0, 0});
  cache.append(many, many);
  cache.append(many, many);
  EXPECT_THAT(
      error_of<ValueError>([&] { cache.append(many.slice(2, 0, 1), many.slice(2, 0, 1)); }),
      HasSubstr("sequence 0 holds 1152921504606846976 of 1152921504606846976 keys and has room for 0 more, got 1"));
  Tensor out({1, 1, 1, 1}, Dtype::kFloat32);
  attention(tensor_of({1, 1, 1, 1}, Dtype::kFloat32, {1}), cache.view(), out);
  EXPECT_EQ(read(out, {0, 0, 0, 0}), 1);
}

TEST(KVRing, InDoubleWhatLiesBetweenIsLeftOutToo) {
  KVCache cache({.head_dim = 1,
                 .capacity = 8,
                 .k_dtype = Dtype::kFloat64,
                 .v_dtype = Dtype::kFloat64,
                 .window = 4,
                 .num_sinks = 1});
  const double one = 1;
  const ConstTensorView many(&one, Dtype::kFloat64, {1, 1, std::int64_t{1} << 59, 1}, {0, 0, 0, 0});
  cache.append(many, many);
  Tensor out({1, 1, 1, 1}, Dtype::kFloat64);
  attention(tensor_of({1, 1, 1, 1}, Dtype::kFloat64, {1}), cache.view(), out);
  EXPECT_EQ(read(out, {0, 0, 0, 0}), 1);
}

TEST(KVRing, OptionsNameWhatIsWrong) {
  EXPECT_EQ(error_of<ValueError>([] { KVCache cache(ring(0, 4, 9)); }),
            "qkv::KVCache: window: expected 1 or more, got 0");
  EXPECT_EQ(error_of<ValueError>([] { KVCache cache(ring(30, -1, 0)); }),
            "qkv::KVCache: num_sinks: expected 0 or more, got -1");
  EXPECT_EQ(error_of<ValueError>([] { KVCache cache(ring(30, 4, -1)); }),
            "qkv::KVCache: capacity: expected at least 4 sinks and a window of 30, got 33");
}

}  // namespace
}  // namespace qkv::support
