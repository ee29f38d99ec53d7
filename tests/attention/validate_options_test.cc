// What validation refuses of the options and of the outputs beyond out.
#include <gtest/gtest.h>

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
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <class Exception>
void expect_option_refused(const AttentionOptions& options, const std::vector<std::string>& parts) {
  Right call;
  call.options = options;
  expect_refused<Exception>(call, parts);
}
template <class Exception>
void expect_output_refused(const AttentionOutputs& outputs, const std::vector<std::string>& parts) {
  Right call;
  call.outputs = outputs;
  expect_refused<Exception>(call, parts);
}

TEST(ValidateOptions, Scale) {
  expect_option_refused<ValueError>({.scale = kNan}, {"scale: expected a finite number, got nan"});
  expect_option_refused<ValueError>({.scale = kInf}, {"scale: expected a finite number, got inf"});
  expect_option_refused<ValueError>({.scale = -kInf}, {"scale: expected a finite number, got -inf"});
}

TEST(ValidateOptions, Softcap) {
  expect_option_refused<ValueError>({.softcap = -1}, {"softcap: ", "0 for none, got -1"});
  expect_option_refused<ValueError>({.softcap = kNan}, {"softcap: ", "got nan"});
  expect_option_refused<ValueError>({.softcap = kInf}, {"softcap: ", "got inf"});
}

TEST(ValidateOptions, Window) {
  expect_option_refused<ValueError>({.window = {.left = -1}},
                                    {"window: expected left >= 0 (empty means unbounded), got -1"});
  expect_option_refused<ValueError>({.window = {.right = -2}}, {"window: expected right >= 0", "got -2"});
}

TEST(ValidateOptions, MaskIsBool) {
  expect_option_refused<DtypeError>({.mask = Tensor({3, 5}, Dtype::kInt64).view()},
                                    {"mask: expected bool (true = attend), got int64; use mask != 0"});
  expect_option_refused<DtypeError>({.mask = Tensor({3, 5}, Dtype::kUInt8).view()}, {"got uint8; use mask != 0"});
  expect_option_refused<DtypeError>({.mask = Tensor({3, 5}, kF32).view()},
                                    {"mask: expected bool", "got float32", "bias"});
}

TEST(ValidateOptions, MaskAndBiasBroadcast) {
  const Tensor mask({2, 1, 5, 3}, Dtype::kBool);
  expect_option_refused<ShapeError>(
      {.mask = mask}, {"mask: [2, 1, 5, 3] does not broadcast to [batch, num_heads, q_len, kv_len] = [2, 4, 3, 5]"});
  const Tensor bias({2, 3, 5}, kF32);
  expect_option_refused<ShapeError>({.bias = bias}, {"bias: [2, 3, 5] does not broadcast to", "= [2, 4, 3, 5]"});
  const Tensor five({1, 1, 1, 3, 5}, Dtype::kBool);
  expect_option_refused<ShapeError>({.mask = five}, {"mask: expected 0 to 4 axes", "got 5 in [1, 1, 1, 3, 5]"});
  const Tensor none({0}, kF32);
  expect_option_refused<ShapeError>({.bias = none}, {"bias: [0] does not broadcast to"});
  for (const Extents& shape : {Extents{}, Extents{5}, Extents{3, 1}, Extents{4, 1, 5}, Extents{2, 1, 1, 5}}) {
    Right call;
    const Tensor fine(shape, Dtype::kBool);
    call.options.mask = fine;
    EXPECT_NO_THROW(call.validate()) << to_string(shape);
  }
}

TEST(ValidateOptions, BiasHasTheDtypeOfQuery) {
  const Tensor bias({3, 5}, kF64);
  expect_option_refused<DtypeError>({.bias = bias}, {"bias: expected float32, got float64"});
}

TEST(ValidateOptions, SinksAndSlopes) {
  for (const Extents& shape : {Extents{3}, Extents{1, 4}, Extents{4, 2}, Extents{1}}) {
    const Tensor values(shape, kF32);
    const std::string text = "expected [num_heads] = [4] or [batch, num_heads] = [2, 4], got " + to_string(shape);
    expect_option_refused<ShapeError>({.sinks = values}, {"sinks: ", text});
    expect_option_refused<ShapeError>({.alibi_slopes = values}, {"alibi_slopes: ", text});
  }
  const Tensor wide({4}, kF64);
  expect_option_refused<DtypeError>({.sinks = wide}, {"sinks: expected float32, got float64"});
  expect_option_refused<DtypeError>({.alibi_slopes = wide}, {"alibi_slopes: expected float32, got float64"});
  const Tensor three({1, 2, 4}, kF32);
  expect_option_refused<ShapeError>({.sinks = three}, {"sinks: expected 1 to 2 axes"});
}

TEST(ValidateOptions, LengthsAreWithinKvLen) {
  const Tensor negative = tensor_of({2}, Dtype::kInt64, {5, -1});
  expect_option_refused<ValueError>({.kv_lens = negative}, {"kv_lens: expected 0 to kv_len = 5, got -1 for batch 1"});
  const Tensor beyond = tensor_of({2}, Dtype::kInt32, {6, 0});
  expect_option_refused<ValueError>({.kv_lens = beyond}, {"kv_lens: expected 0 to kv_len = 5, got 6 for batch 0"});
}

TEST(ValidateOptions, LengthsAndOffsetsAreWholeNumbersPerBatch) {
  const Tensor real({2}, kF32);
  expect_option_refused<DtypeError>({.kv_lens = real}, {"kv_lens: expected int32 or int64, got float32"});
  expect_option_refused<DtypeError>({.query_offset = real.view()},
                                    {"query_offset: expected int32 or int64, got float32"});
  const Tensor small({2}, Dtype::kInt16);
  expect_option_refused<DtypeError>({.kv_lens = small}, {"kv_lens: expected int32 or int64, got int16"});
  const Tensor three({3}, Dtype::kInt64);
  expect_option_refused<ShapeError>({.kv_lens = three}, {"kv_lens: expected [batch] = [2], got [3]"});
  expect_option_refused<ShapeError>({.query_offset = three.view()}, {"query_offset: expected [batch] = [2], got [3]"});
  const Tensor table({2, 1}, Dtype::kInt64);
  expect_option_refused<ShapeError>({.kv_lens = table}, {"kv_lens: ", "got 2 in [2, 1]"});
}

TEST(ValidateOptions, OffsetsThatPositionsCanHold) {
  expect_option_refused<ValueError>({.query_offset = std::numeric_limits<std::int64_t>::max()},
                                    {"query_offset: expected a number within +-2^60", "for batch 0"});
  expect_option_refused<ValueError>({.query_offset = std::numeric_limits<std::int64_t>::min()}, {"query_offset: "});
}

TEST(ValidateOptions, DropoutIsAProbabilityWithASeed) {
  expect_option_refused<ValueError>({.dropout = {.p = 0.1}}, {"dropout: p = 0.1 needs a seed"});
  for (const double p : {-0.5, 1.5, kNan, kInf}) {
    expect_option_refused<ValueError>({.dropout = {.p = p, .seed = 1}},
                                      {"dropout: expected a probability p in 0..1, got"});
  }
  Right right;
  right.options.dropout = {.p = 1, .seed = 7};
  EXPECT_EQ(right.validate().dropout, 1);
  EXPECT_EQ(right.validate().seed, 7U);
  for (const double off : {0.0, -0.0}) {
    right.options.dropout = {.p = off};
    EXPECT_EQ(right.validate().dropout, 0);
  }
}

TEST(ValidateOptions, DropoutNumbersBatchesAndHeadsBy32Bits) {
  constexpr std::int64_t kBeyond = (std::int64_t{1} << 32) + 1;
  const float number = 0;
  float result = 0;
  const auto call = [&](std::int64_t batch, std::int64_t heads, const Dropout& dropout) {
    const ConstTensorView q(&number, kF32, {batch, heads, 0, 1}, {0, 0, 0, 0});
    const ConstTensorView k(&number, kF32, {batch, 1, 1, 1}, {0, 0, 0, 0});
    attention_detail::validate(q, k, k, TensorView(&result, kF32, {batch, heads, 0, 1}, {0, 0, 0, 0}),
                               {.dropout = dropout}, {});
  };
  const Dropout half{.p = 0.5, .seed = 1};
  EXPECT_NO_THROW(call(1, kBeyond - 1, half));
  EXPECT_NO_THROW(call(1, kBeyond, {.seed = 1}));
  expect_refused<ShapeError>([&] { call(kBeyond, 1, half); },
                             {"dropout: expected at most 2^32 batches and heads, got 4294967297 and 1"});
  expect_refused<ShapeError>([&] { call(1, kBeyond, half); },
                             {"dropout: expected at most 2^32 batches and heads, got 1 and 4294967297"});
}

TEST(ValidateOutputs, Lse) {
  Tensor wrong({2, 4, 5}, kF32);
  expect_output_refused<ShapeError>({.lse = wrong.view()},
                                    {"lse: expected [batch, num_heads, q_len] = [2, 4, 3], got [2, 4, 5]"});
  Tensor wide({2, 4, 3}, kF64);
  expect_output_refused<DtypeError>({.lse = wide.view()}, {"lse: expected float32, got float64"});
  Tensor four({2, 4, 3, 1}, kF32);
  expect_output_refused<ShapeError>({.lse = four.view()}, {"lse: expected 1 to 3 axes"});
}

TEST(ValidateOutputs, Weights) {
  Tensor all({2, 4, 3, 5}, kF32);
  const auto weights = [&all](std::vector<std::int64_t> heads, std::vector<std::int64_t> rows) {
    return AttentionOutputs{.weights = Weights{.out = all, .heads = std::move(heads), .rows = std::move(rows)}};
  };
  expect_output_refused<ValueError>(weights({4}, {0}),
                                    {"weights.heads: expected indices from 0 to below num_heads = 4, got 4"});
  expect_output_refused<ValueError>(weights({-1}, {0}), {"weights.heads: ", "got -1"});
  expect_output_refused<ValueError>(weights({0}, {0, 3}),
                                    {"weights.rows: expected indices from 0 to below q_len = 3, got 3"});
  expect_output_refused<ValueError>(weights({0}, {-2}), {"weights.rows: ", "got -2"});
  expect_output_refused<ShapeError>(
      weights({0, 1}, {2}),
      {"weights.out: expected [batch, number of heads, number of rows, kv_len] = [2, 2, 1, 5], got [2, 4, 3, 5]"});
  Tensor wide({2, 4, 3, 5}, kF64);
  expect_output_refused<DtypeError>({.weights = Weights{.out = wide}}, {"weights.out: expected float32, got float64"});
  expect_output_refused<ShapeError>({.weights = Weights{}}, {"weights.out: expected 1 to 4 axes"});
}

TEST(ValidateOutputs, Logits) {
  Tensor wrong({2, 4, 5, 3}, kF32);
  expect_output_refused<ShapeError>({.logits = Logits{.out = wrong}},
                                    {"logits.out: ", "= [2, 4, 3, 5], got [2, 4, 5, 3]"});
  Tensor right({2, 4, 3, 5}, kF32);
  expect_output_refused<ValueError>({.logits = Logits{.out = right, .stage = static_cast<LogitsStage>(9)}},
                                    {"logits.stage: ", "got the number 9"});
}

TEST(ValidateOutputs, Statistics) {
  Tensor wrong({2, 4, 5}, kF32);
  const std::string rows = "expected [batch, num_heads, q_len] = [2, 4, 3], got [2, 4, 5]";
  expect_output_refused<ShapeError>({.stats = Stats{.max_raw = wrong.view()}}, {"stats.max_raw: ", rows});
  expect_output_refused<ShapeError>({.stats = Stats{.max_logit = wrong.view()}}, {"stats.max_logit: ", rows});
  expect_output_refused<ShapeError>({.stats = Stats{.max_weight = wrong.view()}}, {"stats.max_weight: ", rows});
  expect_output_refused<ShapeError>({.stats = Stats{.entropy = wrong.view()}}, {"stats.entropy: ", rows});
  expect_output_refused<ShapeError>({.stats = Stats{.key_weight = wrong.view()}}, {"stats.key_weight: ", rows});
  Tensor real({2, 4, 3}, kF32);
  expect_output_refused<DtypeError>({.stats = Stats{.max_key = real.view()}},
                                    {"stats.max_key: expected int64, got float32"});
  expect_output_refused<ValueError>({.stats = Stats{.keys = {0, 5}}},
                                    {"stats.keys: expected indices from 0 to below kv_len = 5, got 5"});
  expect_output_refused<ValueError>({.stats = Stats{.keys = {-1}}}, {"stats.keys: ", "got -1"});
  expect_output_refused<ValueError>({.stats = Stats{.keys = {3, 1, 3}}},
                                    {"stats.keys: key 3 is listed more than once"});
}

}  // namespace
}  // namespace qkv
