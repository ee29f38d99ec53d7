// What validation resolves and refuses of q, k, v, out and of memory: with the essential parts of its text: the
// argument, what was seen, what was expected.
#include "attention/validate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "attention/right_call.h"
#include "qkv/error.h"
#include "support/elements.h"

namespace qkv {
namespace {

using support::tensor_of;

constexpr Dtype kF32 = Dtype::kFloat32;
constexpr Dtype kF64 = Dtype::kFloat64;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Validate, ResolvesDefaults) {
  const auto problem = Right().validate();
  EXPECT_EQ(problem.batch, 2);
  EXPECT_EQ(problem.num_heads, 4);
  EXPECT_EQ(problem.num_kv_heads, 2);
  EXPECT_EQ(problem.q_len, 3);
  EXPECT_EQ(problem.kv_len, 5);
  EXPECT_EQ(problem.head_dim, 8);
  EXPECT_EQ(problem.value_dim, 6);
  EXPECT_EQ(problem.scale, 1 / std::sqrt(8.0));
  EXPECT_EQ(problem.query_offset, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(problem.kv_lens, (std::vector<std::int64_t>{5, 5}));
  EXPECT_EQ(problem.window_left, kernels::ForwardProblem::kUnbounded);
  EXPECT_EQ(problem.window_right, kernels::ForwardProblem::kUnbounded);
  EXPECT_FALSE(problem.mask || problem.bias || problem.sinks || problem.alibi_slopes);
  EXPECT_FALSE(problem.lse || problem.weights || problem.logits || problem.wants_stats());
}

TEST(Validate, ResolvesOperands) {
  Right call;
  const Tensor mask({3, 1}, Dtype::kBool);
  const Tensor bias({2, 1, 1, 5}, kF32);
  const Tensor sinks({4}, kF32);
  const Tensor slopes({2, 4}, kF32);
  const Tensor lens = tensor_of({2}, Dtype::kInt64, {4, 0});
  call.options = {.mask = mask, .bias = bias, .sinks = sinks, .alibi_slopes = slopes, .kv_lens = lens};
  Tensor weights({2, 1, 2, 5}, kF32);
  call.outputs.weights = Weights{.out = weights, .heads = {{3}}, .rows = {{2, 0}}};
  call.outputs.stats = Stats{.keys = {4, 1}};
  const auto problem = call.validate();
  const auto strides = [](const kernels::Operand& o) { return Extents{o.batch, o.head, o.row, o.col}; };
  EXPECT_EQ(to_string(strides(problem.mask)), "[0, 0, 1, 0]");
  EXPECT_EQ(to_string(strides(problem.bias)), "[5, 0, 0, 1]");
  EXPECT_EQ(to_string(strides(problem.sinks)), "[0, 1, 0, 0]");
  EXPECT_EQ(to_string(strides(problem.alibi_slopes)), "[4, 1, 0, 0]");
  EXPECT_EQ(problem.kv_lens, (std::vector<std::int64_t>{4, 0}));
  EXPECT_EQ(problem.query_offset, (std::vector<std::int64_t>{1, -3})) << "the default follows what is filled";
  const auto place = [](const kernels::SlotIndex& index, std::int64_t chosen) {
    const auto slots = index.of(chosen);
    return slots.size() == 1 ? slots[0].place : -1;
  };
  EXPECT_EQ(place(problem.weight_heads, 3), 0);
  EXPECT_EQ(place(problem.weight_heads, 0), -1);
  EXPECT_EQ(place(problem.weight_rows, 2), 0);
  EXPECT_EQ(place(problem.weight_rows, 0), 1);
  EXPECT_EQ(problem.stats_keys, (std::vector<std::int64_t>{1, 4}));
}

TEST(Validate, QueryOffsets) {
  Right call;
  call.options.query_offset = -7;
  EXPECT_EQ(call.validate().query_offset, (std::vector<std::int64_t>{-7, -7}));
  const Tensor offsets = tensor_of({2}, Dtype::kInt32, {3, -1});
  call.options.query_offset = ConstTensorView(offsets);
  EXPECT_EQ(call.validate().query_offset, (std::vector<std::int64_t>{3, -1}));
}

TEST(Validate, HugeWindowSidesAreUnbounded) {
  Right call;
  call.options.window = {.left = std::numeric_limits<std::int64_t>::max(), .right = std::int64_t{1} << 61};
  const auto problem = call.validate();
  EXPECT_EQ(problem.window_left, kernels::ForwardProblem::kUnbounded);
  EXPECT_EQ(problem.window_right, std::int64_t{1} << 61);
}

TEST(Validate, EmptyExtentsAreLegalAndNeedNoMemory) {
  const ConstTensorView none(nullptr, kF32, {2, 2, 0, 8}, {0, 0, 0, 0});
  Right call;
  EXPECT_NO_THROW(attention_detail::validate(call.q.view(), none, none, Tensor({2, 4, 3, 8}, kF32).view(), {}, {}));
}

TEST(ValidateRanks, OneToFourAxes) {
  const Right call;
  float x = 0;
  const auto refused = [&](const ConstTensorView& q, const std::vector<std::string>& parts) {
    expect_refused<ShapeError>(
        [&] { attention_detail::validate(q, call.k.view(), call.v.view(), TensorView(), {}, {}); }, parts);
  };
  refused(view(&x, {}), {"q: expected 1 to 4 axes [batch, num_heads, q_len, head_dim], got 0 in []"});
  refused(view(&x, {1, 1, 1, 1, 1}), {"q: expected 1 to 4 axes", "got 5 in [1, 1, 1, 1, 1]"});
}

TEST(ValidateRanks, OfTheOthers) {
  Right call;
  call.k = Tensor({1, 2, 2, 5, 8}, kF32);
  expect_refused<ShapeError>(call, {"k: expected 1 to 4 axes [batch, num_kv_heads, kv_len, head_dim], got 5"});
  Right value;
  value.v = Tensor({1, 2, 2, 5, 6}, kF32);
  expect_refused<ShapeError>(value, {"v: expected 1 to 4 axes [batch, num_kv_heads, kv_len, value_dim], got 5"});
  Right out;
  out.out = Tensor({1, 2, 4, 3, 6}, kF32);
  expect_refused<ShapeError>(out, {"out: expected 1 to 4 axes [batch, num_heads, q_len, value_dim], got 5"});
}

TEST(ValidateDtypes, OfQuery) {
  for (const auto& [dtype, text] : std::vector<std::pair<Dtype, std::string>>{
           {Dtype::kInt32, "q: expected float32, float64, float16 or bfloat16, got int32"},
           {Dtype::kInt8, "q: expected float32, float64, float16 or bfloat16, got int8"},
           {Dtype::kBool, "q: expected float32, float64, float16 or bfloat16, got bool"}}) {
    Right call;
    call.q = Tensor({2, 4, 3, 8}, dtype);
    expect_refused<DtypeError>(call, {text});
  }
}

TEST(ValidateDtypes, OfKeysAndValues) {
  const std::vector<Dtype> all = {Dtype::kBool,  Dtype::kUInt8,   Dtype::kInt8,     Dtype::kInt16,   Dtype::kInt32,
                                  Dtype::kInt64, Dtype::kFloat16, Dtype::kBFloat16, Dtype::kFloat32, Dtype::kFloat64};
  for (const Dtype q : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16}) {
    for (const Dtype stored : all) {
      const bool half = stored == Dtype::kFloat16 || stored == Dtype::kBFloat16;
      const bool legal = stored == q || (half && q != kF64);
      SCOPED_TRACE(std::string(name_of(stored)) + " beside a q of " + std::string(name_of(q)));
      Right k = right_call_of(q);
      k.k = Tensor({2, 2, 5, 8}, stored);
      Right v = right_call_of(q);
      v.v = Tensor({2, 2, 5, 6}, stored);
      if (legal) {
        EXPECT_NO_THROW(k.validate());
        EXPECT_NO_THROW(v.validate());
      } else {
        expect_refused<DtypeError>(k, {"k: expected ", std::string(name_of(q)), "got " + std::string(name_of(stored))});
        expect_refused<DtypeError>(v, {"v: expected ", std::string(name_of(q)), "got " + std::string(name_of(stored))});
      }
    }
  }
}

TEST(ValidateDtypes, SayWhatIsExpected) {
  Right wide;
  wide.k = Tensor({2, 2, 5, 8}, kF64);
  expect_refused<DtypeError>(wide, {"k: expected float32, float16 or bfloat16 beside a q of float32, got float64"});
  Right half = right_call_of(Dtype::kBFloat16);
  half.v = Tensor({2, 2, 5, 6}, kF32);
  expect_refused<DtypeError>(half, {"v: expected float16 or bfloat16 beside a q of bfloat16, got float32"});
  Right narrow = right_call_of(kF64);
  narrow.k = Tensor({2, 2, 5, 8}, Dtype::kFloat16);
  expect_refused<DtypeError>(narrow, {"k: expected float64 as in q, got float16"});
  Right integers;
  integers.v = Tensor({2, 2, 5, 6}, Dtype::kInt8);
  expect_refused<DtypeError>(integers, {"got int8; int8 keys and values live in a cache"});
}

TEST(ValidateDtypes, OfOut) {
  Right out;
  out.out = Tensor({2, 4, 3, 6}, kF64);
  expect_refused<DtypeError>(out, {"out: expected float32 as in q, got float64"});
  Right half = right_call_of(Dtype::kFloat16);
  half.out = Tensor({2, 4, 3, 6}, kF32);
  expect_refused<DtypeError>(half, {"out: expected float16 as in q, got float32"});
}

TEST(ValidateDtypes, StatisticsBesideHalfPrecisionAreFloat32) {
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBFloat16}) {
    Right call = right_call_of(dtype);
    Tensor half({2, 4, 3}, dtype);
    call.outputs.lse = half.view();
    expect_refused<DtypeError>(call, {"lse: expected float32, got " + std::string(name_of(dtype))});
    Tensor single({2, 4, 3}, kF32);
    call.outputs.lse = single.view();
    EXPECT_NO_THROW(call.validate());
  }
}

TEST(ValidateDtypes, TermsBesideHalfPrecisionAreOfItOrFloat32) {
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBFloat16}) {
    for (const Dtype term : {dtype, kF32}) {
      Right call = right_call_of(dtype);
      const Tensor bias({3, 5}, term), sinks({4}, term), slopes({4}, term);
      call.options.bias = bias.view();
      call.options.sinks = sinks.view();
      call.options.alibi_slopes = slopes.view();
      EXPECT_NO_THROW(call.validate());
    }
    Right call = right_call_of(dtype);
    const Tensor bias({3, 5}, kF64);
    call.options.bias = bias.view();
    expect_refused<DtypeError>(call, {"bias: expected " + std::string(name_of(dtype)) + " or float32, got float64"});
  }
}

TEST(ValidateShapes, HeadDim) {
  Right call;
  call.k = Tensor({2, 2, 5, 7}, kF32);
  expect_refused<ShapeError>(call, {"k: expected head_dim 8 as in q [2, 4, 3, 8], got 7 in [2, 2, 5, 7]"});
}

TEST(ValidateShapes, Batch) {
  Right k;
  k.k = Tensor({1, 2, 5, 8}, kF32);
  expect_refused<ShapeError>(k, {"k: expected batch 2 as in q [2, 4, 3, 8], got 1 in [1, 2, 5, 8]"});
  Right missing;
  missing.k = Tensor({2, 5, 8}, kF32);
  expect_refused<ShapeError>(missing, {"k: expected batch 2", "got 1 in [2, 5, 8]"});
  Right v;
  v.v = Tensor({3, 2, 5, 6}, kF32);
  expect_refused<ShapeError>(v, {"v: expected batch 2 as in k [2, 2, 5, 8], got 3 in [3, 2, 5, 6]"});
}

TEST(ValidateShapes, HeadCountsDivide) {
  Right call;
  call.q = Tensor({2, 6, 3, 8}, kF32);
  call.k = Tensor({2, 4, 5, 8}, kF32);
  expect_refused<ShapeError>(call, {"k: num_kv_heads 4 in [2, 4, 5, 8] does not divide num_heads 6 of q [2, 6, 3, 8]"});
}

TEST(ValidateShapes, NoZeroHeadsOrHeadDim) {
  Right q;
  q.q = Tensor({2, 0, 3, 8}, kF32);
  expect_refused<ShapeError>(q, {"q: num_heads is 0 in [2, 0, 3, 8]"});
  Right k;
  k.k = Tensor({2, 0, 5, 8}, kF32);
  expect_refused<ShapeError>(k, {"k: num_kv_heads is 0 in [2, 0, 5, 8]"});
  Right dim;
  dim.q = Tensor({2, 4, 3, 0}, kF32);
  expect_refused<ShapeError>(dim, {"q: head_dim is 0 in [2, 4, 3, 0]"});
}

TEST(ValidateShapes, KeysAndValuesAgree) {
  Right length;
  length.v = Tensor({2, 2, 4, 6}, kF32);
  expect_refused<ShapeError>(length, {"v: expected kv_len 5 as in k [2, 2, 5, 8], got 4 in [2, 2, 4, 6]"});
  Right heads;
  heads.v = Tensor({2, 4, 5, 6}, kF32);
  expect_refused<ShapeError>(heads, {"v: expected num_kv_heads 2 as in k [2, 2, 5, 8], got 4 in [2, 4, 5, 6]"});
}

TEST(ValidateShapes, Out) {
  Right call;
  call.out = Tensor({2, 4, 3, 8}, kF32);
  expect_refused<ShapeError>(call,
                             {"out: expected [batch, num_heads, q_len, value_dim] = [2, 4, 3, 6], got [2, 4, 3, 8]"});
}

TEST(ValidateMemory, NullPointers) {
  Right call;
  const ConstTensorView null(nullptr, kF32, {2, 4, 3, 8}, {96, 24, 8, 1});
  const TensorView null_out(nullptr, kF32, {2, 4, 3, 6}, {72, 18, 6, 1});
  expect_refused<ValueError>(
      [&] { attention_detail::validate(null, call.k.view(), call.v.view(), call.out.view(), {}, {}); },
      {"q: the data pointer of [2, 4, 3, 8] is null"});
  expect_refused<ValueError>(
      [&] { attention_detail::validate(call.q.view(), call.k.view(), call.v.view(), null_out, {}, {}); },
      {"out: the data pointer of [2, 4, 3, 6] is null"});
}

TEST(ValidateMemory, MisalignedPointers) {
  Right call;
  std::vector<char> bytes(sizeof(float) * 200);
  const ConstTensorView odd(bytes.data() + 1, kF32, {2, 4, 3, 8}, {96, 24, 8, 1});
  expect_refused<ValueError>(
      [&] { attention_detail::validate(odd, call.k.view(), call.v.view(), call.out.view(), {}, {}); },
      {"q: the data pointer is not aligned to the 4 bytes of float32"});
}

TEST(ValidateMemory, SizesThatDoNotFit) {
  Right call;
  float x = 0;
  constexpr std::int64_t kBig = std::int64_t{1} << 62;
  const auto validate_q = [&](const Extents& shape, const Extents& strides) {
    const ConstTensorView q(&x, kF32, shape, strides);
    return [q, &call] { attention_detail::validate(q, call.k.view(), call.v.view(), call.out.view(), {}, {}); };
  };
  expect_refused<ShapeError>(validate_q({2, 4, 3, 8}, {kBig, 24, 8, 1}), {"q: ", "63 bits can address"});
  expect_refused<ShapeError>(validate_q({2, 4, kBig, 8}, {0, 0, 0, 1}), {"q: ", "63 bits can address"});
  expect_refused<ShapeError>(validate_q({2, 4, 3, 8}, {-kBig, 24, 8, 1}), {"q: ", "63 bits can address"});
}

TEST(ValidateMemory, ColumnsThatNoBlockOfRowsCanHold) {
  const float x = 0;
  Tensor out({1, 1, 0, 1}, kF32);
  constexpr std::int64_t kFar = std::int64_t{1} << 41;
  const auto validate_dims = [&](std::int64_t head_dim, std::int64_t value_dim) {
    const ConstTensorView q(&x, kF32, {1, 1, 1, head_dim}, {0, 0, 0, 0});
    const ConstTensorView k(&x, kF32, {1, 1, 0, head_dim}, {0, 0, 0, 0});
    const ConstTensorView v(&x, kF32, {1, 1, 0, value_dim}, {0, 0, 0, 0});
    return [q, k, v, &out] { attention_detail::validate(q, k, v, out.view(), {}, {}); };
  };
  expect_refused<ShapeError>(validate_dims(kFar, 1), {"q: head_dim is beyond 2^40 in [1, 1, 1, "});
  expect_refused<ShapeError>(validate_dims(std::int64_t{1} << 62, 1), {"q: "});
  expect_refused<ShapeError>(validate_dims(1, kFar), {"v: value_dim is beyond 2^40 in [1, 1, 0, "});
}

TEST(ValidateMemory, OutSharesNoElementWithAnInput) {
  std::vector<float> memory(2000);
  Right call;
  const auto q = view(memory.data(), {2, 4, 3, 8});
  const auto validate = [&](const TensorView& out, const ConstTensorView& v) {
    return [&call, q, out, v] { attention_detail::validate(q, call.k.view(), v, out, {}, {}); };
  };
  expect_refused<ValueError>(validate(view(memory.data() + 191, {2, 4, 3, 6}), call.v.view()),
                             {"out: [2, 4, 3, 6] shares memory with q [2, 4, 3, 8]"});
  EXPECT_NO_THROW(validate(view(memory.data() + 192, {2, 4, 3, 6}), call.v.view())());
  const auto v = view(memory.data() + 300, {2, 2, 5, 6});
  expect_refused<ValueError>(validate(view(memory.data() + 310, {2, 4, 3, 6}), v), {"out: ", "shares memory with v"});
  // q, k, v and out side by side in rows of one block: interleaved, and yet apart.
  const Extents strides{3 * 4 * 32, 32, 4 * 32, 1};
  std::vector<float> rows(2 * 3 * 4 * 32);
  EXPECT_NO_THROW(attention_detail::validate(view(rows.data(), {2, 4, 3, 8}, strides), call.k.view(), call.v.view(),
                                             view(rows.data() + 8, {2, 4, 3, 6}, strides), {}, {}));
}

TEST(ValidateMemory, OutIsWrittenOnce) {
  Right call;
  std::vector<float> memory(200);
  expect_refused<ValueError>(
      [&] {
        attention_detail::validate(call.q.view(), call.k.view(), call.v.view(),
                                   view(memory.data(), {2, 4, 3, 6}, {0, 18, 6, 1}), {}, {});
      },
      {"out: two elements of [2, 4, 3, 6] with strides [0, 18, 6, 1] share one address"});
}

TEST(ValidateMemory, OutputsShareNothing) {
  std::vector<float> memory(500);
  Right call;
  const auto lse = view(memory.data(), {2, 4, 3});
  call.outputs.lse = lse;
  call.outputs.stats = Stats{.max_raw = view(memory.data() + 23, {2, 4, 3})};
  expect_refused<ValueError>(call, {"stats.max_raw: ", "shares memory with lse"});

  Right with_input;
  with_input.outputs.lse = view(with_input.k.as<float>(), {2, 4, 3});
  expect_refused<ValueError>(with_input, {"lse: ", "shares memory with k"});

  Right with_out;
  with_out.outputs.logits = Logits{.out = view(with_out.out.as<float>(), {2, 4, 3, 5})};
  expect_refused<ValueError>(with_out, {"logits.out: ", "shares memory with out"});

  Right with_mask;
  with_mask.options.bias = view(memory.data(), {3, 5});
  with_mask.outputs.weights = Weights{.out = view(memory.data() + 14, {2, 4, 3, 5})};
  expect_refused<ValueError>(with_mask, {"weights.out: ", "shares memory with bias"});

  Right bias_in_out;
  bias_in_out.options.bias = view(bias_in_out.out.as<float>(), {3, 5});
  expect_refused<ValueError>(bias_in_out, {"out: ", "shares memory with bias"});

  Right twice;
  twice.outputs.lse = view(memory.data(), {2, 4, 3}, {12, 3, 0});
  expect_refused<ValueError>(twice, {"lse: two elements", "share one address"});
}

TEST(ValidateOrder, QueryBeforeOptionsBeforeOutputs) {
  Right call;
  call.q = Tensor({2, 4, 3, 8}, Dtype::kInt8);
  call.k = Tensor({2, 2, 5, 7}, kF32);
  call.options.scale = kNan;
  expect_refused<DtypeError>(call, {"q: "});
  call.q = Tensor({2, 4, 3, 8}, kF32);
  expect_refused<ShapeError>(call, {"k: "});
  call.k = Tensor({2, 2, 5, 8}, kF32);
  call.outputs.lse = TensorView();
  expect_refused<ValueError>(call, {"scale: "});
}

}  // namespace
}  // namespace qkv
