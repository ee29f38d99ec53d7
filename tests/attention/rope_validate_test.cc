// What rotations are refused for: the text names the argument, what was seen and what was expected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "qkv/error.h"
#include "qkv/position.h"
#include "support/elements.h"
#include "support/error_of.h"

namespace qkv {
namespace {

using support::error_of;
using support::tensor_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refused(std::int64_t head_dim, const RopeOptions& options) {
  return error_of<ValueError>([&] { const Rope rope(head_dim, options); });
}

std::string refused(const RopeScaling& scaling, std::optional<std::int64_t> max_position = 64) {
  return refused(8, {.scaling = scaling, .max_position = max_position});
}

TEST(RopeValidate, Sizes) {
  EXPECT_EQ(refused(0, {}), "qkv::Rope: head_dim: expected 1 to 2147483647, got 0");
  EXPECT_EQ(refused(std::int64_t{1} << 31, {}), "qkv::Rope: head_dim: expected 1 to 2147483647, got 2147483648");
  EXPECT_EQ(refused(7, {}), "qkv::Rope: head_dim: 7 is odd; say by rotary_dim how many columns turn");
  EXPECT_EQ(refused(7, {.rotary_dim = 6}), "nothing was thrown");
  EXPECT_EQ(refused(65538, {}),
            "qkv::Rope: head_dim: expected at most 65536, got 65538; say by rotary_dim how many columns turn");
  EXPECT_EQ(refused(65538, {.rotary_dim = 65538}), "qkv::Rope: rotary_dim: expected at most 65536, got 65538");
  EXPECT_EQ(refused(65538, {.rotary_dim = 8}), "nothing was thrown");
  for (const std::int64_t dim : {-2, 0, 3, 10}) {
    EXPECT_EQ(refused(8, {.rotary_dim = dim}),
              "qkv::Rope: rotary_dim: expected an even number from 2 to head_dim = 8, got " + std::to_string(dim));
  }
}

TEST(RopeValidate, Numbers) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const double base : {1.0, 0.0, -5.0, kInf, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(refused(8, {.base = base}), StartsWith("qkv::Rope: base: expected a finite number above 1, got "));
  }
  EXPECT_EQ(refused(8, {.max_position = 0}), "qkv::Rope: max_position: expected at least 1, got 0");
  for (const double factor : {0.5, -1.0, kInf}) {
    const std::string start = "qkv::Rope: scaling.factor: expected a finite number from 1 on, got ";
    EXPECT_THAT(refused(LinearScaling{factor}), StartsWith(start));
    EXPECT_THAT(refused(DynamicScaling{factor}), StartsWith(start));
    EXPECT_THAT(refused(YarnScaling{.factor = factor, .original_max_position = 8}), StartsWith(start));
    EXPECT_THAT(refused(Llama3Scaling{.factor = factor, .original_max_position = 8}), StartsWith(start));
  }
}

TEST(RopeValidate, Scalings) {
  EXPECT_EQ(refused(DynamicScaling{2}, {}), "qkv::Rope: max_position: dynamic scaling needs it");
  EXPECT_EQ(refused(2, {.scaling = DynamicScaling{2}, .max_position = 8}),
            "qkv::Rope: rotary_dim: dynamic scaling needs at least 4, got 2");
  YarnScaling yarn{.factor = 2};
  EXPECT_EQ(refused(yarn), "qkv::Rope: scaling.original_max_position: expected at least 1, got 0");
  yarn.original_max_position = 8;
  yarn.beta_slow = 33;
  EXPECT_EQ(refused(yarn), "qkv::Rope: scaling.beta_fast: expected at least beta_slow = 33, got 32");
  yarn.beta_slow = 0;
  EXPECT_EQ(refused(yarn), "qkv::Rope: scaling.beta_slow: expected a finite number above 0, got 0");
  yarn.beta_slow = 1;
  yarn.attention_factor = 0;
  EXPECT_EQ(refused(yarn), "qkv::Rope: scaling.attention_factor: expected a finite number above 0, got 0");
  yarn.attention_factor = {};
  yarn.mscale = -1;
  EXPECT_EQ(refused(yarn), "qkv::Rope: scaling.mscale: expected a finite number from 0 on, got -1");
  Llama3Scaling llama{.factor = 2, .low_freq_factor = 4, .original_max_position = 8};
  EXPECT_EQ(refused(llama), "qkv::Rope: scaling.high_freq_factor: expected more than low_freq_factor = 4, got 4");
  llama.low_freq_factor = -1;
  EXPECT_EQ(refused(llama), "qkv::Rope: scaling.low_freq_factor: expected a finite number above 0, got -1");
}

/// A right call, to be spoiled in one place.
struct Right {
  Tensor memory{{2, 3, 4, 8}, Dtype::kFloat32};
  Tensor other{{2, 3, 4, 8}, Dtype::kFloat32};
  ConstTensorView x = memory;
  TensorView out = other;
  Positions positions = 0;
  RopeCall call;

  template <class Exception>
  static std::string error(const std::function<void(Right&)>& spoil) {
    Right right;
    spoil(right);
    return error_of<Exception>([&] { Rope(8).apply(right.x, right.positions, right.out, right.call); });
  }
};

TEST(RopeValidate, Rows) {
  const Tensor wide({2, 3, 4, 10}, Dtype::kFloat32);
  EXPECT_EQ(Right::error<ShapeError>([&](Right& r) { r.x = wide; }),
            "qkv::Rope::apply: out: expected [batch, heads, n, head_dim] = [2, 3, 4, 10], got [2, 3, 4, 8]");
  Tensor wide_out({2, 3, 4, 10}, Dtype::kFloat32);
  EXPECT_EQ(Right::error<ShapeError>([&](Right& r) {
              r.x = wide;
              r.out = wide_out;
            }),
            "qkv::Rope::apply: x: expected head_dim = 8 as the last axis, got [2, 3, 4, 10]");
  const Tensor five({1, 2, 3, 4, 8}, Dtype::kFloat32);
  EXPECT_THAT(Right::error<ShapeError>([&](Right& r) { r.x = five; }),
              StartsWith("qkv::Rope::apply: x: expected 1 to 4 axes [batch, heads, n, head_dim], got 5"));
  const Tensor whole({2, 3, 4, 8}, Dtype::kInt32);
  EXPECT_EQ(Right::error<DtypeError>([&](Right& r) { r.x = whole; }),
            "qkv::Rope::apply: x: expected float32, float64, float16 or bfloat16, got int32");
  Tensor half({2, 3, 4, 8}, Dtype::kFloat16);
  EXPECT_EQ(Right::error<DtypeError>([&](Right& r) { r.out = half; }),
            "qkv::Rope::apply: out: expected float32, got float16");
}

TEST(RopeValidate, SharedMemory) {
  EXPECT_EQ(Right::error<ValueError>([](Right& r) { r.out = r.memory; }), "nothing was thrown");
  Tensor longer({2, 3, 5, 8}, Dtype::kFloat32);
  EXPECT_THAT(Right::error<ValueError>([&](Right& r) {
                r.x = longer.view().slice(2, 0, 4);
                r.out = longer.view().slice(2, 1, 5);
              }),
              HasSubstr("out: [2, 3, 4, 8] shares memory with x [2, 3, 4, 8]"));
  Tensor square({1, 1, 8, 8}, Dtype::kFloat32);
  EXPECT_THAT(Right::error<ValueError>([&](Right& r) {
                r.x = square;
                r.out = square.view().permute({0, 1, 3, 2});
              }),
              HasSubstr("shares memory with x"));
  const Tensor one({1, 1, 1, 8}, Dtype::kFloat32);
  EXPECT_THAT(Right::error<ValueError>([&](Right& r) {
                r.out = TensorView(r.memory.view().data(), Dtype::kFloat32, {2, 3, 4, 8}, {0, 32, 8, 1});
                r.x = r.out;
              }),
              HasSubstr("two elements of [2, 3, 4, 8] with strides [0, 32, 8, 1] share one address"));
  EXPECT_EQ(Right::error<ValueError>([&](Right& r) { r.x = one.view().broadcast_to({2, 3, 4, 8}); }),
            "nothing was thrown");
  EXPECT_THAT(Right::error<ValueError>([](Right& r) {
                r.out = r.memory;
                r.positions = ConstTensorView(r.memory.view().data(), Dtype::kInt32, {4}, {1});
              }),
              HasSubstr("shares memory with positions"));
}

TEST(RopeValidate, PositionIds) {
  const Tensor three({3}, Dtype::kInt64);
  EXPECT_EQ(Right::error<ShapeError>([&](Right& r) { r.positions = three.view(); }),
            "qkv::Rope::apply: positions: expected [n] = [4] or [batch, n] = [2, 4], got [3]");
  const Tensor batches({3, 4}, Dtype::kInt64);
  EXPECT_EQ(Right::error<ShapeError>([&](Right& r) { r.positions = batches.view(); }),
            "qkv::Rope::apply: positions: expected [n] = [4] or [batch, n] = [2, 4], got [3, 4]");
  const Tensor real({4}, Dtype::kFloat32);
  EXPECT_EQ(Right::error<DtypeError>([&](Right& r) { r.positions = real.view(); }),
            "qkv::Rope::apply: positions: expected int32 or int64, got float32");
  Tensor far({4}, Dtype::kInt64);
  far.as<std::int64_t>()[2] = (std::int64_t{1} << 53) + 1;
  EXPECT_EQ(Right::error<ValueError>([&](Right& r) { r.positions = far.view(); }),
            "qkv::Rope::apply: positions: expected -2^53 to 2^53, got 9007199254740993");
  far.as<std::int64_t>()[2] = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(Right::error<ValueError>([&](Right& r) { r.positions = far.view(); }),
            "qkv::Rope::apply: positions: expected -2^53 to 2^53, got -9223372036854775808");
}

TEST(RopeValidate, FirstPositionAndLength) {
  constexpr std::int64_t kFarthest = std::int64_t{1} << 53;
  EXPECT_EQ(Right::error<ValueError>([](Right& r) { r.positions = kFarthest - 3; }), "nothing was thrown");
  EXPECT_EQ(Right::error<ValueError>([](Right& r) { r.positions = kFarthest - 2; }),
            "qkv::Rope::apply: positions: expected at most 2^53, got 4 rows from 9007199254740990 on");
  EXPECT_EQ(Right::error<ValueError>([](Right& r) { r.positions = -kFarthest; }), "nothing was thrown");
  EXPECT_EQ(Right::error<ValueError>([](Right& r) { r.positions = -kFarthest - 1; }),
            "qkv::Rope::apply: positions: expected -2^53 to 2^53, got -9007199254740993");
  EXPECT_EQ(Right::error<ValueError>([](Right& r) { r.call.seq_len = 0; }),
            "qkv::Rope::apply: seq_len: expected at least 1, got 0");
  EXPECT_EQ(Right::error<ValueError>([](Right& r) {
              r.positions = 96;
              r.call.seq_len = 99;
            }),
            "qkv::Rope::apply: seq_len: expected at least 100, the largest position + 1, got 99");
  EXPECT_EQ(Right::error<ValueError>([](Right& r) {
              r.positions = 96;
              r.call.seq_len = 100;
            }),
            "nothing was thrown");
  EXPECT_EQ(error_of<ValueError>([] { (void)Rope(8).frequencies(-1); }),
            "qkv::Rope::frequencies: seq_len: expected at least 1, got -1");
}

}  // namespace
}  // namespace qkv
