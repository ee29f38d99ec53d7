// Every option and output of the C interface against qkv::attention: the same bits, so each member reaches its place.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "qkv/attention.h"
#include "qkv/half.h"
#include "qkv/merge.h"
#include "qkv/qkv.h"

namespace {

constexpr std::int64_t kBatch = 2;
constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kKvHeads = 2;
constexpr std::int64_t kQLen = 5;
constexpr std::int64_t kKvLen = 7;
constexpr std::int64_t kHeadDim = 8;
constexpr std::int64_t kValueDim = 6;
constexpr unsigned kSeed = 20240607;

qkv_tensor describe(const qkv::ConstTensorView& view) {
  qkv_tensor tensor = qkv_dense(view.data(), static_cast<int>(view.dtype()), view.rank(), view.shape().begin());
  std::copy(view.strides().begin(), view.strides().end(), tensor.strides);
  return tensor;
}

qkv::Tensor random_tensor(const qkv::Extents& shape, std::mt19937& random) {
  qkv::Tensor tensor(shape, qkv::Dtype::kFloat32);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) tensor.as<float>()[i] = normal(random);
  return tensor;
}

template <class T>
qkv::Tensor tensor_of(const std::vector<T>& values) {
  qkv::Tensor tensor({static_cast<std::int64_t>(values.size())}, qkv::kDtypeOf<T>);
  std::memcpy(tensor.as<T>(), values.data(), values.size() * sizeof(T));
  return tensor;
}

struct Operands {
  explicit Operands(std::mt19937 random = std::mt19937(kSeed))
      : q(random_tensor({kBatch, kHeads, kQLen, kHeadDim}, random)),
        k(random_tensor({kBatch, kKvHeads, kKvLen, kHeadDim}, random)),
        v(random_tensor({kBatch, kKvHeads, kKvLen, kValueDim}, random)),
        bias(random_tensor({kHeads, 1, kKvLen}, random)),
        sinks(random_tensor({kHeads}, random)),
        slopes(random_tensor({kBatch, kHeads}, random)),
        mask({kQLen, kKvLen}, qkv::Dtype::kBool),
        kv_lens(tensor_of<std::int64_t>({3, 6})),
        offsets(tensor_of<std::int32_t>({1, -2})) {
    for (std::int64_t i = 0; i < mask.num_elements(); ++i) mask.as<bool>()[i] = random() % 3 != 0;
  }

  qkv::Tensor q, k, v, bias, sinks, slopes, mask, kv_lens, offsets;
};

/// One member of the options, set in both interfaces.
struct OptionCase {
  const char* name;
  std::function<void(const Operands&, qkv::AttentionOptions&)> set_cpp;
  std::function<void(const std::vector<qkv_tensor>&, qkv_attention_options&)> set_c;
};

// What the C cases point to.
constexpr double kScale = -0.75;
constexpr std::uint64_t kDropoutSeed = (std::uint64_t{9} << 40) + 5;
constexpr double kZeroScale = 0;
constexpr std::int64_t kOffset = -1;
constexpr std::int64_t kLeft = 2;
constexpr std::int64_t kRight = 1;
enum DescribedOperand { kBias, kSinks, kSlopes, kMask, kKvLens, kOffsets };

const std::vector<OptionCase>& option_cases() {
  using Operand = const Operands&;
  using Cpp = qkv::AttentionOptions&;
  using Described = const std::vector<qkv_tensor>&;
  using C = qkv_attention_options&;
  static const std::vector<OptionCase> cases = {
      {"Defaults", [](Operand, Cpp) {}, [](Described, C) {}},
      {"Scale", [](Operand, Cpp o) { o.scale = kScale; }, [](Described, C o) { o.scale = &kScale; }},
      {"ZeroScale", [](Operand, Cpp o) { o.scale = 0; }, [](Described, C o) { o.scale = &kZeroScale; }},
      {"Softcap", [](Operand, Cpp o) { o.softcap = 0.5; }, [](Described, C o) { o.softcap = 0.5; }},
      {"Causal", [](Operand, Cpp o) { o.causal = true; }, [](Described, C o) { o.causal = 4; }},
      {"QueryOffset", [](Operand, Cpp o) { o.causal = true, o.query_offset = kOffset; },
       [](Described, C o) { o.causal = 1, o.query_offset = &kOffset; }},
      {"QueryOffsets", [](Operand t, Cpp o) { o.causal = true, o.query_offset = t.offsets.view(); },
       [](Described t, C o) { o.causal = 1, o.query_offsets = &t[kOffsets]; }},
      {"WindowLeft", [](Operand, Cpp o) { o.window.left = kLeft; }, [](Described, C o) { o.window_left = &kLeft; }},
      {"WindowRight", [](Operand, Cpp o) { o.window.right = kRight; },
       [](Described, C o) { o.window_right = &kRight; }},
      {"WindowBoth", [](Operand, Cpp o) { o.window = {kLeft, kRight}; },
       [](Described, C o) { o.window_left = &kLeft, o.window_right = &kRight; }},
      {"Mask", [](Operand t, Cpp o) { o.mask = t.mask.view(); }, [](Described t, C o) { o.mask = &t[kMask]; }},
      {"Bias", [](Operand t, Cpp o) { o.bias = t.bias.view(); }, [](Described t, C o) { o.bias = &t[kBias]; }},
      {"Sinks", [](Operand t, Cpp o) { o.sinks = t.sinks.view(); }, [](Described t, C o) { o.sinks = &t[kSinks]; }},
      {"AlibiSlopes", [](Operand t, Cpp o) { o.alibi_slopes = t.slopes.view(); },
       [](Described t, C o) { o.alibi_slopes = &t[kSlopes]; }},
      {"KvLens", [](Operand t, Cpp o) { o.kv_lens = t.kv_lens.view(); },
       [](Described t, C o) { o.kv_lens = &t[kKvLens]; }},
      {"Dropout", [](Operand, Cpp o) { o.dropout = {.p = 0.5, .seed = kDropoutSeed}; },
       [](Described, C o) { o.dropout_p = 0.5, o.dropout_seed = &kDropoutSeed; }},
  };
  return cases;
}

/// out and every output, of one call.
struct Results {
  Results()
      : out({kBatch, kHeads, kQLen, kValueDim}, qkv::Dtype::kFloat32),
        weights({kBatch, 3, 2, kKvLen}, qkv::Dtype::kFloat32),
        logits({kBatch, kHeads, kQLen, kKvLen}, qkv::Dtype::kFloat32) {
    for (int i = 0; i < 7; ++i) {
      rows.emplace_back(qkv::Extents{kBatch, kHeads, kQLen}, i == kMaxKey ? qkv::Dtype::kInt64 : qkv::Dtype::kFloat32);
    }
  }
  enum Row { kLse, kMaxRaw, kMaxLogit, kMaxKey, kMaxWeight, kEntropy, kKeyWeight };
  qkv::Tensor out, weights, logits;
  std::vector<qkv::Tensor> rows;
};

const std::vector<std::int64_t> kWeightHeads = {3, 0, 2};
const std::vector<std::int64_t> kWeightRows = {4, 1};
const std::vector<std::int64_t> kStatsKeys = {5, 0};

void run_cpp(const Operands& t, const OptionCase& option, qkv::LogitsStage stage, Results& r) {
  qkv::AttentionOptions options;
  option.set_cpp(t, options);
  const qkv::AttentionOutputs outputs = {
      .lse = r.rows[Results::kLse],
      .weights = qkv::Weights{.out = r.weights, .heads = kWeightHeads, .rows = kWeightRows},
      .logits = qkv::Logits{.out = r.logits, .stage = stage},
      .stats = qkv::Stats{.max_raw = r.rows[Results::kMaxRaw],
                          .max_logit = r.rows[Results::kMaxLogit],
                          .max_key = r.rows[Results::kMaxKey],
                          .max_weight = r.rows[Results::kMaxWeight],
                          .entropy = r.rows[Results::kEntropy],
                          .key_weight = r.rows[Results::kKeyWeight],
                          .keys = kStatsKeys}};
  qkv::attention(t.q, t.k, t.v, r.out, options, outputs);
}

using CFunction = decltype(&qkv_attention);

void run_c(const Operands& t, const OptionCase& option, qkv_logits_stage stage, Results& r,
           CFunction function = qkv_attention) {
  const std::vector<qkv_tensor> described = {describe(t.bias), describe(t.sinks),   describe(t.slopes),
                                             describe(t.mask), describe(t.kv_lens), describe(t.offsets)};
  qkv_attention_options options = qkv_attention_options_init();
  option.set_c(described, options);
  std::vector<qkv_tensor> rows;
  for (const qkv::Tensor& row : r.rows) rows.push_back(describe(row));
  const qkv_tensor weights = describe(r.weights);
  const qkv_tensor logits = describe(r.logits);
  qkv_attention_outputs outputs = qkv_attention_outputs_init();
  outputs.lse = &rows[Results::kLse];
  outputs.weights = &weights;
  outputs.weight_heads = kWeightHeads.data();
  outputs.num_weight_heads = kWeightHeads.size();
  outputs.weight_rows = kWeightRows.data();
  outputs.num_weight_rows = kWeightRows.size();
  outputs.logits = &logits;
  outputs.logits_stage = stage;
  outputs.max_raw = &rows[Results::kMaxRaw];
  outputs.max_logit = &rows[Results::kMaxLogit];
  outputs.max_key = &rows[Results::kMaxKey];
  outputs.max_weight = &rows[Results::kMaxWeight];
  outputs.entropy = &rows[Results::kEntropy];
  outputs.key_weight = &rows[Results::kKeyWeight];
  outputs.stats_keys = kStatsKeys.data();
  outputs.num_stats_keys = kStatsKeys.size();
  const qkv_tensor q = describe(t.q), k = describe(t.k), v = describe(t.v), out = describe(r.out);
  ASSERT_EQ(function(&q, &k, &v, &out, &options, &outputs), QKV_OK) << qkv_last_error();
}

void expect_same_bits(const qkv::Tensor& actual, const qkv::Tensor& expected, const char* name) {
  SCOPED_TRACE(name);
  ASSERT_NE(actual.view().data(), expected.view().data());
  const auto size = static_cast<std::size_t>(expected.num_elements()) * qkv::size_of(expected.dtype());
  EXPECT_EQ(std::memcmp(actual.view().data(), expected.view().data(), size), 0);
}

void expect_same_bits(const Results& actual, const Results& expected) {
  expect_same_bits(actual.out, expected.out, "out");
  expect_same_bits(actual.weights, expected.weights, "weights");
  expect_same_bits(actual.logits, expected.logits, "logits");
  const char* const names[] = {"lse", "max_raw", "max_logit", "max_key", "max_weight", "entropy", "key_weight"};
  for (std::size_t i = 0; i < expected.rows.size(); ++i) expect_same_bits(actual.rows[i], expected.rows[i], names[i]);
}

class COptions : public testing::TestWithParam<std::size_t> {};

TEST_P(COptions, SameBitsAsCpp) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const OptionCase& option = option_cases()[GetParam()];
  const Operands operands;
  const std::pair<qkv_logits_stage, qkv::LogitsStage> stages[] = {{QKV_LOGITS_SCALED, qkv::LogitsStage::kScaled},
                                                                  {QKV_LOGITS_CAPPED, qkv::LogitsStage::kCapped},
                                                                  {QKV_LOGITS_MASKED, qkv::LogitsStage::kMasked}};
  for (const auto& [c_stage, cpp_stage] : stages) {
    Results expected;
    Results actual;
    run_cpp(operands, option, cpp_stage, expected);
    run_c(operands, option, c_stage, actual);
    expect_same_bits(actual, expected);
  }
}

/// Else a case could pass because its option does nothing on these operands.
TEST_P(COptions, ChangesTheResult) {
  if (GetParam() == 0) GTEST_SKIP() << "the defaults themselves";
  const Operands operands;
  Results plain;
  Results changed;
  run_c(operands, option_cases()[0], QKV_LOGITS_SCALED, plain);
  run_c(operands, option_cases()[GetParam()], QKV_LOGITS_SCALED, changed);
  const auto size = static_cast<std::size_t>(plain.out.num_elements()) * sizeof(float);
  EXPECT_NE(std::memcmp(plain.out.as<float>(), changed.out.as<float>(), size), 0);
}

INSTANTIATE_TEST_SUITE_P(All, COptions, testing::Range<std::size_t>(0, option_cases().size()),
                         [](const auto& one) { return option_cases()[one.param].name; });

TEST(CReference, IsTheReferenceWithTheSameOptions) {
  const Operands operands;
  const OptionCase& option = option_cases()[4];
  qkv::AttentionOptions options;
  option.set_cpp(operands, options);
  Results expected;
  Results actual;
  qkv::reference::attention(operands.q, operands.k, operands.v, expected.out, options);
  run_c(operands, option, QKV_LOGITS_SCALED, actual, qkv_reference_attention);
  expect_same_bits(actual.out, expected.out, "out");
}

template <class T>
qkv::Tensor rounded_to(const qkv::Tensor& wide) {
  qkv::Tensor tensor(wide.shape(), qkv::kDtypeOf<T>);
  for (std::int64_t i = 0; i < wide.num_elements(); ++i) {
    tensor.as<T>()[i] = T(static_cast<double>(wide.as<float>()[i]));
  }
  return tensor;
}

TEST(CAttention, SixteenBitsAsInCpp) {
  const Operands operands;
  const qkv::Tensor q = rounded_to<qkv::BFloat16>(operands.q);
  const qkv::Tensor k = rounded_to<qkv::BFloat16>(operands.k);
  const qkv::Tensor v = rounded_to<qkv::Float16>(operands.v);
  qkv::Tensor expected({kBatch, kHeads, kQLen, kValueDim}, qkv::Dtype::kBFloat16);
  qkv::Tensor actual(expected.shape(), expected.dtype());
  qkv::attention(q, k, v, expected);
  const qkv_tensor c_q = describe(q), c_k = describe(k), c_v = describe(v), c_out = describe(actual);
  EXPECT_EQ(c_q.dtype, QKV_BFLOAT16);
  EXPECT_EQ(c_v.dtype, QKV_FLOAT16);
  ASSERT_EQ(qkv_attention(&c_q, &c_k, &c_v, &c_out, nullptr, nullptr), QKV_OK) << qkv_last_error();
  expect_same_bits(actual, expected, "out");
  EXPECT_NE(*actual.as<std::uint16_t>(), 0);
}

TEST(CAttention, EmptyListOfHeadsIsNotAllHeads) {
  const Operands operands;
  Results results;
  qkv::Tensor none({kBatch, 0, kQLen, kKvLen}, qkv::Dtype::kFloat32);
  const qkv_tensor q = describe(operands.q), k = describe(operands.k), v = describe(operands.v);
  const qkv_tensor out = describe(results.out), weights = describe(none);
  const std::int64_t unused = 0;
  qkv_attention_outputs outputs = qkv_attention_outputs_init();
  outputs.weights = &weights;
  EXPECT_EQ(qkv_attention(&q, &k, &v, &out, nullptr, &outputs), QKV_ERROR_SHAPE);
  outputs.weight_heads = &unused;
  EXPECT_EQ(qkv_attention(&q, &k, &v, &out, nullptr, &outputs), QKV_OK) << qkv_last_error();
}

TEST(CAttention, ListsWithoutTheirTensorOrTheirCountAreRefused) {
  const Operands operands;
  Results results;
  const qkv_tensor q = describe(operands.q), k = describe(operands.k), v = describe(operands.v);
  const qkv_tensor out = describe(results.out), weights = describe(results.weights);
  qkv_attention_outputs outputs = qkv_attention_outputs_init();
  outputs.weight_rows = kWeightRows.data();
  outputs.num_weight_rows = kWeightRows.size();
  EXPECT_EQ(qkv_attention(&q, &k, &v, &out, nullptr, &outputs), QKV_ERROR_VALUE);
  EXPECT_STREQ(qkv_last_error(), "weights is null, but weight_heads or weight_rows is given");
  outputs = qkv_attention_outputs_init();
  outputs.weights = &weights;
  outputs.num_weight_heads = 3;
  EXPECT_EQ(qkv_attention(&q, &k, &v, &out, nullptr, &outputs), QKV_ERROR_VALUE);
  EXPECT_STREQ(qkv_last_error(), "weight_heads is null, but num_weight_heads is 3");
  outputs = qkv_attention_outputs_init();
  outputs.logits_stage = 3;
  EXPECT_EQ(qkv_attention(&q, &k, &v, &out, nullptr, &outputs), QKV_ERROR_VALUE);
  EXPECT_STREQ(qkv_last_error(), "logits_stage: 3 is no qkv_logits_stage");
}

TEST(CAttention, BothKindsOfQueryOffsetAreRefused) {
  const Operands operands;
  Results results;
  const qkv_tensor q = describe(operands.q), k = describe(operands.k), v = describe(operands.v);
  const qkv_tensor out = describe(results.out), offsets = describe(operands.offsets);
  qkv_attention_options options = qkv_attention_options_init();
  options.query_offset = &kOffset;
  options.query_offsets = &offsets;
  EXPECT_EQ(qkv_attention(&q, &k, &v, &out, &options, nullptr), QKV_ERROR_VALUE);
  EXPECT_STREQ(qkv_last_error(), "query_offset and query_offsets are both given, expected one of them");
}

TEST(CAttention, TheFirstWrongArgumentIsNamed) {
  EXPECT_EQ(qkv_attention(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr), QKV_ERROR_VALUE);
  EXPECT_STREQ(qkv_last_error(), "q is null");
}

TEST(CMergeStates, SameBitsAsCpp) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  const qkv::Extents shape = {kBatch, kHeads, kQLen, kValueDim};
  const qkv::Extents lse_shape = {kBatch, kHeads, kQLen};
  std::vector<qkv::Tensor> outs;
  std::vector<qkv::Tensor> lses;
  for (int i = 0; i < 3; ++i) {
    outs.push_back(random_tensor(shape, random));
    lses.push_back(random_tensor(lse_shape, random));
  }
  const qkv::Tensor sinks = random_tensor({kHeads}, random);
  std::vector<qkv::PartialAttention> parts;
  std::vector<qkv_tensor> described;
  for (int i = 0; i < 3; ++i) {
    parts.push_back({outs[i], lses[i]});
    described.push_back(describe(outs[i]));
    described.push_back(describe(lses[i]));
  }
  qkv::Tensor expected(shape, qkv::Dtype::kFloat32), expected_lse(lse_shape, qkv::Dtype::kFloat32);
  qkv::Tensor actual(shape, qkv::Dtype::kFloat32), actual_lse(lse_shape, qkv::Dtype::kFloat32);
  qkv::merge_states(parts, expected, expected_lse, sinks);

  const qkv_tensor* const c_outs[] = {&described[0], &described[2], &described[4]};
  const qkv_tensor* const c_lses[] = {&described[1], &described[3], &described[5]};
  const qkv_tensor out = describe(actual), lse = describe(actual_lse), c_sinks = describe(sinks);
  ASSERT_EQ(qkv_merge_states(c_outs, c_lses, 3, &out, &lse, &c_sinks), QKV_OK) << qkv_last_error();
  expect_same_bits(actual, expected, "out");
  expect_same_bits(actual_lse, expected_lse, "lse");
}

}  // namespace
