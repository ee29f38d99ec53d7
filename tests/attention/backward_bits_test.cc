// The same bits: a row's gradient depends on the row, the keys that it sees and the options; a key's on the rows that are
// given and see it; and on nothing else.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>

#include "attention/backward_bits.h"
#include "support/gradient_part.h"
#include "support/visible_keys.h"

namespace qkv::support {
namespace {

TEST_P(BackwardBits, BatchesAndHeadsAlone) {
  for_random_calls(1, 24, 200, [](Random& random, const BackwardCall& call) {
    if (call.call.options.dropout.p > 0) return;  // which differs from head to head
    const Saved saved(call.call);
    const Gradients whole = differentiate(call);
    const std::int64_t b = random.integer(0, call.call.batch - 1);
    const std::int64_t h = random.integer(0, call.call.num_kv_heads - 1);
    GradientPart part(call);
    part.batches(b, b + 1).kv_heads(h, h + 1);
    part.expect_gradient_bits_of(whole, saved);
  });
}

TEST_P(BackwardBits, SplitQueries) {
  for_random_calls(101, 24, 300, [](Random& random, const BackwardCall& call) {
    const Saved saved(call.call);
    const Gradients whole = differentiate(call);
    const std::int64_t cut = random.integer(0, call.call.q_len);
    GradientPart first(call);
    first.rows(0, cut);
    first.expect_gradient_bits_of(whole, saved);
    GradientPart second(call);
    second.rows(cut, call.call.q_len);
    second.expect_gradient_bits_of(whole, saved);
  });
}

TEST_P(BackwardBits, KeysBehindTheLastVisibleOne) {
  for_random_calls(201, 24, 300, [](Random&, const BackwardCall& call) {
    // As many keys as the longest sequence has, and as many as there are.
    if (!call.call.kv_lens) return;
    std::int64_t longest = 0;
    for (std::int64_t b = 0; b < call.call.batch; ++b) {
      longest = std::max(longest, static_cast<std::int64_t>(read(*call.call.kv_lens, {b})));
    }
    const Saved saved(call.call);
    GradientPart part(call);
    part.keys(longest);
    part.expect_gradient_bits_of(differentiate(call), saved);
  });
}

TEST_P(BackwardBits, WhatElseIsAskedForAndLayouts) {
  for_random_calls(301, 24, 200, [](Random& random, const BackwardCall& call) {
    const Saved saved(call.call);
    const Gradients whole = differentiate(call);
    const Gradients other(call, draw_layout(random));
    AttentionGradients some = other.views(call);
    std::optional<TensorView>* const all[] = {&some.grad_q, &some.grad_k, &some.grad_v, &some.grad_bias,
                                              &some.grad_sinks};
    for (auto* each : all) {
      if (random.chance(0.5)) each->reset();
    }
    attention_backward(call.inputs(), saved.views(), some, call.call.full_options());
    const std::optional<TensorView> wanted[] = {*all[0], *all[1], *all[2], *all[3], *all[4]};
    const Guarded* expected[] = {whole.q.get(), whole.k.get(), whole.v.get(), whole.bias.get(), whole.sinks.get()};
    for (int i = 0; i < 5; ++i) {
      if (!wanted[i]) continue;
      EXPECT_TRUE(same_bits(*wanted[i], *expected[i])) << "gradient " << i;
    }
  });
}

/// The row of a gradient is NaN as a whole, or has its bits.
void expect_row(const ConstTensorView& actual, const ConstTensorView& clean, const Extents& row, bool spoiled) {
  for (std::int64_t c = 0; c < actual.extent(3); ++c) {
    const Extents at{row[0], row[1], row[2], c};
    if (spoiled) {
      EXPECT_TRUE(std::isnan(read(actual, at))) << "a visible NaN is hidden at " << to_string(at);
    } else {
      EXPECT_TRUE(read(actual, at) == read(clean, at) &&
                  std::signbit(read(actual, at)) == std::signbit(read(clean, at)))
          << "a hidden NaN shows at " << to_string(at) << ": " << read(clean, at) << " became " << read(actual, at);
    }
  }
}

/// A NaN in a key or value spoils the rows that see it, and with them what these see; nothing else.
TEST_P(BackwardBits, PoisonedKeysReachOnlyWhatSeesThem) {
  for_random_calls(401, 30, 150, [](Random& random, const BackwardCall& drawn) {
    const Call& call = drawn.call;
    if (call.kv_len == 0 || call.q_len == 0 || call.value_dim == 0) return;
    const Tensor visible = visible_keys(call);
    const Gradients clean = differentiate(drawn);
    const std::int64_t group = call.num_heads / call.num_kv_heads;
    for (int round = 0; round < 4; ++round) {
      const bool in_keys = round % 2 == 0;
      const TensorView operand = in_keys ? call.k->view() : call.v->view();
      const Extents key{random.integer(0, call.batch - 1), random.integer(0, call.num_kv_heads - 1),
                        random.integer(0, call.kv_len - 1)};
      SCOPED_TRACE(std::string(in_keys ? "k" : "v") + " poisoned at " + to_string(key));
      Tensor saved(operand.shape(), operand.dtype());
      copy(operand, saved);
      const double poison = round < 2 ? kNaN : random.chance(0.5) ? kInf : -kInf;
      for (std::int64_t c = 0; c < operand.extent(3); ++c) write(operand, {key[0], key[1], key[2], c}, poison);
      const Gradients poisoned = differentiate(drawn);
      copy(saved, operand);
      const auto sees = [&](const Extents& row, std::int64_t j) {
        return read(visible, {row[0], row[1], row[2], j}) != 0;
      };
      Tensor spoiled_keys({call.batch, call.num_kv_heads, call.kv_len}, Dtype::kBool);
      for_each_index({call.batch, call.num_heads, call.q_len}, [&](const Extents& row) {
        const bool spoiled = row[0] == key[0] && row[1] / group == key[1] && sees(row, key[2]);
        if (round < 2 || !spoiled) expect_row(*poisoned.q, *clean.q, row, spoiled);
        for (std::int64_t j = 0; j < call.kv_len && spoiled; ++j) {
          if (sees(row, j)) write(spoiled_keys, {row[0], row[1] / group, j}, 1);
        }
      });
      for_each_index(spoiled_keys.shape(), [&](const Extents& at) {
        const bool spoiled = read(spoiled_keys, at) != 0;
        if (round < 2 || !spoiled) expect_row(*poisoned.k, *clean.k, at, spoiled);
        // The weights are not spoiled by a value.
        if (in_keys && (round < 2 || !spoiled)) expect_row(*poisoned.v, *clean.v, at, spoiled);
      });
    }
  });
}

/// A NaN in a query or in what reaches its output spoils that row and the keys that it sees.
TEST_P(BackwardBits, PoisonedRowsReachOnlyWhatTheySee) {
  for_random_calls(501, 30, 150, [](Random& random, const BackwardCall& drawn) {
    const Call& call = drawn.call;
    if (call.kv_len == 0 || call.q_len == 0 || call.value_dim == 0) return;
    const Tensor visible = visible_keys(call);
    const Gradients clean = differentiate(drawn);
    const std::int64_t group = call.num_heads / call.num_kv_heads;
    for (int round = 0; round < 2; ++round) {
      const bool in_queries = round == 0;
      const TensorView operand = in_queries ? call.q->view() : drawn.grad_out->view();
      const Extents row{random.integer(0, call.batch - 1), random.integer(0, call.num_heads - 1),
                        random.integer(0, call.q_len - 1)};
      SCOPED_TRACE(std::string(in_queries ? "q" : "grad_out") + " poisoned at " + to_string(row));
      Tensor saved(operand.shape(), operand.dtype());
      copy(operand, saved);
      for (std::int64_t c = 0; c < operand.extent(3); ++c) write(operand, {row[0], row[1], row[2], c}, kNaN);
      const Gradients poisoned = differentiate(drawn);
      copy(saved, operand);
      const auto sees = [&](std::int64_t j) { return read(visible, {row[0], row[1], row[2], j}) != 0; };
      bool any = false;
      for (std::int64_t j = 0; j < call.kv_len; ++j) any |= sees(j);
      for_each_index({call.batch, call.num_heads, call.q_len}, [&](const Extents& each) {
        expect_row(*poisoned.q, *clean.q, each, any && to_string(each) == to_string(row));
      });
      for_each_index({call.batch, call.num_kv_heads, call.kv_len}, [&](const Extents& at) {
        const bool spoiled = at[0] == row[0] && at[1] == row[1] / group && sees(at[2]);
        expect_row(*poisoned.k, *clean.k, at, spoiled);
        expect_row(*poisoned.v, *clean.v, at, spoiled);
      });
    }
  });
}

INSTANTIATE_TEST_SUITE_P(On, BackwardBits, ::testing::ValuesIn(kernel_settings()), setting_name);
INSTANTIATE_TEST_SUITE_P(Half, BackwardBits, ::testing::ValuesIn(half_settings()), setting_name);

}  // namespace
}  // namespace qkv::support
