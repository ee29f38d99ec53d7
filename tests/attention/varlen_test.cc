// Ragged batches: each segment gets the bits of a call of its own.
#include "qkv/varlen.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "qkv/error.h"
#include "support/on_target.h"
#include "support/random_call.h"

namespace qkv::support {
namespace {

/// Segments one after the other, with memory of their own for each operand.
struct Ragged {
  Dtype dtype = Dtype::kFloat32;
  std::int64_t num_heads = 1, num_kv_heads = 1, head_dim = 1, value_dim = 1;
  std::vector<std::int64_t> q_bounds = {0}, k_bounds = {0};
  std::unique_ptr<Guarded> q, k, v, cu_q, cu_k, sinks, slopes, offsets;
  AttentionOptions options = {};
  std::vector<std::int64_t> stats_keys;

  std::int64_t num_segments() const { return static_cast<std::int64_t>(q_bounds.size()) - 1; }

  void make_operands(Random& random, Layout layout = Layout::kDense) {
    q = Call::filled_as(dtype, {q_bounds.back(), num_heads, head_dim}, layout, random);
    k = Call::filled_as(draw_storage(random, dtype), {k_bounds.back(), num_kv_heads, head_dim}, layout, random);
    v = Call::filled_as(draw_storage(random, dtype), {k_bounds.back(), num_kv_heads, value_dim}, layout, random);
    cu_q = integers(q_bounds, Dtype::kInt32);
    cu_k = integers(k_bounds, Dtype::kInt64);
  }

  static std::unique_ptr<Guarded> integers(const std::vector<std::int64_t>& values, Dtype dtype) {
    const auto count = static_cast<std::int64_t>(values.size());
    auto tensor = std::make_unique<Guarded>(Extents{count}, dtype);
    for (std::int64_t i = 0; i < count; ++i)
      write(*tensor, {i}, static_cast<double>(values[static_cast<std::size_t>(i)]));
    return tensor;
  }

  VarlenOptions full_options() const {
    VarlenOptions all{.cu_seqlens_q = *cu_q, .cu_seqlens_k = *cu_k, .attention = options};
    if (sinks) all.attention.sinks = *sinks;
    if (slopes) all.attention.alibi_slopes = *slopes;
    if (offsets) all.attention.query_offset = QueryOffset(ConstTensorView(*offsets));
    return all;
  }
};

/// What a ragged call writes, amid canaries.
struct RaggedResults {
  RaggedResults(const Ragged& call, Layout layout)
      : out({call.q_bounds.back(), call.num_heads, call.value_dim}, call.dtype, layout),
        lse({call.num_heads, call.q_bounds.back()}, stats_dtype(call.dtype), layout),
        max_raw(lse.shape(), lse.dtype(), layout),
        max_logit(lse.shape(), lse.dtype(), layout),
        max_key(lse.shape(), Dtype::kInt64, layout),
        max_weight(lse.shape(), lse.dtype(), layout),
        entropy(lse.shape(), lse.dtype(), layout),
        key_weight(lse.shape(), lse.dtype(), layout) {}

  AttentionOutputs outputs(const std::vector<std::int64_t>& keys) const {
    return {.lse = lse.view(),
            .stats = Stats{.max_raw = max_raw,
                           .max_logit = max_logit,
                           .max_key = max_key,
                           .max_weight = max_weight,
                           .entropy = entropy,
                           .key_weight = key_weight,
                           .keys = keys}};
  }

  /// One segment's rows, by the names of Results::views(), without matrices.
  NamedViews segment(std::int64_t begin, std::int64_t end) const {
    const auto rows = [&](const Guarded& output) -> ConstTensorView { return output.view().slice(1, begin, end); };
    return {{"out", out.view().slice(0, begin, end).permute({1, 0, 2}), {}},
            {"lse", rows(lse), {}},
            {"max_raw", rows(max_raw), {}},
            {"max_logit", rows(max_logit), {}},
            {"max_key", rows(max_key), {}},
            {"max_weight", rows(max_weight), {}},
            {"entropy", rows(entropy), {}},
            {"key_weight", rows(key_weight), {}}};
  }

  bool intact() const {
    for (const Guarded* each : {&out, &lse, &max_raw, &max_logit, &max_key, &max_weight, &entropy, &key_weight}) {
      if (!each->intact()) return false;
    }
    return true;
  }

  Guarded out, lse, max_raw, max_logit, max_key, max_weight, entropy, key_weight;
};

using Varlen = decltype(&attention_varlen);

RaggedResults run_ragged(const Ragged& call, Layout layout = Layout::kDense, Varlen function = &attention_varlen) {
  RaggedResults results(call, layout);
  function(*call.q, *call.k, *call.v, results.out, call.full_options(), results.outputs(call.stats_keys));
  EXPECT_TRUE(results.intact()) << "something outside of an output was written";
  return results;
}

/// [length, heads, dim] of a segment as [1, heads, length, dim].
ConstTensorView segment_view(const Guarded& operand, const std::vector<std::int64_t>& bounds, std::int64_t index) {
  const auto at = static_cast<std::size_t>(index);
  const ConstTensorView part =
      static_cast<ConstTensorView>(operand).slice(0, bounds[at], bounds[at + 1]).permute({1, 0, 2});
  return {part.data(),
          part.dtype(),
          {1, part.extent(0), part.extent(1), part.extent(2)},
          {0, part.stride(0), part.stride(1), part.stride(2)}};
}

/// The segment in a call of its own.
Results alone(const Ragged& call, std::int64_t index, Attention function = &attention) {
  AttentionOptions options = call.options;
  const auto per_head = [&](const Guarded& numbers) -> ConstTensorView {
    const ConstTensorView view = numbers;
    return view.rank() == 2 ? view.slice(0, index, index + 1) : view;
  };
  if (call.sinks) options.sinks = per_head(*call.sinks);
  if (call.slopes) options.alibi_slopes = per_head(*call.slopes);
  if (call.offsets) options.query_offset = static_cast<std::int64_t>(read(*call.offsets, {index}));
  const ConstTensorView keys = segment_view(*call.k, call.k_bounds, index);
  Wanted wanted{.matrices = false};
  for (const std::int64_t key : call.stats_keys) {
    if (key < keys.extent(2)) wanted.keys.push_back(key);
  }
  return attend(function, segment_view(*call.q, call.q_bounds, index), keys,
                segment_view(*call.v, call.k_bounds, index), options, wanted);
}

/// Without the batch axis and the matrices, as RaggedResults::segment() has them.
NamedViews rows_of(const Results& results) {
  NamedViews rows;
  for (NamedView each : results.views()) {
    if (each.per_key) continue;
    const ConstTensorView& view = each.view;
    Extents shape = Extents{view.extent(1), view.extent(2)};
    Extents strides = Extents{view.stride(1), view.stride(2)};
    if (view.rank() == 4) {
      shape = {view.extent(1), view.extent(2), view.extent(3)};
      strides = {view.stride(1), view.stride(2), view.stride(3)};
    }
    each.view = ConstTensorView(view.data(), view.dtype(), shape, strides);
    rows.push_back(each);
  }
  return rows;
}

Ragged draw_ragged(Random& random, Dtype dtype, std::int64_t most) {
  Ragged call;
  call.dtype = dtype;
  call.num_kv_heads = random.integer(1, 3);
  call.num_heads = call.num_kv_heads * random.integer(1, 3);
  call.head_dim = random.integer(1, 40);
  call.value_dim = random.integer(1, 40);
  const std::int64_t segments = random.integer(0, 6);
  for (std::int64_t s = 0; s < segments; ++s) {
    call.q_bounds.push_back(call.q_bounds.back() + draw_length(random, most / 2));
    call.k_bounds.push_back(call.k_bounds.back() + draw_length(random, most));
  }
  call.options.causal = random.chance(0.5);
  if (random.chance(0.3)) call.options.window.left = random.integer(0, most);
  if (random.chance(0.3)) call.options.window.right = random.integer(0, most);
  if (random.chance(0.2)) call.options.softcap = random.uniform(0.5, 4);
  if (random.chance(0.2)) call.options.query_offset = random.integer(-5, most);
  if (random.chance(0.2)) {
    std::vector<std::int64_t> offsets;
    for (std::int64_t s = 0; s < segments; ++s) offsets.push_back(random.integer(-5, most));
    call.offsets = Ragged::integers(offsets, Dtype::kInt32);
  }
  const auto per_head = [&](double deviation) {
    const Extents shape = random.chance(0.5) ? Extents{call.num_heads} : Extents{segments, call.num_heads};
    return Call::filled_as(draw_term_dtype(random, dtype), shape, Layout::kDense, random, deviation);
  };
  if (random.chance(0.3)) call.sinks = per_head(1);
  if (random.chance(0.3)) call.slopes = per_head(0.1);
  call.make_operands(random, draw_layout(random));
  std::int64_t longest = 0;
  for (std::size_t s = 1; s < call.k_bounds.size(); ++s) {
    longest = std::max(longest, call.k_bounds[s] - call.k_bounds[s - 1]);
  }
  for (const std::int64_t key : {0, 3, 17}) {
    if (key < longest) call.stats_keys.push_back(key);
  }
  return call;
}

class RaggedBatch : public OnTarget {};

TEST_P(RaggedBatch, GivesEachSegmentTheBitsOfACallOfItsOwn) {
  for (std::uint64_t seed = 1; seed <= (kSanitized ? 20U : 80U) && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Ragged call = draw_ragged(random, dtype(), 150);
    const RaggedResults all = run_ragged(call, draw_layout(random));
    for (std::int64_t s = 0; s < call.num_segments(); ++s) {
      SCOPED_TRACE("segment " + std::to_string(s));
      const auto at = static_cast<std::size_t>(s);
      expect_same_bits(all.segment(call.q_bounds[at], call.q_bounds[at + 1]), rows_of(alone(call, s)));
    }
  }
}

TEST_P(RaggedBatch, IsTheReferenceToRounding) {
  if (GetParam().target == "reference") GTEST_SKIP() << "it would be compared with itself";
  for (std::uint64_t seed = 301; seed <= 330 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Ragged call = draw_ragged(random, dtype(), 100);
    const RaggedResults actual = run_ragged(call);
    const RaggedResults expected = run_ragged(call, Layout::kDense, &reference::attention_varlen);
    for (std::int64_t s = 0; s < call.num_segments(); ++s) {
      const auto at = static_cast<std::size_t>(s);
      NamedViews ours = actual.segment(call.q_bounds[at], call.q_bounds[at + 1]);
      const Results single = alone(call, s, &reference::attention);
      const NamedViews tolerances = rows_of(single);
      for (std::size_t i = 0; i < ours.size(); ++i) ours[i].tolerance = tolerances[i].tolerance;
      expect_close(ours, expected.segment(call.q_bounds[at], call.q_bounds[at + 1]));
    }
  }
}

TEST_P(RaggedBatch, ThreadsChangeNoBit) {
  Random random(5);
  Ragged call;
  call.dtype = dtype();
  call.num_heads = 4;
  call.num_kv_heads = 2;
  call.head_dim = call.value_dim = 32;
  call.q_bounds = {0, 70, 70, 71, 200, 330};
  call.k_bounds = {0, 90, 120, 121, 400, 530};
  call.options.causal = true;
  call.make_operands(random);
  const auto with_threads = [&](int threads) {
    const ThreadScope scope(threads);
    return run_ragged(call);
  };
  const RaggedResults one = with_threads(1);
  for (const int threads : {2, 3, 8, 20}) {
    const RaggedResults more = with_threads(threads);
    expect_same_bits(more.segment(0, 330), one.segment(0, 330));
  }
}

TEST_P(RaggedBatch, ASegmentWithoutKeysGivesNothing) {
  Random random(6);
  Ragged call;
  call.dtype = dtype();
  call.q_bounds = {0, 3, 3, 5};
  call.k_bounds = {0, 0, 4, 4};
  call.make_operands(random);
  const RaggedResults all = run_ragged(call);
  for (std::int64_t row = 0; row < 5; ++row) {
    EXPECT_EQ(read(all.out, {row, 0, 0}), 0);
    EXPECT_EQ(read(all.lse, {0, row}), -kInf);
    EXPECT_EQ(read(all.max_key, {0, row}), -1);
  }
}

TEST_P(RaggedBatch, PoisonInOneSegmentStaysThere) {
  Random random(7);
  Ragged call;
  call.dtype = dtype();
  call.num_heads = 2;
  call.head_dim = call.value_dim = 16;
  call.q_bounds = {0, 10, 25, 40};
  call.k_bounds = {0, 10, 25, 40};
  call.make_operands(random);
  const RaggedResults clean = run_ragged(call);
  for (std::int64_t row = 10; row < 25; ++row) {
    for (std::int64_t c = 0; c < 16; ++c) {
      write(*call.k, {row, 0, c}, kNaN);
      write(*call.v, {row, 0, c}, kNaN);
    }
  }
  const RaggedResults poisoned = run_ragged(call);
  expect_same_bits(poisoned.segment(0, 10), clean.segment(0, 10));
  expect_same_bits(poisoned.segment(25, 40), clean.segment(25, 40));
}

INSTANTIATE_TEST_SUITE_P(On, RaggedBatch, ::testing::ValuesIn(every_setting()), setting_name);
INSTANTIATE_TEST_SUITE_P(Half, RaggedBatch, ::testing::ValuesIn(half_settings()), setting_name);

/// A ragged call that is right; tests spoil one thing of it.
struct RightRagged {
  Tensor q{{7, 4, 8}, Dtype::kFloat32};
  Tensor k{{9, 2, 8}, Dtype::kFloat32};
  Tensor v{{9, 2, 6}, Dtype::kFloat32};
  Tensor out{{7, 4, 6}, Dtype::kFloat32};
  Tensor cu_q = tensor_of({3}, Dtype::kInt32, {0, 3, 7});
  Tensor cu_k = tensor_of({3}, Dtype::kInt32, {0, 5, 9});
  AttentionOptions options = {};
  AttentionOutputs outputs = {};

  std::string refusal() {
    try {
      attention_varlen(q, k, v, out, {.cu_seqlens_q = cu_q, .cu_seqlens_k = cu_k, .attention = options}, outputs);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

TEST(VarlenRefuses, OperandsThatDoNotFit) {
  RightRagged right;
  EXPECT_EQ(right.refusal(), "");
  RightRagged rank;
  rank.q = Tensor({1, 7, 4, 8}, Dtype::kFloat32);
  EXPECT_EQ(rank.refusal(),
            "qkv::attention_varlen: q: expected 3 axes [total_q, num_heads, head_dim], got 4 in [1, 7, 4, 8]");
  RightRagged length;
  length.v = Tensor({8, 2, 6}, Dtype::kFloat32);
  EXPECT_EQ(length.refusal(), "qkv::attention_varlen: v: expected total_kv 9 as in k [9, 2, 8], got 8 in [8, 2, 6]");
  RightRagged heads;
  heads.k = Tensor({9, 3, 8}, Dtype::kFloat32);
  EXPECT_EQ(heads.refusal(),
            "qkv::attention_varlen: k: num_kv_heads 3 in [9, 3, 8] does not divide num_heads 4 of q [7, 4, 8]");
  RightRagged out;
  out.out = Tensor({4, 7, 6}, Dtype::kFloat32);
  EXPECT_EQ(out.refusal(),
            "qkv::attention_varlen: out: expected [total_q, num_heads, value_dim] = [7, 4, 6], got [4, 7, 6]");
  RightRagged lse;
  Tensor by_batch({1, 4, 7}, Dtype::kFloat32);
  lse.outputs.lse = by_batch.view();
  EXPECT_EQ(lse.refusal(), "qkv::attention_varlen: lse: expected 2 axes [num_heads, total_q], got 3 in [1, 4, 7]");
}

TEST(VarlenRefuses, LengthsThatDoNotFit) {
  const auto with = [](Tensor cu_q) {
    RightRagged call;
    call.cu_q = std::move(cu_q);
    return call.refusal();
  };
  const std::string begin = "qkv::attention_varlen: cu_seqlens_q: ";
  EXPECT_EQ(with(tensor_of({3}, Dtype::kInt32, {1, 3, 7})), begin + "expected to begin with 0, got 1");
  EXPECT_EQ(with(tensor_of({3}, Dtype::kInt32, {0, 3, 6})), begin + "expected to end with total_q = 7, got 6");
  EXPECT_EQ(with(tensor_of({3}, Dtype::kInt32, {0, 8, 7})), begin + "decreases from 8 to 7 at index 2");
  EXPECT_EQ(with(tensor_of({3}, Dtype::kInt64, {0, -1, 7})), begin + "decreases from 0 to -1 at index 1");
  EXPECT_EQ(with(Tensor({0}, Dtype::kInt32)), begin + "expected [num_segments + 1] numbers, at least the 0, got [0]");
  EXPECT_EQ(with(tensor_of({3}, Dtype::kFloat32, {0, 3, 7})), begin + "expected int32 or int64, got float32");
  EXPECT_EQ(with(tensor_of({1, 3}, Dtype::kInt32, {0, 3, 7})),
            begin + "expected 1 axis [num_segments + 1], got 2 in [1, 3]");
  EXPECT_EQ(with(tensor_of({4}, Dtype::kInt32, {0, 3, 3, 7})),
            "qkv::attention_varlen: cu_seqlens_k: expected [num_segments + 1] = [4] as in cu_seqlens_q, got [3]");
}

TEST(VarlenRefuses, WhatHasNoCommonShape) {
  const Tensor mask({7, 9}, Dtype::kBool), bias({7, 9}, Dtype::kFloat32), lengths({2}, Dtype::kInt32);
  Tensor matrix({1, 4, 7, 9}, Dtype::kFloat32);
  const std::string begin = "qkv::attention_varlen: ";
  const std::string reason = ": a ragged batch takes none: rows of unequal length have no common shape";
  RightRagged masked;
  masked.options.mask = mask.view();
  EXPECT_EQ(masked.refusal(), begin + "mask" + reason);
  RightRagged biased;
  biased.options.bias = bias.view();
  EXPECT_EQ(biased.refusal(), begin + "bias" + reason);
  RightRagged filled;
  filled.options.kv_lens = lengths.view();
  EXPECT_EQ(filled.refusal(), begin + "kv_lens: a ragged batch takes none: cu_seqlens_k says how long each segment is");
  RightRagged weights;
  weights.outputs.weights = Weights{.out = matrix};
  EXPECT_EQ(weights.refusal(), begin + "weights" + reason);
  RightRagged logits;
  logits.outputs.logits = Logits{.out = matrix};
  EXPECT_EQ(logits.refusal(), begin + "logits" + reason);
}

}  // namespace
}  // namespace qkv::support
