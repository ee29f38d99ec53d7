// Caches whose keys turn by their places, beside an oracle that turns in double by itself: what is dropped, what comes
// nearer, where positions end, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "attention/kv_stream.h"

namespace qkv::support {
namespace {

using ::testing::HasSubstr;

constexpr double kTolerance = 64 * 0x1p-23;

/// Row i over these keys, the first at place 0, the next at 1, ...: what is kept, as it lies in the cache.
Row counted(const Stream& stream, std::int64_t i, const std::vector<std::int64_t>& kept) {
  std::vector<Row> keys;
  for (const std::int64_t j : kept) keys.push_back(rotated(stream.k, j, static_cast<double>(keys.size())));
  return attended(rotated(stream.q, i, static_cast<double>(kept.size() - 1)), keys, kept, stream.v);
}

/// The keys that a ring of StreamingLLM holds when row i is attended.
std::vector<std::int64_t> kept_at(std::int64_t i, std::int64_t window, std::int64_t sinks) {
  std::vector<std::int64_t> kept;
  for (std::int64_t j = 0; j <= i; ++j) {
    if (j < sinks || j > i - window) kept.push_back(j);
  }
  return kept;
}

TEST(KVPlacesRing, EveryStepIsTheOracleOfPlaces) {
  const Stream stream(70);
  for (const std::int64_t sinks : {0, 3}) {
    KVCache cache(in_places(stream.ring(12, sinks)));
    for (std::int64_t i = 0; i < 70; ++i) {
      SCOPED_TRACE(i);
      stream.append(cache, i, i + 1);
      expect_row(stream.attend(cache, i), counted(stream, i, kept_at(i, 12, sinks)), kTolerance);
    }
  }
}

TEST(KVPlacesRing, AfterFourOfEightAreDroppedKeysAreCountedAnew) {
  const Stream stream(12);
  const std::vector<std::int64_t> left{4, 5, 6, 7, 8, 9, 10, 11};
  for (const CachePositions positions : {CachePositions::kAbsolute, CachePositions::kCache}) {
    KVCacheOptions options = stream.ring(8, 0);
    options.positions = positions;
    KVCache cache(options);
    stream.append(cache, 0, 8);
    stream.append(cache, 8, 12);
    // Without sinks both count the same distances; only the cache's positions say which number a key is kept with.
    expect_row(stream.attend(cache, 11), counted(stream, 11, left), kTolerance);
    for (std::int64_t j = 4; j < 12; ++j) {
      const Row turned = rotated(stream.k, j, positions == CachePositions::kCache ? 0 : static_cast<double>(j));
      for (std::int64_t c = 0; c < kDim; ++c) {
        EXPECT_NEAR(read(cache.view().k, {0, 0, j % 8, c}), turned[static_cast<std::size_t>(c)], kTolerance) << j;
      }
    }
  }
}

TEST(KVPlacesRing, SinksComeNearerAsKeysAreDropped) {
  const Stream stream(40);
  KVCache places(in_places(stream.ring(8, 4)));
  KVCache absolute(stream.ring(8, 4));
  for (std::int64_t i = 0; i < 40; ++i) {
    for (KVCache* cache : {&places, &absolute}) stream.append(*cache, i, i + 1);
    const Tensor near = stream.attend(places, i);
    const Tensor far = stream.attend(absolute, i);
    EXPECT_EQ(static_cast<bool>(same_bits(near, far)), i < 12) << i;
  }
  // Of 12 kept keys the row is the last: 11 from the first sink, whatever its position.
  expect_row(stream.attend(places, 39), counted(stream, 39, {0, 1, 2, 3, 32, 33, 34, 35, 36, 37, 38, 39}), kTolerance);
}

TEST(KVPlacesRing, PositionsGoOnBeyondTwoToThe53) {
  const Rope rope(2);
  KVCache cache(
      {.head_dim = 2, .capacity = 9, .window = 4, .num_sinks = 1, .rope = rope, .positions = CachePositions::kCache});
  const float one[2] = {1, 1};
  const ConstTensorView many(one, Dtype::kFloat32, {1, 1, std::int64_t{1} << 59, 2}, {0, 0, 0, 1});
  cache.append(many, many);
  cache.append(many, many);
  EXPECT_THAT(error_of<ValueError>([&] { cache.append(many, many); }), HasSubstr("has room for 0 more"));
  Tensor far({1, 1, 1, 2}, Dtype::kFloat32);
  Tensor lse({1, 1, 1}, Dtype::kFloat32);
  const Tensor q = tensor_of({1, 1, 1, 2}, Dtype::kFloat32, {1, -2});
  attention(q, cache.view(), far, {}, {.lse = lse});
  KVCache young({.head_dim = 2, .capacity = 5, .rope = rope, .positions = CachePositions::kCache});
  young.append(many.slice(2, 0, 5), many.slice(2, 0, 5));
  Tensor near_lse({1, 1, 1}, Dtype::kFloat32);
  Tensor near({1, 1, 1, 2}, Dtype::kFloat32);
  attention(q, young.view(), near, {}, {.lse = near_lse});
  EXPECT_NEAR(read(lse, {0, 0, 0}), read(near_lse, {0, 0, 0}), 1e-5);
}

TEST(KVPlaces, RowsBeyondTwoToThe53NeedAWindow) {
  const Stream stream(4);
  KVCache cache({.head_dim = kDim, .capacity = 4, .rope = stream.rope, .positions = CachePositions::kCache});
  stream.append(cache, 0, 4);
  Tensor out({1, 1, 2, kDim}, Dtype::kFloat32);
  const auto attend = [&](const AttentionOptions& options) {
    attention(stream.q.view().slice(2, 0, 2), cache.view(), out, options);
  };
  constexpr std::int64_t kFarthest = std::int64_t{1} << 53;
  attend({.query_offset = kFarthest - 1});
  attend({.query_offset = -kFarthest});
  attend({.query_offset = kFarthest * 128, .window = {.left = kFarthest}});
  EXPECT_THAT(error_of<ValueError>([&] { attend({.query_offset = kFarthest}); }),
              HasSubstr("query_offset: the 2 rows of batch 0 are at positions 9007199254740992 to"));
  EXPECT_THAT(error_of<ValueError>([&] { attend({.query_offset = -kFarthest - 1}); }), HasSubstr("query_offset"));
  EXPECT_THAT(
      error_of<ValueError>([&] { attend({.query_offset = kFarthest * 128, .window = {.left = kFarthest + 1}}); }),
      HasSubstr("query_offset"));
}

TEST(KVPlaces, MoreSinksThanThereArePositionsAreAllKeys) {
  const Stream stream(9);
  KVCache cache({.head_dim = kDim, .capacity = 9, .rope = stream.rope, .positions = CachePositions::kCache});
  stream.append(cache, 0, 9);
  KVView kv = cache.view();
  kv.num_sinks = std::numeric_limits<std::int64_t>::max();
  kv.window = 2;
  Tensor out({1, 1, 1, kDim}, Dtype::kFloat32);
  attention(stream.q.view().slice(2, 8, 9), kv, out);
  expect_row(out, counted(stream, 8, {0, 1, 2, 3, 4, 5, 6, 7, 8}), kTolerance);
}

TEST(KVPlaces, RowsWithoutKeysOrElementsAreLegal) {
  const Stream stream(4);
  const KVCache cache(in_places(stream.ring(3, 1)));
  Tensor out({1, 1, 4, kDim}, Dtype::kFloat32);
  attention(stream.q, cache.view(), out, {.query_offset = 7});
  EXPECT_TRUE(same_bits(out, Tensor({1, 1, 4, kDim}, Dtype::kFloat32)));
  Tensor none({1, 1, 0, kDim}, Dtype::kFloat32);
  const KVCache open({.head_dim = kDim, .capacity = 4, .rope = stream.rope, .positions = CachePositions::kCache});
  attention(stream.q.view().slice(2, 0, 0), open.view(), none, {.query_offset = std::int64_t{1} << 60});
  KVCacheOptions options = in_places(stream.ring(3, 1));
  options.batch = 0;
  const KVCache empty(options);
  Tensor no_batch({0, 1, 2, kDim}, Dtype::kFloat32);
  attention(Tensor({0, 1, 2, kDim}, Dtype::kFloat32), empty.view(), no_batch);
}

TEST(KVPlaces, ANaNReachesTheRowsThatSeeItAlone) {
  Stream stream(30);
  write(stream.k, {0, 0, 6, 3}, kNaN);
  write(stream.q, {0, 0, 25, 5}, kInf);
  KVCacheOptions options = in_places(stream.ring(8, 2));
  options.capacity = 40;
  KVCache cache(options);
  stream.append(cache, 0, 30);
  Tensor out({1, 1, 30, kDim}, Dtype::kFloat32);
  attention(stream.q, cache.view(), out, {.causal = true});
  for (std::int64_t i = 0; i < 30; ++i) {
    EXPECT_EQ(std::isnan(read(out, {0, 0, i, 0})), i == 25 || (i >= 6 && i < 14)) << i;
  }
}

TEST(KVPlaces, ErrorsNameWhatIsWrong) {
  const Stream stream(20);
  const std::string no_rope =
      "positions: places in the cache are what a rope turns keys by as they are read, and rope is not given";
  EXPECT_EQ(error_of<ValueError>([] { KVCache({.positions = CachePositions::kCache}); }), "qkv::KVCache: " + no_rope);
  EXPECT_EQ(error_of<ValueError>([] { PagedKVCache({.positions = CachePositions::kCache}); }),
            "qkv::PagedKVCache: " + no_rope);
  EXPECT_EQ(error_of<ValueError>([] { KVCache({.positions = static_cast<CachePositions>(7)}); }),
            "qkv::KVCache: positions: expected absolute or cache, got the number 7");

  KVCacheOptions options = in_places(stream.ring(8, 2));
  options.capacity = 30;
  KVCache cache(options);
  stream.append(cache, 0, 20);
  Tensor out({1, 1, 4, kDim}, Dtype::kFloat32);
  Tensor logits({1, 1, 4, 20}, Dtype::kFloat32);
  const auto attend = [&](const KVView& kv, const AttentionOptions& all, const AttentionOutputs& outputs = {}) {
    attention(stream.q.view().slice(2, 0, 4), kv, out, all, outputs);
  };
  KVView bare = cache.view();
  bare.rope.reset();
  EXPECT_THAT(
      error_of<ValueError>([&] { attend(bare, {}); }),
      HasSubstr("kv.positions: places in the cache are what a rope turns keys by as they are read, and kv.rope"));
  const Tensor slopes = tensor_of({1}, Dtype::kFloat32, {0.5});
  EXPECT_EQ(error_of<ValueError>([&] { attend(cache.view(), {.alibi_slopes = slopes}); }),
            "qkv::attention: alibi_slopes: given beside positions within the cache: the distances of ALiBi are of "
            "absolute positions, those of kv.rope of places; use one of them");
  for (const LogitsStage stage : {LogitsStage::kScaled, LogitsStage::kCapped}) {
    const AttentionOutputs before{.logits = Logits{.out = logits, .stage = stage}};
    attend(cache.view(), {.query_offset = 6}, before);
    EXPECT_EQ(error_of<ValueError>([&] { attend(cache.view(), {.query_offset = 7}, before); }),
              "qkv::attention: logits: before masks they are of every key, and those that the row at position 10 of "
              "batch 0 has left behind have no place in the cache");
  }
  attend(cache.view(), {}, {.logits = Logits{.out = logits, .stage = LogitsStage::kMasked}});
}

}  // namespace
}  // namespace qkv::support
