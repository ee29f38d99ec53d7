// What a backward call refuses, dense and ragged, with the essential parts of its text: the argument, what was seen, what
// was expected. And what the rules of its gradients' memory promise: they may lie anywhere but on an input, be float32
// beside 16 bits, and be added to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "attention/validate.h"
#include "qkv/attention.h"
#include "qkv/backward.h"
#include "support/elements.h"
#include "support/error_of.h"
#include "support/random.h"

namespace qkv {
namespace {

using support::error_of;
using support::tensor_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr Dtype kF32 = Dtype::kFloat32;
constexpr Dtype kF64 = Dtype::kFloat64;

/// A call that is right: q [2, 4, 3, 8], k [2, 2, 5, 8], v [2, 2, 5, 6], with a bias [4, 1, 5] and sinks [4]. Tests
/// spoil one thing of it.
struct Right {
  explicit Right(Dtype dtype = kF32, Dtype gradient = kF32) {
    for (Tensor* tensor : {&q, &k, &v, &out, &grad_out, &bias, &sinks}) *tensor = Tensor(tensor->shape(), dtype);
    for (Tensor* tensor : {&grad_q, &grad_k, &grad_v, &grad_bias, &grad_sinks}) {
      *tensor = Tensor(tensor->shape(), gradient);
    }
    for (Tensor* tensor : {&lse, &grad_lse, &grad_entropy}) *tensor = Tensor(tensor->shape(), stats_dtype(dtype));
    options = {.bias = bias, .sinks = sinks};
    gradients = {.grad_out = grad_out,
                 .grad_lse = grad_lse,
                 .grad_entropy = grad_entropy,
                 .grad_q = grad_q,
                 .grad_k = grad_k,
                 .grad_v = grad_v,
                 .grad_bias = grad_bias,
                 .grad_sinks = grad_sinks};
  }

  AttentionInputs inputs() const { return {q, k, v}; }
  AttentionSaved saved() const { return {out, lse}; }
  kernels::BackwardProblem validate() const {
    return attention_detail::validate_backward(inputs(), saved(), gradients, options);
  }

  Tensor q{{2, 4, 3, 8}, kF32};
  Tensor k{{2, 2, 5, 8}, kF32};
  Tensor v{{2, 2, 5, 6}, kF32};
  Tensor out{{2, 4, 3, 6}, kF32};
  Tensor lse{{2, 4, 3}, kF32};
  Tensor bias{{4, 1, 5}, kF32};
  Tensor sinks{{4}, kF32};
  Tensor grad_out{{2, 4, 3, 6}, kF32};
  Tensor grad_lse{{2, 4, 3}, kF32};
  Tensor grad_entropy{{2, 4, 3}, kF32};
  Tensor grad_q{{2, 4, 3, 8}, kF32};
  Tensor grad_k{{2, 2, 5, 8}, kF32};
  Tensor grad_v{{2, 2, 5, 6}, kF32};
  Tensor grad_bias{{4, 1, 5}, kF32};
  Tensor grad_sinks{{4}, kF32};
  AttentionOptions options = {};
  AttentionGradients gradients = {};
};

template <class Exception>
void expect_refused(const std::function<void()>& call, const std::string& text) {
  EXPECT_THAT(error_of<Exception>(call), AllOf(StartsWith("qkv::attention_backward: "), HasSubstr(text)));
}
template <class Exception>
void expect_refused(const Right& call, const std::string& text) {
  expect_refused<Exception>([&call] { call.validate(); }, text);
}

TEST(BackwardValidate, ResolvesEverything) {
  const Right call;
  const auto problem = call.validate();
  EXPECT_EQ(problem.forward.q_len, 3);
  EXPECT_EQ(problem.forward.value_dim, 6);
  EXPECT_TRUE(problem.out && problem.lse && problem.grad_out && problem.grad_lse && problem.grad_entropy);
  EXPECT_TRUE(problem.grad_q && problem.grad_k && problem.grad_v && problem.grad_bias && problem.grad_sinks);
  EXPECT_FALSE(problem.accumulate);
  const auto strides = [](const kernels::Result& r) { return to_string(Extents{r.batch, r.head, r.row, r.col}); };
  EXPECT_EQ(strides(problem.grad_bias), "[0, 5, 0, 1]") << "rows and the batch share their sums";
  EXPECT_EQ(strides(problem.grad_sinks), "[0, 1, 0, 0]");
  EXPECT_EQ(strides(problem.grad_k), "[80, 40, 8, 1]");
}

TEST(BackwardValidate, NothingHasToBeWanted) {
  Right call;
  call.gradients = {.grad_out = call.grad_out};
  const auto problem = call.validate();
  EXPECT_FALSE(problem.grad_q || problem.grad_k || problem.grad_v || problem.grad_bias || problem.grad_sinks);
  EXPECT_FALSE(problem.grad_lse || problem.grad_entropy);
  EXPECT_NO_THROW(attention_backward(call.inputs(), call.saved(), call.gradients, call.options));
}

TEST(BackwardValidate, WhatForwardRefuses) {
  Right q;
  q.q = Tensor({2, 4, 3, 8}, Dtype::kInt8);
  expect_refused<DtypeError>(q, "q: expected float32, float64, float16 or bfloat16, got int8");
  Right k;
  k.k = Tensor({2, 3, 5, 8}, kF32);
  expect_refused<ShapeError>(k, "k: num_kv_heads 3 in [2, 3, 5, 8] does not divide num_heads 4 of q [2, 4, 3, 8]");
  Right v;
  v.v = Tensor({2, 2, 4, 6}, kF32);
  expect_refused<ShapeError>(v, "v: expected kv_len 5 as in k [2, 2, 5, 8], got 4 in [2, 2, 4, 6]");
  Right options;
  options.options.softcap = -1;
  expect_refused<ValueError>(options, "softcap: expected a positive finite number");
  Right sinks;
  const Tensor three({3}, kF32);
  sinks.options.sinks = three;
  expect_refused<ShapeError>(sinks, "sinks: expected [num_heads] = [4]");
}

TEST(BackwardValidate, ShapesOfWhatIsRead) {
  Right out;
  out.out = Tensor({2, 4, 3, 8}, kF32);
  expect_refused<ShapeError>(out,
                             "out: expected [batch, num_heads, q_len, value_dim] = [2, 4, 3, 6], got [2, 4, 3, 8]");
  Right lse;
  lse.lse = Tensor({2, 4, 5}, kF32);
  expect_refused<ShapeError>(lse, "lse: expected [batch, num_heads, q_len] = [2, 4, 3], got [2, 4, 5]");
  Right axes;
  axes.lse = Tensor({2, 4, 3, 1}, kF32);
  expect_refused<ShapeError>(axes, "lse: expected 1 to 3 axes [batch, num_heads, q_len], got 4 in [2, 4, 3, 1]");
  Right call;
  const Tensor few({4, 3, 6}, kF32), rows({2, 4}, kF32);
  call.gradients.grad_out = few;
  expect_refused<ShapeError>(call,
                             "grad_out: expected [batch, num_heads, q_len, value_dim] = [2, 4, 3, 6], got [4, 3, ");
  call.gradients.grad_out = call.grad_out;
  call.gradients.grad_lse = rows;
  expect_refused<ShapeError>(call, "grad_lse: expected [batch, num_heads, q_len] = [2, 4, 3], got [2, 4]");
  call.gradients.grad_lse = call.grad_lse;
  call.gradients.grad_entropy = rows;
  expect_refused<ShapeError>(call, "grad_entropy: expected [batch, num_heads, q_len] = [2, 4, 3], got [2, 4]");
}

TEST(BackwardValidate, DtypesOfWhatIsRead) {
  const Tensor out({2, 4, 3, 6}, kF64), row({2, 4, 3}, kF64), half({2, 4, 3}, Dtype::kFloat16);
  Right call;
  const auto refuse_saved = [&call](const AttentionSaved& saved, const std::string& text) {
    expect_refused<DtypeError>(
        [&] { attention_detail::validate_backward(call.inputs(), saved, call.gradients, call.options); }, text);
  };
  refuse_saved({out, call.lse}, "out: expected float32 as in q, got float64");
  refuse_saved({call.out, row}, "lse: expected float32, got float64");
  call.gradients.grad_out = out;
  expect_refused<DtypeError>(call, "grad_out: expected float32 as in q, got float64");
  call.gradients.grad_out = call.grad_out;
  call.gradients.grad_lse = row;
  expect_refused<DtypeError>(call, "grad_lse: expected float32, got float64");
  call.gradients.grad_lse = call.grad_lse;
  call.gradients.grad_entropy = half;
  expect_refused<DtypeError>(call, "grad_entropy: expected float32, got float16");
}

TEST(BackwardValidate, RowsBeside16BitsAreFloat32) {
  Right call(Dtype::kBFloat16, Dtype::kBFloat16);
  EXPECT_NO_THROW(call.validate());
  const Tensor half({2, 4, 3}, Dtype::kBFloat16);
  call.gradients.grad_lse = half;
  expect_refused<DtypeError>(call, "grad_lse: expected float32, got bfloat16");
}

TEST(BackwardValidate, ShapesOfGradients) {
  Tensor q({2, 4, 3, 6}, kF32), k({2, 4, 5, 8}, kF32), v({2, 5, 6}, kF32), bias({4, 3, 5}, kF32), sinks({2, 4}, kF32);
  Right call;
  call.gradients.grad_q = q;
  expect_refused<ShapeError>(call, "grad_q: expected [batch, num_heads, q_len, head_dim] = [2, 4, 3, 8], got [2, 4, 3");
  call.gradients.grad_q = call.grad_q;
  call.gradients.grad_k = k;
  expect_refused<ShapeError>(call,
                             "grad_k: expected [batch, num_kv_heads, kv_len, head_dim] = [2, 2, 5, 8], got [2, 4");
  call.gradients.grad_k = call.grad_k;
  call.gradients.grad_v = v;
  expect_refused<ShapeError>(call,
                             "grad_v: expected [batch, num_kv_heads, kv_len, value_dim] = [2, 2, 5, 6], got [2, ");
  call.gradients.grad_v = call.grad_v;
  call.gradients.grad_bias = bias;
  expect_refused<ShapeError>(call, "grad_bias: expected [4, 1, 5] as in bias, got [4, 3, 5]");
  call.gradients.grad_bias = call.grad_bias;
  call.gradients.grad_sinks = sinks;
  expect_refused<ShapeError>(call, "grad_sinks: expected [4] as in sinks, got [2, 4]");
}

TEST(BackwardValidate, DtypesOfGradients) {
  Tensor q({2, 4, 3, 8}, kF64), k({2, 2, 5, 8}, Dtype::kFloat16), v({2, 2, 5, 6}, Dtype::kInt32);
  Tensor bias({4, 1, 5}, kF64), sinks({4}, Dtype::kFloat16);
  Right call;
  call.gradients.grad_q = q;
  expect_refused<DtypeError>(call, "grad_q: expected float32, got float64");
  call.gradients.grad_q = call.grad_q;
  call.gradients.grad_k = k;
  expect_refused<DtypeError>(call, "grad_k: expected float32, got float16");
  call.gradients.grad_k = call.grad_k;
  call.gradients.grad_v = v;
  expect_refused<DtypeError>(call, "grad_v: expected float32, got int32");
  call.gradients.grad_v = call.grad_v;
  call.gradients.grad_bias = bias;
  expect_refused<DtypeError>(call, "grad_bias: expected float32, got float64");
  call.gradients.grad_bias = call.grad_bias;
  call.gradients.grad_sinks = sinks;
  expect_refused<DtypeError>(call, "grad_sinks: expected float32, got float16");
}

TEST(BackwardValidate, GradientsBeside16BitsAreOfThemOrFloat32) {
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBFloat16}) {
    EXPECT_NO_THROW(Right(dtype, dtype).validate());
    EXPECT_NO_THROW(Right(dtype, kF32).validate());
    const std::string expected = std::string(name_of(dtype)) + " or float32, got float64";
    expect_refused<DtypeError>(Right(dtype, kF64), "grad_q: expected " + expected);
  }
  // Each by its own argument: k is float16 beside a float32 q.
  Right mixed;
  mixed.k = Tensor({2, 2, 5, 8}, Dtype::kFloat16);
  EXPECT_NO_THROW(mixed.validate());
  Tensor half({2, 2, 5, 8}, Dtype::kFloat16), other({2, 2, 5, 8}, Dtype::kBFloat16);
  mixed.gradients.grad_k = half;
  EXPECT_NO_THROW(mixed.validate());
  mixed.gradients.grad_k = other;
  expect_refused<DtypeError>(mixed, "grad_k: expected float16 or float32, got bfloat16");
}

TEST(BackwardValidate, GradientsOfWhatIsNotThere) {
  Right bias;
  bias.options.bias.reset();
  expect_refused<ValueError>(bias, "grad_bias: asked for, but there is no bias in the options");
  Right sinks;
  sinks.options.sinks.reset();
  expect_refused<ValueError>(sinks, "grad_sinks: asked for, but there is no sinks in the options");
}

TEST(BackwardValidate, GradientsShareNothing) {
  Right q;
  q.gradients.grad_q = view(q.q.as<float>(), {2, 4, 3, 8});
  expect_refused<ValueError>(q, "grad_q: [2, 4, 3, 8] shares memory with q [2, 4, 3, 8]; give it memory of its own");
  Right lse;
  lse.gradients.grad_sinks = view(lse.lse.as<float>() + 20, {4});
  expect_refused<ValueError>(lse, "grad_sinks: [4] shares memory with lse [2, 4, 3]");
  Right upstream;
  std::vector<float> memory(400);
  upstream.gradients.grad_out = view(memory.data(), {2, 4, 3, 6});
  upstream.gradients.grad_k = view(memory.data() + 143, {2, 2, 5, 8});
  expect_refused<ValueError>(upstream, "grad_k: [2, 2, 5, 8] shares memory with grad_out [2, 4, 3, 6]");
  Right option;
  option.gradients.grad_bias = view(option.bias.as<float>(), {4, 1, 5});
  expect_refused<ValueError>(option, "grad_bias: [4, 1, 5] shares memory with bias [4, 1, 5]");
  Right each_other;
  each_other.gradients.grad_k = view(memory.data(), {2, 2, 5, 8});
  each_other.gradients.grad_v = view(memory.data() + 159, {2, 2, 5, 6});
  expect_refused<ValueError>(each_other, "grad_v: [2, 2, 5, 6] shares memory with grad_k [2, 2, 5, 8]");
  each_other.gradients.grad_v = view(memory.data() + 160, {2, 2, 5, 6});
  EXPECT_NO_THROW(each_other.validate());
  Right twice;
  twice.gradients.grad_v = view(memory.data(), {2, 2, 5, 6}, {60, 0, 6, 1});
  expect_refused<ValueError>(twice,
                             "grad_v: two elements of [2, 2, 5, 6] with strides [60, 0, 6, 1] share one address");
  Right read_twice;
  read_twice.gradients.grad_out = view(memory.data(), {2, 4, 3, 6}, {0, 0, 0, 0});
  EXPECT_NO_THROW(read_twice.validate()) << "what is read may repeat";
}

TEST(BackwardValidate, Memory) {
  Right call;
  call.gradients.grad_q = TensorView(nullptr, kF32, {2, 4, 3, 8}, {96, 24, 8, 1});
  expect_refused<ValueError>(call, "grad_q: the data pointer of [2, 4, 3, 8] is null");
  call.gradients.grad_q = call.grad_q;
  call.gradients.grad_out = ConstTensorView();
  EXPECT_THAT(error_of<Error>([&] { call.validate(); }), StartsWith("qkv::attention_backward: grad_out: "));
}

TEST(BackwardValidate, Order) {
  Right call;
  call.lse = Tensor({2, 4, 4}, kF32);
  call.options.softcap = -1;
  call.gradients.grad_q = TensorView();
  expect_refused<ShapeError>(call, "lse: ");
  call.lse = Tensor({2, 4, 3}, kF32);
  expect_refused<ValueError>(call, "softcap: ");
}

/// The same of a ragged batch: 3 rows and 5 keys in two segments.
struct RightRagged {
  AttentionInputs inputs() const { return {q, k, v}; }
  AttentionSaved saved() const { return {out, lse}; }
  std::vector<kernels::BackwardProblem> validate() const {
    return attention_detail::validate_varlen_backward(inputs(), saved(), gradients, options);
  }

  Tensor q{{3, 4, 8}, kF32};
  Tensor k{{5, 2, 8}, kF32};
  Tensor v{{5, 2, 6}, kF32};
  Tensor out{{3, 4, 6}, kF32};
  Tensor lse{{4, 3}, kF32};
  Tensor sinks{{2, 4}, kF32};
  Tensor grad_out{{3, 4, 6}, kF32};
  Tensor grad_q{{3, 4, 8}, kF32};
  Tensor grad_k{{5, 2, 8}, kF32};
  Tensor grad_v{{5, 2, 6}, kF32};
  Tensor grad_sinks{{2, 4}, kF32};
  Tensor q_bounds = tensor_of({3}, Dtype::kInt32, {0, 1, 3});
  Tensor k_bounds = tensor_of({3}, Dtype::kInt64, {0, 4, 5});
  VarlenOptions options{.cu_seqlens_q = q_bounds, .cu_seqlens_k = k_bounds, .attention = {.sinks = sinks}};
  AttentionGradients gradients{
      .grad_out = grad_out, .grad_q = grad_q, .grad_k = grad_k, .grad_v = grad_v, .grad_sinks = grad_sinks};
};

template <class Exception>
void expect_refused(const RightRagged& call, const std::string& text) {
  EXPECT_THAT(error_of<Exception>([&] { call.validate(); }),
              AllOf(StartsWith("qkv::attention_varlen_backward: "), HasSubstr(text)));
}

TEST(VarlenBackwardValidate, ASegmentEach) {
  const RightRagged call;
  const auto segments = call.validate();
  ASSERT_EQ(segments.size(), 2);
  EXPECT_EQ(segments[1].forward.q_len, 2);
  EXPECT_EQ(segments[1].forward.kv_len, 1);
  EXPECT_EQ(segments[1].grad_q.data, call.grad_q.as<float>() + 4 * 8);
  EXPECT_EQ(segments[1].grad_k.data, call.grad_k.as<float>() + 4 * 2 * 8);
  EXPECT_EQ(segments[1].grad_v.data, call.grad_v.as<float>() + 4 * 2 * 6);
  EXPECT_EQ(segments[1].grad_sinks.data, call.grad_sinks.as<float>() + 4);
  EXPECT_EQ(segments[1].lse.data, call.lse.as<float>() + 1);
}

TEST(VarlenBackwardValidate, AnEmptySegmentCountsOnlyForItsSinks) {
  RightRagged call;
  const Tensor q_bounds = tensor_of({4}, Dtype::kInt32, {0, 1, 1, 3}),
               k_bounds = tensor_of({4}, Dtype::kInt32, {0, 4, 4, 5});
  Tensor each({3, 4}, kF32), of_each({3, 4}, kF32), shared({4}, kF32), of_shared({4}, kF32);
  call.options = {.cu_seqlens_q = q_bounds, .cu_seqlens_k = k_bounds, .attention = {.sinks = each}};
  call.gradients.grad_sinks = of_each;
  EXPECT_EQ(call.validate().size(), 3);
  call.options.attention.sinks = shared;
  call.gradients.grad_sinks = of_shared;
  EXPECT_EQ(call.validate().size(), 2);
}

TEST(VarlenBackwardValidate, Shapes) {
  RightRagged lse;
  lse.lse = Tensor({3, 4}, kF32);
  expect_refused<ShapeError>(lse, "lse: expected [num_heads, total_q] = [4, 3], got [3, 4]");
  RightRagged out;
  out.out = Tensor({4, 3, 6}, kF32);
  expect_refused<ShapeError>(out, "out: expected [total_q, num_heads, value_dim] = [3, 4, 6], got [4, 3, 6]");
  RightRagged axes;
  axes.q = Tensor({1, 3, 4, 8}, kF32);
  expect_refused<ShapeError>(axes, "q: expected 3 axes [total_q, num_heads, head_dim], got 4");
  Tensor q({4, 3, 8}, kF32), k({2, 5, 8}, kF32), v({5, 2, 8}, kF32), sinks({4}, kF32);
  RightRagged call;
  call.gradients.grad_out = call.q;
  expect_refused<ShapeError>(call, "grad_out: expected [total_q, num_heads, value_dim] = [3, 4, 6], got [3, 4, 8]");
  call.gradients.grad_out = call.grad_out;
  call.gradients.grad_q = q;
  expect_refused<ShapeError>(call, "grad_q: expected [total_q, num_heads, head_dim] = [3, 4, 8], got [4, 3, 8]");
  call.gradients.grad_q = call.grad_q;
  call.gradients.grad_k = k;
  expect_refused<ShapeError>(call, "grad_k: expected [total_kv, num_kv_heads, head_dim] = [5, 2, 8], got [2, 5, 8]");
  call.gradients.grad_k = call.grad_k;
  call.gradients.grad_v = v;
  expect_refused<ShapeError>(call, "grad_v: expected [total_kv, num_kv_heads, value_dim] = [5, 2, 6], got [5, 2, 8]");
  call.gradients.grad_v = call.grad_v;
  call.gradients.grad_sinks = sinks;
  expect_refused<ShapeError>(call, "grad_sinks: expected [2, 4] as in sinks, got [4]");
}

TEST(VarlenBackwardValidate, Lengths) {
  RightRagged end;
  end.options.cu_seqlens_q = end.k_bounds;
  expect_refused<ValueError>(end, "cu_seqlens_q: expected to end with total_q = 3, got 5");
  RightRagged count;
  const Tensor bounds = tensor_of({2}, Dtype::kInt32, {0, 5});
  count.options.cu_seqlens_k = bounds;
  expect_refused<ShapeError>(count, "cu_seqlens_k: expected [num_segments + 1] = [3] as in cu_seqlens_q, got [2]");
}

TEST(VarlenBackwardValidate, WhatHasNoCommonShape) {
  const Tensor mask({3, 5}, Dtype::kBool), bias({3, 5}, kF32), lens = tensor_of({2}, Dtype::kInt32, {1, 1});
  RightRagged call;
  call.options.attention.mask = mask;
  expect_refused<ValueError>(call, "mask: a ragged batch takes none: rows of unequal length have no common shape");
  call.options.attention = {.bias = bias};
  expect_refused<ValueError>(call, "bias: a ragged batch takes none: rows of unequal length have no common shape");
  call.options.attention = {.kv_lens = lens};
  expect_refused<ValueError>(call, "kv_lens: a ragged batch takes none: cu_seqlens_k says how long each segment is");
  call.options.attention = {};
  Tensor grad_bias({3, 5}, kF32);
  call.gradients.grad_sinks.reset();
  call.gradients.grad_bias = grad_bias;
  expect_refused<ValueError>(call, "grad_bias: asked for, but there is no bias in the options");
}

TEST(VarlenBackwardValidate, GradientsShareNothing) {
  RightRagged call;
  call.gradients.grad_k = view(call.k.as<float>(), {5, 2, 8});
  expect_refused<ValueError>(call, "grad_k: [5, 2, 8] shares memory with k [5, 2, 8]");
  call.gradients.grad_k = call.grad_k;
  call.gradients.grad_sinks = view(call.sinks.as<float>(), {2, 4});
  expect_refused<ValueError>(call, "shares memory with ");
}

/// A right call filled with numbers, its out and lse with what they lead to.
Right filled_call(Dtype dtype, Dtype gradient) {
  Right call(dtype, gradient);
  support::Random random(7);
  for (Tensor* tensor :
       {&call.q, &call.k, &call.v, &call.grad_out, &call.bias, &call.sinks, &call.grad_lse, &call.grad_entropy}) {
    random.fill_normal(*tensor);
  }
  attention(call.q, call.k, call.v, call.out, call.options, {.lse = call.lse});
  return call;
}

std::vector<Tensor*> results(Right& call) {
  return {&call.grad_q, &call.grad_k, &call.grad_v, &call.grad_bias, &call.grad_sinks};
}

using Backward = decltype(&attention_backward);

/// The sum of `base` and a gradient of float32, in a tensor of any dtype: rounded once.
void expect_sums(Dtype dtype, Backward function) {
  SCOPED_TRACE(name_of(dtype));
  constexpr double kBase = 40;
  Right exact = filled_call(dtype, kF32);
  function(exact.inputs(), exact.saved(), exact.gradients, exact.options);
  Right sum = filled_call(dtype, dtype);
  for (Tensor* tensor : results(sum)) {
    support::for_each_index(tensor->shape(), [&](const Extents& at) { support::write(*tensor, at, kBase); });
  }
  sum.gradients.accumulate = true;
  function(sum.inputs(), sum.saved(), sum.gradients, sum.options);
  const auto expected = results(exact), actual = results(sum);
  // Half a unit in the last place of 40 to 64, and what float32 leaves out of the gradient.
  const double unit = dtype == Dtype::kBFloat16 ? 0x1p-2 : dtype == Dtype::kFloat16 ? 0x1p-5 : 0x1p-18;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    support::for_each_index(expected[i]->shape(), [&](const Extents& at) {
      EXPECT_NEAR(support::read(*actual[i], at), kBase + support::read(*expected[i], at), 0.5 * unit + 0x1p-18) << i;
    });
  }
}

TEST(BackwardResults, AreAddedToWhatIsThereAndRoundedOnce) {
  for (const Dtype dtype : {kF32, Dtype::kFloat16, Dtype::kBFloat16}) {
    expect_sums(dtype, &attention_backward);
    expect_sums(dtype, &reference::attention_backward);
  }
}

TEST(BackwardResults, OverwriteWhatIsThere) {
  for (const Dtype dtype : {kF32, kF64, Dtype::kFloat16}) {
    Right clean = filled_call(dtype, dtype), dirty = filled_call(dtype, dtype);
    for (Tensor* tensor : results(dirty)) {
      support::for_each_index(tensor->shape(), [&](const Extents& at) { support::write(*tensor, at, NAN); });
    }
    for (Right* call : {&clean, &dirty}) {
      attention_backward(call->inputs(), call->saved(), call->gradients, call->options);
    }
    const auto expected = results(clean), actual = results(dirty);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto size = static_cast<std::size_t>(expected[i]->num_elements()) * size_of(dtype);
      EXPECT_EQ(std::memcmp(expected[i]->view().data(), actual[i]->view().data(), size), 0) << i;
    }
  }
}

}  // namespace
}  // namespace qkv
