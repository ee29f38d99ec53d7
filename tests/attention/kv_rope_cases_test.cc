// Caches that turn, beside an oracle that turns in double by itself: distances, rings, ends of positions, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/kv_stream.h"

namespace qkv::support {
namespace {

using ::testing::HasSubstr;
TEST(KVRopeRing, EveryStepIsTheOracleAtAbsolutePositions) {
  const Stream stream(70);
  KVCache cache(stream.ring(12, 3));
  for (std::int64_t i = 0; i < 70; ++i) {
    SCOPED_TRACE(i);
    stream.append(cache, i, i + 1);
    std::vector<Row> keys;
    std::vector<std::int64_t> places;
    for (std::int64_t j = 0; j <= i; ++j) {
      if (j >= 3 && j <= i - 12) continue;
      keys.push_back(rotated(stream.k, j, static_cast<double>(j)));
      places.push_back(j);
    }
    const Row q = rotated(stream.q, i, static_cast<double>(i));
    expect_row(stream.attend(cache, i), attended(q, keys, places, stream.v), 64 * epsilon_of(Dtype::kFloat32));
  }
}

TEST(KVRopeRing, AfterFourOfEightAreDroppedDistancesHold) {
  const Stream stream(12);
  KVCache cache(stream.ring(8, 0));
  stream.append(cache, 0, 8);
  stream.append(cache, 8, 12);
  // Keys 4 to 11 and the row at 11, as if the first of them were at 0: distances alone count.
  std::vector<Row> keys;
  std::vector<std::int64_t> places;
  for (std::int64_t j = 4; j < 12; ++j) {
    keys.push_back(rotated(stream.k, j, static_cast<double>(j - 4)));
    places.push_back(j);
  }
  expect_row(stream.attend(cache, 11), attended(rotated(stream.q, 11, 7), keys, places, stream.v),
             64 * epsilon_of(Dtype::kFloat32));
}

TEST(KVRopeRing, MoreTokensThanItHoldsAreTurnedByTheirOwnPositions) {
  const Stream stream(100);
  for (const std::int64_t sinks : {0, 3}) {
    KVCache one_by_one(stream.ring(12, sinks));
    for (std::int64_t i = 0; i < 100; ++i) stream.append(one_by_one, i, i + 1);
    KVCache at_once(stream.ring(12, sinks));
    stream.append(at_once, 0, 100);
    EXPECT_TRUE(same_bits(at_once.view().k, one_by_one.view().k));
  }
}

TEST(KVRopeRing, PositionsEndAtTwoToThe53) {
  const Rope rope(2);
  KVCache cache({.head_dim = 2, .capacity = 8, .window = 4, .num_sinks = 1, .rope = rope});
  const float one[2] = {1, 1};
  const ConstTensorView many(one, Dtype::kFloat32, {1, 1, std::int64_t{1} << 52, 2}, {0, 0, 0, 1});
  cache.append(many, many);
  cache.append(many, many);
  EXPECT_THAT(error_of<ValueError>([&] { cache.append(many.slice(2, 0, 1), many.slice(2, 0, 1)); }),
              HasSubstr("sequence 0 holds 9007199254740992 of 9007199254740992 keys and has room for 0 more, got 1"));
  Tensor out({1, 1, 1, 2}, Dtype::kFloat32);
  attention(tensor_of({1, 1, 1, 2}, Dtype::kFloat32, {1}), cache.view(), out);
  EXPECT_EQ(read(out, {0, 0, 0, 0}), 1);
}

TEST(KVRope, RowsBeyondTwoToThe53AreRefused) {
  const Stream stream(4);
  KVCache cache({.head_dim = kDim, .capacity = 4, .rope = stream.rope});
  stream.append(cache, 0, 4);
  Tensor out({1, 1, 2, kDim}, Dtype::kFloat32);
  const auto attend = [&](std::int64_t offset) {
    attention(stream.q.view().slice(2, 0, 2), cache.view(), out, {.query_offset = offset});
  };
  constexpr std::int64_t kFarthest = std::int64_t{1} << 53;
  attend(kFarthest - 1);
  attend(-kFarthest);
  EXPECT_EQ(
      error_of<ValueError>([&] { attend(kFarthest); }),
      "qkv::attention: query_offset: the 2 rows of batch 0 are at positions 9007199254740992 to 9007199254740993, "
      "but kv.rope turns those from -2^53 to 2^53 alone");
  EXPECT_THAT(error_of<ValueError>([&] { attend(-kFarthest - 1); }), HasSubstr("query_offset: the 2 rows of batch 0"));
  KVView plain = cache.view();
  plain.rope.reset();
  attention(stream.q.view().slice(2, 0, 2), plain, out, {.query_offset = kFarthest});
}

TEST(KVRope, RowsWithoutKeysOrElementsAreLegal) {
  const Stream stream(4);
  const KVCache cache({.head_dim = kDim, .capacity = 4, .rope = stream.rope});
  Tensor out({1, 1, 4, kDim}, Dtype::kFloat32);
  attention(stream.q, cache.view(), out);
  EXPECT_TRUE(same_bits(out, Tensor({1, 1, 4, kDim}, Dtype::kFloat32)));
  Tensor none({1, 1, 0, kDim}, Dtype::kFloat32);
  attention(stream.q.view().slice(2, 0, 0), cache.view(), none, {.query_offset = std::int64_t{1} << 60});
  const KVCache empty({.batch = 0, .head_dim = kDim, .capacity = 4, .rope = stream.rope});
  Tensor no_batch({0, 1, 2, kDim}, Dtype::kFloat32);
  attention(Tensor({0, 1, 2, kDim}, Dtype::kFloat32), empty.view(), no_batch);
}

TEST(KVRope, ANaNReachesTheRowsThatSeeItAlone) {
  Stream stream(10);
  write(stream.k, {0, 0, 6, 3}, kNaN);
  write(stream.q, {0, 0, 2, 5}, kInf);
  KVCache cache({.head_dim = kDim, .capacity = 10, .rope = stream.rope});
  stream.append(cache, 0, 10);
  Tensor out({1, 1, 10, kDim}, Dtype::kFloat32);
  attention(stream.q, cache.view(), out, {.causal = true});
  for (std::int64_t i = 0; i < 10; ++i) EXPECT_EQ(std::isnan(read(out, {0, 0, i, 0})), i == 2 || i >= 6) << i;
}

TEST(KVRope, OptionsNameWhatIsWrong) {
  const Rope other(8);
  const Rope dynamic(kDim, {.scaling = DynamicScaling{2}, .max_position = 8});
  const std::string head_dim = "rope: expected a Rope of head_dim = 16, that of the keys, got one of 8";
  const std::string follow =
      "rope: dynamic scaling changes the frequencies as a sequence grows, and keys that have been turned do not "
      "follow; "
      "use yarn, llama3 or linear scaling, or turn q and k by Rope::apply with one seq_len";
  EXPECT_EQ(error_of<ValueError>([&] { KVCache({.head_dim = kDim, .rope = other}); }), "qkv::KVCache: " + head_dim);
  EXPECT_EQ(error_of<ValueError>([&] { KVCache({.head_dim = kDim, .rope = dynamic}); }), "qkv::KVCache: " + follow);
  EXPECT_EQ(error_of<ValueError>([&] { PagedKVCache({.head_dim = kDim, .rope = other}); }),
            "qkv::PagedKVCache: " + head_dim);
  EXPECT_EQ(error_of<ValueError>([&] { PagedKVCache({.head_dim = kDim, .rope = dynamic}); }),
            "qkv::PagedKVCache: " + follow);
  const Stream stream(4);
  KVCache cache({.head_dim = kDim, .capacity = 4});
  KVView kv = cache.view();
  EXPECT_FALSE(kv.rope.has_value());
  Tensor out(stream.q.shape(), Dtype::kFloat32);
  kv.rope = other;
  EXPECT_EQ(error_of<ValueError>([&] { attention(stream.q, kv, out); }), "qkv::attention: kv." + head_dim);
  kv.rope = dynamic;
  EXPECT_EQ(error_of<ValueError>([&] { attention(stream.q, kv, out); }), "qkv::attention: kv." + follow);
}

}  // namespace
}  // namespace qkv::support
