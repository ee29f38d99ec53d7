// Every gradient of the C interface against qkv::attention_backward: the same bits, so each member reaches its place.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "qkv/backward.h"
#include "qkv/qkv.h"
#include "qkv/varlen.h"

namespace {

constexpr unsigned kSeed = 20240711;
constexpr double kScale = 0.4;

qkv_tensor describe(const qkv::ConstTensorView& view) {
  return qkv_dense(view.data(), static_cast<int>(view.dtype()), view.rank(), view.shape().begin());
}

qkv::Tensor random_tensor(const qkv::Extents& shape, std::mt19937& random) {
  qkv::Tensor tensor(shape, qkv::Dtype::kFloat32);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) tensor.as<float>()[i] = normal(random);
  return tensor;
}

/// The arguments, in the order of what is made of them; `ragged` lays them out as [length, heads, dim].
struct Operands {
  explicit Operands(bool ragged, std::mt19937 random = std::mt19937(kSeed))
      : q(random_tensor(ragged ? qkv::Extents{5, 4, 8} : qkv::Extents{2, 4, 5, 8}, random)),
        k(random_tensor(ragged ? qkv::Extents{7, 2, 8} : qkv::Extents{2, 2, 7, 8}, random)),
        v(random_tensor(ragged ? qkv::Extents{7, 2, 6} : qkv::Extents{2, 2, 7, 6}, random)),
        bias(random_tensor({4, 1, 7}, random)),
        sinks(random_tensor({2, 4}, random)),
        grad_out(random_tensor(ragged ? qkv::Extents{5, 4, 6} : qkv::Extents{2, 4, 5, 6}, random)),
        grad_lse(random_tensor(ragged ? qkv::Extents{4, 5} : qkv::Extents{2, 4, 5}, random)),
        grad_entropy(random_tensor(grad_lse.shape(), random)),
        out(grad_out.shape(), qkv::Dtype::kFloat32),
        lse(grad_lse.shape(), qkv::Dtype::kFloat32) {}

  qkv::Tensor q, k, v, bias, sinks, grad_out, grad_lse, grad_entropy, out, lse;
};

struct Results {
  explicit Results(const Operands& of) {
    for (const qkv::Tensor* argument : {&of.q, &of.k, &of.v, &of.bias, &of.sinks}) {
      all.emplace_back(argument->shape(), qkv::Dtype::kFloat32);
      std::fill_n(all.back().as<float>(), all.back().num_elements(), 0.5F);
    }
  }
  std::vector<qkv::Tensor> all;
};

constexpr std::size_t kSinks = 4;
const char* const kNames[] = {"grad_q", "grad_k", "grad_v", "grad_bias", "grad_sinks"};

qkv::AttentionGradients cpp_gradients(const Operands& t, Results& r, bool ragged) {
  qkv::AttentionGradients gradients{.grad_out = t.grad_out,
                                    .grad_lse = t.grad_lse,
                                    .grad_entropy = t.grad_entropy,
                                    .grad_q = r.all[0],
                                    .grad_k = r.all[1],
                                    .grad_v = r.all[2],
                                    .grad_sinks = r.all[kSinks]};
  if (!ragged) gradients.grad_bias = r.all[3];
  return gradients;
}

/// Described once, since the C structures point to these.
struct Described {
  Described(const Operands& t, const Results& r)
      : q(describe(t.q)),
        k(describe(t.k)),
        v(describe(t.v)),
        bias(describe(t.bias)),
        sinks(describe(t.sinks)),
        grad_out(describe(t.grad_out)),
        grad_lse(describe(t.grad_lse)),
        grad_entropy(describe(t.grad_entropy)),
        out(describe(t.out)),
        lse(describe(t.lse)) {
    for (const qkv::Tensor& result : r.all) results.push_back(describe(result));
    inputs.q = &q;
    inputs.k = &k;
    inputs.v = &v;
    saved.out = &out;
    saved.lse = &lse;
    gradients.grad_out = &grad_out;
    gradients.grad_lse = &grad_lse;
    gradients.grad_entropy = &grad_entropy;
    gradients.grad_q = &results[0];
    gradients.grad_k = &results[1];
    gradients.grad_v = &results[2];
    gradients.grad_sinks = &results[kSinks];
    options.scale = &kScale;
    options.causal = 1;
    options.sinks = &sinks;
  }
  Described(const Described&) = delete;
  Described& operator=(const Described&) = delete;

  qkv_tensor q, k, v, bias, sinks, grad_out, grad_lse, grad_entropy, out, lse;
  std::vector<qkv_tensor> results;
  qkv_attention_inputs inputs = qkv_attention_inputs_init();
  qkv_attention_saved saved = qkv_attention_saved_init();
  qkv_attention_gradients gradients = qkv_attention_gradients_init();
  qkv_attention_options options = qkv_attention_options_init();
};

void expect_same_bits(const Results& actual, const Results& expected) {
  for (std::size_t i = 0; i < expected.all.size(); ++i) {
    const auto size = static_cast<std::size_t>(expected.all[i].num_elements()) * sizeof(float);
    EXPECT_EQ(std::memcmp(actual.all[i].as<float>(), expected.all[i].as<float>(), size), 0) << kNames[i];
  }
}

class CBackward : public testing::TestWithParam<bool> {};

TEST_P(CBackward, SameBitsAsCpp) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const bool accumulate = GetParam();
  Operands t(false);
  const qkv::AttentionOptions options{.scale = kScale, .causal = true, .bias = t.bias, .sinks = t.sinks};
  qkv::attention(t.q, t.k, t.v, t.out, options, {.lse = t.lse});
  Results expected(t), actual(t);
  qkv::AttentionGradients gradients = cpp_gradients(t, expected, false);
  gradients.accumulate = accumulate;
  qkv::attention_backward({t.q, t.k, t.v}, {t.out, t.lse}, gradients, options);

  Described c(t, actual);
  c.options.bias = &c.bias;
  c.gradients.grad_bias = &c.results[3];
  c.gradients.accumulate = accumulate ? 1 : 0;
  ASSERT_EQ(qkv_attention_backward(&c.inputs, &c.saved, &c.gradients, &c.options), QKV_OK) << qkv_last_error();
  expect_same_bits(actual, expected);
}

INSTANTIATE_TEST_SUITE_P(Accumulate, CBackward, testing::Bool());

TEST(CBackward, ReferenceIsTheReference) {
  Operands t(false);
  const qkv::AttentionOptions options{.scale = kScale, .causal = true, .bias = t.bias, .sinks = t.sinks};
  qkv::attention(t.q, t.k, t.v, t.out, options, {.lse = t.lse});
  Results expected(t), actual(t);
  qkv::reference::attention_backward({t.q, t.k, t.v}, {t.out, t.lse}, cpp_gradients(t, expected, false), options);
  Described c(t, actual);
  c.options.bias = &c.bias;
  c.gradients.grad_bias = &c.results[3];
  ASSERT_EQ(qkv_reference_attention_backward(&c.inputs, &c.saved, &c.gradients, &c.options), QKV_OK)
      << qkv_last_error();
  expect_same_bits(actual, expected);
}

TEST(CVarlen, SameBitsAsCppThereAndBack) {
  Operands t(true);
  qkv::Tensor q_bounds({3}, qkv::Dtype::kInt32), k_bounds({3}, qkv::Dtype::kInt64);
  std::copy_n(std::vector<std::int32_t>{0, 2, 5}.data(), 3, q_bounds.as<std::int32_t>());
  std::copy_n(std::vector<std::int64_t>{0, 4, 7}.data(), 3, k_bounds.as<std::int64_t>());
  const qkv::VarlenOptions options{.cu_seqlens_q = q_bounds,
                                   .cu_seqlens_k = k_bounds,
                                   .attention = {.scale = kScale, .causal = true, .sinks = t.sinks}};
  qkv::attention_varlen(t.q, t.k, t.v, t.out, options, {.lse = t.lse});
  Results expected(t), actual(t);
  qkv::attention_varlen_backward({t.q, t.k, t.v}, {t.out, t.lse}, cpp_gradients(t, expected, true), options);

  Operands own(true);
  const Described c(own, actual);
  const qkv_tensor c_q_bounds = describe(q_bounds), c_k_bounds = describe(k_bounds);
  qkv_varlen_options c_options = qkv_varlen_options_init();
  c_options.cu_seqlens_q = &c_q_bounds;
  c_options.cu_seqlens_k = &c_k_bounds;
  c_options.attention = &c.options;
  qkv_attention_outputs outputs = qkv_attention_outputs_init();
  outputs.lse = &c.lse;
  ASSERT_EQ(qkv_attention_varlen(&c.q, &c.k, &c.v, &c.out, &c_options, &outputs), QKV_OK) << qkv_last_error();
  const auto bytes = [](const qkv::Tensor& tensor) {
    return std::string(reinterpret_cast<const char*>(tensor.as<float>()),
                       static_cast<std::size_t>(tensor.num_elements()) * sizeof(float));
  };
  EXPECT_EQ(bytes(own.out), bytes(t.out));
  EXPECT_EQ(bytes(own.lse), bytes(t.lse));
  ASSERT_EQ(qkv_attention_varlen_backward(&c.inputs, &c.saved, &c.gradients, &c_options), QKV_OK) << qkv_last_error();
  expect_same_bits(actual, expected);
}

}  // namespace
