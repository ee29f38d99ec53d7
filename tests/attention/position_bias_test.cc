// Slopes of ALiBi and buckets of T5, worked out by hand; the Python tests compare buckets with Hugging Face's.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "qkv/error.h"
#include "qkv/position.h"
#include "support/compare.h"
#include "support/error_of.h"
#include "support/guarded.h"
#include "support/random.h"

namespace qkv {
namespace {

using support::error_of;
using support::Guarded;
using support::read;
using support::same_bits;
using support::tensor_of;

constexpr Dtype kF64 = Dtype::kFloat64;

Tensor slopes(std::int64_t num_heads, Dtype dtype = kF64) {
  Tensor out({num_heads}, dtype);
  alibi_slopes(out);
  return out;
}

TEST(AlibiSlopes, OfPowersOfTwo) {
  EXPECT_TRUE(same_bits(slopes(1), tensor_of({1}, kF64, {1.0 / 256})));
  EXPECT_TRUE(same_bits(slopes(2), tensor_of({2}, kF64, {1.0 / 16, 1.0 / 256})));
  EXPECT_TRUE(same_bits(slopes(8),
                        tensor_of({8}, kF64, {0.5, 0.25, 0.125, 1.0 / 16, 1.0 / 32, 1.0 / 64, 1.0 / 128, 1.0 / 256})));
  EXPECT_EQ(read(slopes(16), {0}), std::sqrt(0.5));
}

TEST(AlibiSlopes, OfOtherNumbers) {
  EXPECT_TRUE(same_bits(slopes(3), tensor_of({3}, kF64, {0.0625, 0.00390625, 0.25})));
  EXPECT_TRUE(same_bits(slopes(6), tensor_of({6}, kF64, {0.25, 0.0625, 1.0 / 64, 1.0 / 256, 0.5, 0.125})));
  EXPECT_TRUE(same_bits(slopes(7), tensor_of({7}, kF64, {0.25, 0.0625, 1.0 / 64, 1.0 / 256, 0.5, 0.125, 1.0 / 32})));
}

TEST(AlibiSlopes, AreRoundedOnceToAnyMemory) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBFloat16}) {
    const Guarded out({12}, dtype, support::Layout::kStrided);
    alibi_slopes(out);
    EXPECT_TRUE(out.intact());
    for (std::int64_t h = 8; h < 12; ++h) {
      const Tensor exact = tensor_of({1}, dtype, {std::exp2(-0.5 * static_cast<double>(2 * (h - 8) + 1))});
      EXPECT_EQ(read(out, {h}), read(exact, {0}));
    }
  }
}

TEST(AlibiSlopes, Errors) {
  EXPECT_EQ(error_of<Error>([] { slopes(0); }), "qkv::alibi_slopes: num_heads: expected at least 1, got 0");
  EXPECT_EQ(error_of<Error>([] { slopes(4, Dtype::kInt32); }),
            "qkv::alibi_slopes: out: expected float32, float64, float16 or bfloat16, got int32");
}

TEST(T5Bucket, OfBothSides) {
  // 8 buckets a side for 0..7, then 8 by logarithm up to 128.
  const auto bucket = [](std::int64_t relative) { return t5_bucket(relative, 32); };
  EXPECT_EQ(bucket(0), 0);
  for (std::int64_t d = 1; d < 8; ++d) {
    EXPECT_EQ(bucket(-d), d);
    EXPECT_EQ(bucket(d), 16 + d);
  }
  EXPECT_EQ(bucket(-8), 8);
  EXPECT_EQ(bucket(-11), 8);
  EXPECT_EQ(bucket(-12), 9);  // 8 * 2^(1/2) = 11.3
  EXPECT_EQ(bucket(-15), 9);
  EXPECT_EQ(bucket(-16), 10);
  EXPECT_EQ(bucket(-90), 14);
  EXPECT_EQ(bucket(-91), 15);
  EXPECT_EQ(bucket(-128), 15);
  EXPECT_EQ(bucket(-100'000), 15);
  EXPECT_EQ(bucket(100'000), 31);
  EXPECT_EQ(bucket(std::numeric_limits<std::int64_t>::max()), 31);
  EXPECT_EQ(bucket(std::numeric_limits<std::int64_t>::min()), 15);
}

TEST(T5Bucket, OfTheKeysBefore) {
  const auto bucket = [](std::int64_t relative) { return t5_bucket(relative, 32, {.bidirectional = false}); };
  for (const std::int64_t after : {0, 1, 5, 1000}) EXPECT_EQ(bucket(after), 0);
  for (std::int64_t d = 1; d < 16; ++d) EXPECT_EQ(bucket(-d), d);
  EXPECT_EQ(bucket(-16), 16);
  EXPECT_EQ(bucket(-127), 31);
  EXPECT_EQ(bucket(-1000), 31);
}

TEST(T5Bucket, FarBeyondTheLargestDistanceIsTheLast) {
  const auto last = [](std::int64_t exponent, std::int64_t buckets, std::int64_t max_distance) {
    return t5_bucket(-(std::int64_t{1} << exponent), buckets, {.bidirectional = false, .max_distance = max_distance});
  };
  const auto power = [](int exponent) { return std::int64_t{1} << exponent; };
  EXPECT_EQ(last(62, power(33), power(32) + 1), power(33) - 1);  // more steps than an integer holds
  EXPECT_EQ(last(61, power(61), power(60) + 1), power(61) - 1);  // ln of a ratio that rounds to 1
}

TEST(T5Bucket, Errors) {
  EXPECT_EQ(error_of<Error>([] { t5_bucket(0, 3); }), "qkv::t5_bucket: num_buckets: expected at least 4, got 3");
  EXPECT_EQ(error_of<Error>([] { t5_bucket(0, 1, {.bidirectional = false}); }),
            "qkv::t5_bucket: num_buckets: expected at least 2, got 1");
  EXPECT_EQ(error_of<Error>([] { t5_bucket(0, 32, {.max_distance = 8}); }),
            "qkv::t5_bucket: max_distance: expected more than 8, which have buckets of their own, got 8");
}

TEST(T5Bias, IsTheTableByDistance) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16}) {
    const Tensor table = support::Random(1).normal_tensor({8, 3}, dtype);
    for (const support::Layout layout : support::kAllLayouts) {
      for (const std::int64_t offset : {-4, 0, 3, 1000}) {
        const T5Options options{.bidirectional = offset != 0, .max_distance = 20, .query_offset = offset};
        const Guarded out({3, 4, 7}, dtype, layout);
        t5_bias(table, out, options);
        EXPECT_TRUE(out.intact());
        support::for_each_index(out.shape(), [&](const Extents& index) {
          const std::int64_t bucket = t5_bucket(index[2] - (offset + index[1]), 8, options);
          EXPECT_EQ(read(out, index), read(table, {bucket, index[0]}));
        });
      }
    }
  }
}

TEST(T5Bias, Errors) {
  const Tensor table({8, 3}, Dtype::kFloat32);
  Tensor out({2, 4, 7}, Dtype::kFloat32);
  EXPECT_EQ(error_of<Error>([&] { t5_bias(table, out); }),
            "qkv::t5_bias: out: expected num_heads = 3 as the first axis, got [2, 4, 7]");
  Tensor half({3, 4, 7}, Dtype::kFloat16);
  EXPECT_EQ(error_of<Error>([&] { t5_bias(table, half); }), "qkv::t5_bias: out: expected float32, got float16");
  Tensor right({3, 4, 7}, Dtype::kFloat32);
  const std::int64_t far = (std::int64_t{1} << 60) + 1;
  EXPECT_EQ(error_of<Error>([&] { t5_bias(table, right, {.query_offset = far}); }),
            "qkv::t5_bias: query_offset: expected -2^60 to 2^60, got 1152921504606846977");
  const Tensor small({3, 3}, Dtype::kFloat32);
  EXPECT_EQ(error_of<Error>([&] { t5_bias(small, right); }), "qkv::t5_bias: num_buckets: expected at least 4, got 3");
  for (const Extents& empty : {Extents{3, 0, 7}, Extents{3, 4, 0}}) {
    Tensor none(empty, Dtype::kFloat32);
    EXPECT_EQ(error_of<Error>([&] { t5_bias(table, none); }), "nothing was thrown");
  }
}

}  // namespace
}  // namespace qkv
