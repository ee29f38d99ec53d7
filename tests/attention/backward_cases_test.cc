// Gradients that broke elsewhere, with answers worked out by hand, and laws that need no second implementation.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "qkv/backward.h"
#include "support/on_target.h"

namespace qkv::support {
namespace {

/// The gradients of q, k and v, and of a bias or sinks where options have them.
struct Three {
  Tensor q, k, v, bias, sinks;
};

class BackwardCases : public OnTarget {
 protected:
  Three differentiate(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                      const ConstTensorView& grad_out, const AttentionOptions& options = {}) const {
    Tensor out({q.extent(0), q.extent(1), q.extent(2), v.extent(3)}, dtype());
    Tensor lse({q.extent(0), q.extent(1), q.extent(2)}, stats_dtype(dtype()));
    attention(q, k, v, out, options, {.lse = lse.view()});
    Three all{Tensor(q.shape(), dtype()), Tensor(k.shape(), dtype()), Tensor(v.shape(), dtype()), {}, {}};
    AttentionGradients gradients;
    gradients.grad_out = grad_out;
    gradients.grad_q = all.q.view();
    gradients.grad_k = all.k.view();
    gradients.grad_v = all.v.view();
    if (options.bias) {
      all.bias = Tensor(options.bias->shape(), dtype());
      gradients.grad_bias = all.bias.view();
    }
    if (options.sinks) {
      all.sinks = Tensor(options.sinks->shape(), dtype());
      gradients.grad_sinks = all.sinks.view();
    }
    attention_backward({q, k, v}, {out, lse}, gradients, options);
    return all;
  }

  Tensor zeros_like(const Tensor& tensor) const { return {tensor.shape(), tensor.dtype()}; }
};

TEST_P(BackwardCases, OneKeyGivesExactlyNothingToQueryAndKey) {
  for (const std::int64_t dim : {1, 7, 16, 40, 64, 129}) {
    const Tensor q = normal({2, 3, 5, dim}, 3);
    const Tensor k = normal({2, 3, 1, dim}, 3);
    const Tensor v = normal({2, 3, 1, dim});
    const Tensor grad_out = normal({2, 3, 5, dim});
    const Three all = differentiate(q, k, v, grad_out);
    EXPECT_TRUE(same_bits(all.q, zeros_like(q))) << dim;
    EXPECT_TRUE(same_bits(all.k, zeros_like(k))) << dim;
  }
}

TEST_P(BackwardCases, RowsThatSeeNothingGiveNothing) {
  const Tensor q = normal({1, 1, 3, 8});
  const Tensor k = normal({1, 1, 3, 8});
  const Tensor v = normal({1, 1, 3, 8});
  const Tensor grad_out = normal({1, 1, 3, 8});
  const Tensor mask = tensor_of({3, 3}, Dtype::kBool, {0, 0, 0, 1, 1, 0, 1, 1, 1});
  const Three all = differentiate(q, k, v, grad_out, {.mask = mask.view()});
  EXPECT_TRUE(all_of_row(all.q, {0, 0, 0}, [](double x) { return x == 0; }));
  for (const Tensor* gradient : {&all.q, &all.k, &all.v}) {
    for (std::int64_t i = 0; i < 3; ++i) EXPECT_TRUE(row_is_finite(*gradient, {0, 0, i})) << i;
  }
  // As if the row were not there.
  const Three two = differentiate(q.view().slice(2, 1, 3), k, v, grad_out.view().slice(2, 1, 3),
                                  {.mask = mask.view().slice(0, 1, 3)});
  EXPECT_TRUE(close(all.k, two.k, {kFewSteps}));
  EXPECT_TRUE(close(all.v, two.v, {kFewSteps}));
}

TEST_P(BackwardCases, NoKeysAndNoRowsLeaveZeros) {
  const Tensor some = normal({1, 2, 4, 8});
  const Tensor none({1, 2, 0, 8}, dtype());
  EXPECT_TRUE(same_bits(differentiate(some, none, none, some).q, zeros_like(some)));
  const Three all = differentiate(none, some, some, none);
  EXPECT_TRUE(same_bits(all.k, zeros_like(some)));
  EXPECT_TRUE(same_bits(all.v, zeros_like(some)));
}

TEST_P(BackwardCases, ConstantInputHasUniformWeights) {
  if (GetParam().target == "reference") return;  // which does not know the out that was saved
  const Tensor x = tensor_of({1, 1, 50, 1024}, dtype(), {1000});
  const Tensor grad_out = normal({1, 1, 50, 1024});
  const Three all = differentiate(x, x, x, grad_out);
  EXPECT_TRUE(same_bits(all.q, zeros_like(all.q)));
  EXPECT_TRUE(same_bits(all.k, zeros_like(all.k)));
  for (std::int64_t c = 0; c < 1024; ++c) {
    double sum = 0;
    for (std::int64_t i = 0; i < 50; ++i) sum += read(grad_out, {0, 0, i, c}) / 50;
    EXPECT_NEAR(read(all.v, {0, 0, 17, c}), sum, kSum * epsilon());
  }
}

TEST_P(BackwardCases, TheBiasAloneAndWhatRepeatsIsSummed) {
  const Tensor q = normal({2, 3, 5, 8});
  const Tensor k = normal({2, 3, 7, 8});
  const Tensor v = normal({2, 3, 7, 8});
  const Tensor grad_out = normal({2, 3, 5, 8});
  const Tensor bias = normal({2, 3, 5, 7});
  const Tensor full = differentiate(q, k, v, grad_out, {.bias = bias.view()}).bias.clone();
  for (const Extents& shape : {Extents{1, 3, 5, 7}, Extents{2, 1, 5, 7}, Extents{5, 7}, Extents{2, 3, 1, 7},
                               Extents{3, 5, 1}, Extents{7}, Extents{1, 1, 1, 1}, Extents{}}) {
    const Tensor repeated(shape, dtype());  // of zeros: all biases are the same
    const Tensor zero({2, 3, 5, 7}, dtype());
    const Tensor each = differentiate(q, k, v, grad_out, {.bias = zero.view()}).bias.clone();
    const Tensor summed = differentiate(q, k, v, grad_out, {.bias = repeated.view()}).bias.clone();
    Tensor expected(shape, Dtype::kFloat64);
    for_each_index(each.shape(), [&](const Extents& at) {
      Extents to = shape;
      for (int axis = 0; axis < shape.size(); ++axis) to[axis] = shape[axis] == 1 ? 0 : at[4 - shape.size() + axis];
      write(expected, to, read(expected, to) + read(each, at));
    });
    EXPECT_TRUE(close(summed, expected, {kSum, 4})) << to_string(shape);
  }
  // Of one bias for all keys of a row nothing depends.
  for_each_index({2, 3, 5}, [&](const Extents& row) {
    double sum = 0;
    for (std::int64_t j = 0; j < 7; ++j) sum += read(full, {row[0], row[1], row[2], j});
    EXPECT_NEAR(sum, 0, 4 * kSum * epsilon());
  });
}

TEST_P(BackwardCases, SinksOfRowsThatSeeNothing) {
  const Tensor q = normal({1, 2, 3, 8});
  const Tensor sinks = tensor({2}, {0.5, -1});
  const Three all = differentiate(q, q, q, q, {.window = {.left = 0, .right = 0}, .sinks = sinks.view()});
  EXPECT_NE(read(all.sinks, {0}), 0);
  const Three none = differentiate(q, q, q, q, {.causal = true, .query_offset = -10, .sinks = sinks.view()});
  EXPECT_EQ(read(none.sinks, {0}), 0);
  EXPECT_EQ(read(none.sinks, {1}), 0);
}

TEST_P(BackwardCases, StridesOfWhatReachesTheOutput) {
  const Tensor q = normal({1, 2, 6, 16});
  const Tensor k = normal({1, 2, 9, 16});
  const Tensor v = normal({1, 2, 9, 16});
  const Tensor one = normal({1, 2, 1, 1});
  Tensor dense({1, 2, 6, 16}, dtype());
  const ConstTensorView repeated = one.view().broadcast_to({1, 2, 6, 16});
  copy(repeated, dense);
  const Three a = differentiate(q, k, v, dense);
  const Three b = differentiate(q, k, v, repeated);
  EXPECT_TRUE(same_bits(a.q, b.q));
  EXPECT_TRUE(same_bits(a.k, b.k));
  EXPECT_TRUE(same_bits(a.v, b.v));
  const Tensor by_row = normal({1, 6, 2, 16});
  Tensor by_head({1, 2, 6, 16}, dtype());
  copy(by_row.view().permute({0, 2, 1, 3}), by_head);
  EXPECT_TRUE(
      same_bits(differentiate(q, k, v, by_row.view().permute({0, 2, 1, 3})).q, differentiate(q, k, v, by_head).q));
}

TEST_P(BackwardCases, AccumulatesWhereAsked) {
  const Tensor q = normal({1, 2, 40, 24});
  const Tensor bias = normal({40, 40});
  const Tensor sinks = normal({2});
  const AttentionOptions options{.causal = true, .bias = bias.view(), .sinks = sinks.view()};
  const Three fresh = differentiate(q, q, q, q, options);
  Tensor out(q.shape(), dtype());
  Tensor lse({1, 2, 40}, stats_dtype(dtype()));
  attention(q, q, q, out, options, {.lse = lse.view()});
  const Tensor before = normal(q.shape());
  const Tensor bias_before = normal(bias.shape());
  const Tensor sinks_before = normal(sinks.shape());
  Tensor grad_q = before.clone();
  Tensor grad_k = before.clone();
  Tensor grad_v = before.clone();
  Tensor grad_bias = bias_before.clone();
  Tensor grad_sinks = sinks_before.clone();
  AttentionGradients gradients;
  gradients.grad_out = q;
  gradients.grad_q = grad_q.view();
  gradients.grad_k = grad_k.view();
  gradients.grad_v = grad_v.view();
  gradients.grad_bias = grad_bias.view();
  gradients.grad_sinks = grad_sinks.view();
  gradients.accumulate = true;
  attention_backward({q, q, q}, {out, lse}, gradients, options);
  const auto expect_sum = [&](const Tensor& sum, const Tensor& first, const Tensor& second) {
    for_each_index(sum.shape(), [&](const Extents& at) {
      const double expected = read(first, at) + read(second, at);
      EXPECT_NEAR(read(sum, at), expected, kFewSteps * epsilon() * std::max(4.0, std::abs(expected))) << to_string(at);
    });
  };
  expect_sum(grad_q, before, fresh.q);
  expect_sum(grad_k, before, fresh.k);
  expect_sum(grad_v, before, fresh.v);
  expect_sum(grad_bias, bias_before, fresh.bias);
  expect_sum(grad_sinks, sinks_before, fresh.sinks);
}

TEST_P(BackwardCases, GroupedHeadsAreRepeatedHeadsSummed) {
  const Tensor q = normal({1, 6, 20, 16});
  const Tensor k = normal({1, 2, 30, 16});
  const Tensor v = normal({1, 2, 30, 8});
  const Tensor grad_out = normal({1, 6, 20, 8});
  const Three grouped = differentiate(q, k, v, grad_out, {.causal = true});
  Tensor each_k({1, 6, 30, 16}, dtype());
  Tensor each_v({1, 6, 30, 8}, dtype());
  for_each_index(each_k.shape(), [&](const Extents& at) { write(each_k, at, read(k, {0, at[1] / 3, at[2], at[3]})); });
  for_each_index(each_v.shape(), [&](const Extents& at) { write(each_v, at, read(v, {0, at[1] / 3, at[2], at[3]})); });
  const Three repeated = differentiate(q, each_k, each_v, grad_out, {.causal = true});
  EXPECT_TRUE(same_bits(grouped.q, repeated.q));
  const auto expect_summed = [&](const Tensor& sum, const Tensor& each) {
    for_each_index(sum.shape(), [&](const Extents& at) {
      double expected = 0;
      for (std::int64_t h = 0; h < 3; ++h) expected += read(each, {0, at[1] * 3 + h, at[2], at[3]});
      EXPECT_NEAR(read(sum, at), expected, 4 * kSum * epsilon()) << to_string(at);
    });
  };
  expect_summed(grouped.k, repeated.k);
  expect_summed(grouped.v, repeated.v);
}

TEST_P(BackwardCases, SplitQueriesAddUp) {
  const Tensor q = normal({1, 2, 50, 16});
  const Tensor k = normal({1, 2, 50, 16});
  const Tensor grad_out = normal({1, 2, 50, 16});
  const Three whole = differentiate(q, k, k, grad_out, {.causal = true});
  const Three first = differentiate(q.view().slice(2, 0, 21), k, k, grad_out.view().slice(2, 0, 21),
                                    {.causal = true, .query_offset = 0});
  const Three second = differentiate(q.view().slice(2, 21, 50), k, k, grad_out.view().slice(2, 21, 50),
                                     {.causal = true, .query_offset = 21});
  for_each_index(k.shape(), [&](const Extents& at) {
    EXPECT_NEAR(read(whole.k, at), read(first.k, at) + read(second.k, at), 4 * kSum * epsilon());
    EXPECT_NEAR(read(whole.v, at), read(first.v, at) + read(second.v, at), 4 * kSum * epsilon());
  });
}

TEST_P(BackwardCases, TheOrderOfKeysMovesTheirGradients) {
  const Tensor q = normal({1, 1, 33, 16});
  const Tensor k = normal({1, 1, 70, 16});
  const Tensor grad_out = normal({1, 1, 33, 16});
  Tensor reversed(k.shape(), dtype());
  for_each_index(k.shape(), [&](const Extents& at) { write(reversed, at, read(k, {0, 0, 69 - at[2], at[3]})); });
  const Three a = differentiate(q, k, k, grad_out);
  const Three b = differentiate(q, reversed, reversed, grad_out);
  EXPECT_TRUE(close(a.q, b.q, {4 * kSum}));
  for_each_index(k.shape(), [&](const Extents& at) {
    const Extents other{0, 0, 69 - at[2], at[3]};
    EXPECT_NEAR(read(a.k, at), read(b.k, other), 4 * kSum * epsilon());
    EXPECT_NEAR(read(a.v, at), read(b.v, other), 4 * kSum * epsilon());
  });
}

/// Products that leave float32 on the way to gradients that do not: in row 3, of key 5, 1e39 and -1e39.
TEST_P(BackwardCases, NothingOverflowsOnTheWay) {
  if (!is_f32()) return;
  Tensor q = normal({1, 1, 9, 8});
  Tensor k = normal({1, 1, 80, 8});
  const Tensor v = normal({1, 1, 80, 8});
  const Tensor grad_out = normal({1, 1, 9, 8});
  for (const std::int64_t c : {0, 1}) {
    for (std::int64_t i = 0; i < 9; ++i) write(q, {0, 0, i, c}, i == 3 ? 0x1p65 : 0);
    for (std::int64_t j = 0; j < 80; ++j) write(k, {0, 0, j, c}, 0);
    write(k, {0, 0, 5, c}, c == 0 ? 0x1p67 : -0x1p67);
  }
  const Three all = differentiate(q, k, v, grad_out);
  const TargetScope scope("reference");
  const Three expected = differentiate(q, k, v, grad_out);
  const auto expect_near = [&](const Tensor& actual, const Tensor& other) {
    for (std::int64_t c = 0; c < 8; ++c) {
      const ConstTensorView column = other.view().slice(3, c, c + 1);
      double most = 1;
      for_each_index(column.shape(), [&](const Extents& at) { most = std::max(most, std::abs(read(column, at))); });
      EXPECT_TRUE(close(actual.view().slice(3, c, c + 1), column, {kSum, most})) << "column " << c;
    }
  };
  expect_near(all.q, expected.q);
  expect_near(all.k, expected.k);
  expect_near(all.v, expected.v);
}

INSTANTIATE_TEST_SUITE_P(On, BackwardCases, ::testing::ValuesIn(every_setting()), setting_name);

}  // namespace
}  // namespace qkv::support
