#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "attention/rope_oracle.h"
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
using support::kRealDtypes;
using support::read;
using support::same_bits;
using support::tensor_of;
using support::write;

TEST(SinusoidalPositions, AreTheArticles) {
  Tensor out({2, 4}, Dtype::kFloat64);
  sinusoidal_positions(out);
  EXPECT_TRUE(same_bits(out, tensor_of({2, 4}, Dtype::kFloat64,
                                       {0, 1, 0, 1, std::sin(1.0), std::cos(1.0), std::sin(0.01), std::cos(0.01)})));
}

TEST(SinusoidalPositions, AreRoundedOnce) {
  for (const Dtype dtype : kRealDtypes) {
    for (const std::int64_t dim : {1, 2, 7, 64, 80}) {
      for (const std::int64_t first : {-3, 0, 4095, 1'000'000}) {
        const Guarded out({5, dim}, dtype, support::Layout::kTransposed);
        sinusoidal_positions(out, {.first = first, .base = 500});
        EXPECT_TRUE(out.intact());
        support::for_each_index(out.shape(), [&](const Extents& index) {
          const long double exponent =
              static_cast<long double>(index[1] - index[1] % 2) / static_cast<long double>(dim);
          const long double angle = static_cast<long double>(first + index[0]) / std::pow(500.0L, exponent);
          const auto exact = static_cast<double>(index[1] % 2 == 0 ? std::sin(angle) : std::cos(angle));
          const double allowed = 0.50001 * support::epsilon_of(dtype) * std::abs(exact) +
                                 0x1p-51 * static_cast<double>(std::abs(angle)) +
                                 (dtype == Dtype::kFloat16 ? 0x1p-25 : 0);
          EXPECT_NEAR(read(out, index), exact, allowed) << name_of(dtype) << to_string(index);
        });
      }
    }
  }
}

TEST(SinusoidalPositions, Errors) {
  Tensor out({2, 4}, Dtype::kFloat32);
  EXPECT_EQ(error_of<Error>([&] { sinusoidal_positions(out, {.base = 1}); }),
            "qkv::sinusoidal_positions: base: expected a finite number above 1, got 1");
  EXPECT_EQ(error_of<Error>([&] { sinusoidal_positions(out, {.first = std::int64_t{1} << 53}); }),
            "qkv::sinusoidal_positions: first: expected positions from -2^53 to 2^53, got 2 rows from "
            "9007199254740992 on");
  sinusoidal_positions(Tensor({1, 4}, Dtype::kFloat32), {.first = std::int64_t{1} << 53});  // the last there is
  Tensor ints({2, 4}, Dtype::kInt32);
  EXPECT_EQ(error_of<Error>([&] { sinusoidal_positions(ints); }),
            "qkv::sinusoidal_positions: out: expected float32, float64, float16 or bfloat16, got int32");
}

TEST(LearnedPositions, AreRowsOfTheTableBitForBit) {
  for (const Dtype dtype : kRealDtypes) {
    for (const support::Layout layout : support::kAllLayouts) {
      const Guarded table({6, 5}, dtype, layout);
      support::Random(1).fill_normal(table.view());
      write(table.view(), {2, 2}, support::kNaN);
      for (const Dtype id_dtype : {Dtype::kInt32, Dtype::kInt64}) {
        const Tensor ids = tensor_of({2, 3}, id_dtype, {0, 5, 5, 2, 1, 0});
        const Guarded out({2, 3, 5}, dtype, layout);
        learned_positions(table, ids, out);
        EXPECT_TRUE(out.intact());
        support::for_each_index(out.shape(), [&](const Extents& index) {
          const auto id = static_cast<std::int64_t>(read(ids, {index[0], index[1]}));
          const double expected = read(table, {id, index[2]});
          const double actual = read(out, index);
          EXPECT_TRUE(actual == expected || (std::isnan(actual) && std::isnan(expected)));
        });
      }
    }
  }
}

TEST(LearnedPositions, Errors) {
  const Tensor table({6, 5}, Dtype::kFloat32);
  Tensor out({2, 5}, Dtype::kFloat32);
  const auto error = [&](std::initializer_list<double> ids) {
    return error_of<Error>([&] { learned_positions(table, tensor_of({2}, Dtype::kInt64, ids), out); });
  };
  EXPECT_EQ(error({0, 6}), "qkv::learned_positions: ids: the table has 6 positions, 0 to 5; got 6 at [0, 1]");
  EXPECT_EQ(error({-1, 0}), "qkv::learned_positions: ids: the table has 6 positions, 0 to 5; got -1 at [0, 0]");
  EXPECT_EQ(error({0, 5}), "nothing was thrown");
  EXPECT_EQ(error_of<Error>([&] { learned_positions(table, Tensor({3}, Dtype::kInt64), out); }),
            "qkv::learned_positions: out: expected [batch, n, dim] = [1, 3, 5], got [2, 5]");
  EXPECT_EQ(error_of<Error>([&] { learned_positions(table, Tensor({2}, Dtype::kFloat32), out); }),
            "qkv::learned_positions: ids: expected int32 or int64, got float32");
  Tensor half({2, 5}, Dtype::kFloat16);
  EXPECT_EQ(error_of<Error>([&] { learned_positions(table, Tensor({2}, Dtype::kInt64), half); }),
            "qkv::learned_positions: out: expected float32, got float16");
  EXPECT_EQ(
      error_of<Error>([&] { learned_positions(Tensor({0, 5}, Dtype::kFloat32), Tensor({2}, Dtype::kInt64), out); }),
      "qkv::learned_positions: ids: the table has 0 positions, 0 to -1; got 0 at [0, 0]");
}

}  // namespace
}  // namespace qkv
