#include "kernels/row_block.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <vector>

#include "base/scratch.h"
#include "kernels/key_order.h"

namespace qkv::kernels {
namespace {

constexpr std::int64_t kContractBytes = std::int64_t{2} << 20;

ForwardProblem with_scale(double scale) {
  ForwardProblem problem;
  problem.scale = scale;
  return problem;
}

TEST(Formula, TheScaleIsCutIntoAPowerOfTwoAndARest) {
  for (const double scale : {1.0, 0.125, 0.3, -0.3, 1 / std::sqrt(80.0), 1.9999999, -7.5, 0x1p-99, 0x1.8p99, 1e20}) {
    const Formula formula(with_scale(scale));
    int exponent = 0;
    EXPECT_EQ(std::fabs(std::frexp(formula.query_scale, &exponent)), 0.5f) << "a power of two: " << scale;
    EXPECT_EQ(std::signbit(formula.query_scale), std::signbit(scale)) << scale;
    EXPECT_GE(formula.residual, 1.0) << scale;
    EXPECT_LT(formula.residual, 2.0) << scale;
    const double rest = scale / static_cast<double>(formula.query_scale);
    EXPECT_EQ(formula.residual, rest) << scale;
    EXPECT_EQ(formula.factor, static_cast<float>(rest * std::numbers::log2e)) << scale;
    EXPECT_FALSE(formula.general) << scale;
  }
}

TEST(Formula, ZeroAndFurtherTermsTakeTheGeneralForm) {
  EXPECT_TRUE(Formula(with_scale(0)).general);
  EXPECT_EQ(Formula(with_scale(0)).residual, 0.0);
  EXPECT_EQ(Formula(with_scale(0)).query_scale, 1.0f);
  ForwardProblem capped = with_scale(0.5);
  capped.softcap = 3;
  EXPECT_TRUE(Formula(capped).general);
  EXPECT_EQ(Formula(capped).softcap, 3.0f);
  float number = 0;
  ForwardProblem biased = with_scale(0.5);
  biased.bias = {&number, Dtype::kFloat32, 0, 0, 0, 0};
  EXPECT_TRUE(Formula(biased).general);
  ForwardProblem sloped = with_scale(0.5);
  sloped.alibi_slopes = {&number, Dtype::kFloat32, 0, 0, 0, 0};
  EXPECT_TRUE(Formula(sloped).general);
}

TEST(Formula, NumbersThatF32CannotTake) {
  for (const double fits : {0.0, 1.0, -1.0, 0x1p-99, -0x1p99}) {
    EXPECT_TRUE(Formula::representable(with_scale(fits))) << fits;
  }
  for (const double extreme : {1e-300, -1e300, 0x1p-149, 0x1p127}) {
    EXPECT_FALSE(Formula::representable(with_scale(extreme))) << extreme;
  }
  for (const double softcap : {1e-300, 1e-46, 1e39}) {
    ForwardProblem problem = with_scale(1);
    problem.softcap = softcap;
    EXPECT_FALSE(Formula::representable(problem)) << softcap;
  }
}

/// A head of q with as many rows as a block takes, and nothing else.
struct Fixture {
  Fixture(std::int64_t head_dim, std::int64_t value_dim, std::int64_t rows, std::int64_t keys)
      : q(static_cast<std::size_t>(rows * head_dim), 1.5f), out(1), entropy(static_cast<std::size_t>(rows)) {
    problem.batch = problem.num_heads = problem.num_kv_heads = 1;
    problem.q_len = rows;
    problem.kv_len = keys;
    problem.head_dim = head_dim;
    problem.value_dim = value_dim;
    problem.scale = 0.25;
    problem.q = {q.data(), Dtype::kFloat32, 0, 0, head_dim, 1};
    problem.query_offset = {keys - rows};
    problem.kv_lens = {keys};
  }
  std::vector<float> q, out, entropy;
  ForwardProblem problem;
};

TEST(RowBlock, ScratchStaysBelowTheContract) {
  for (const std::int64_t head_dim : {1, 16, 64, 128, 257, 1024}) {
    for (const std::int64_t value_dim :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{64}, std::int64_t{257}, kMostValueColumns}) {
      for (const std::int64_t q_len : {400, 12, 1}) {
        Fixture fixture(head_dim, value_dim, q_len, 2 * kKeyChunk);
        fixture.problem.entropy = {fixture.entropy.data(), Dtype::kFloat32, 0, 0, 1, 0};
        const std::int64_t rows = rows_per_block(fixture.problem);
        ASSERT_GE(rows, 1);
        float packed = 0;
        PackedHead head;
        if (!packs_by_block(fixture.problem)) head.keys = &packed;
        RowBlock block{fixture.problem, Formula(fixture.problem), head};
        begin_rows(block, 0, std::min<std::int64_t>(rows, q_len), 16, 64);
        EXPECT_EQ(block.own_keys != nullptr, packs_by_block(fixture.problem));
        EXPECT_TRUE(block.several_chunks || q_len > 1);
        EXPECT_LE(static_cast<std::int64_t>(scratch_bytes()), kContractBytes) << head_dim << " " << value_dim;
      }
    }
  }
}

TEST(RowBlock, FewRowsOfShortKeysPackByBlock) {
  EXPECT_TRUE(packs_by_block(Fixture(64, 64, 1, 100).problem));
  EXPECT_TRUE(packs_by_block(Fixture(256, 64, 12, 100).problem));
  EXPECT_FALSE(packs_by_block(Fixture(64, 64, 13, 100).problem));
  EXPECT_FALSE(packs_by_block(Fixture(257, 64, 1, 100).problem));
  Fixture weights(64, 64, 1, 100);
  weights.problem.weights = {weights.entropy.data(), Dtype::kFloat32, 0, 0, 0, 0};
  EXPECT_FALSE(packs_by_block(weights.problem)) << "weights form the logits a second time";
}

TEST(RowBlock, RowsAreTakenInWholeTiles) {
  Fixture small(64, 64, 1, 1);
  EXPECT_EQ(rows_per_block(small.problem), 192);
  Fixture wide(1024, 1024, 1, 1);
  EXPECT_EQ(rows_per_block(wide.problem) % 6, 0);
  EXPECT_LT(rows_per_block(wide.problem), 192);
  Fixture enormous(1, 1 << 20, 1, 1);
  EXPECT_EQ(rows_per_block(enormous.problem), 1);
}

TEST(RowBlock, RowsOfAGroupFollowHeadByHead) {
  Fixture fixture(2, 2, 3, 10);
  fixture.problem.num_heads = 4;
  fixture.problem.num_kv_heads = 2;
  fixture.q.resize(4 * 3 * 2);
  for (std::size_t i = 0; i < fixture.q.size(); ++i) fixture.q[i] = static_cast<float>(i);
  fixture.q[2 * 6 + 2 * 2] = std::numeric_limits<float>::quiet_NaN();  // head 2, row 2
  fixture.problem.q = {fixture.q.data(), Dtype::kFloat32, 0, 6, 2, 1};
  fixture.problem.causal = true;
  PackedHead head;
  head.kv_head = 1;
  RowBlock block{fixture.problem, Formula(fixture.problem), head};
  begin_rows(block, 1, 6, 8, 16);
  ASSERT_EQ(block.num_rows, 5);
  const std::int64_t heads[] = {2, 2, 3, 3, 3};
  const std::int64_t rows[] = {1, 2, 0, 1, 2};
  for (int r = 0; r < 5; ++r) {
    EXPECT_EQ(block.rows[r].head, heads[r]);
    EXPECT_EQ(block.rows[r].index, rows[r]);
    EXPECT_EQ(block.rows[r].keys.range.end, 8 + rows[r]);
    EXPECT_FALSE(block.rows[r].seen);
  }
  EXPECT_EQ(block.span.range.begin, 0);
  EXPECT_EQ(block.span.range.end, 10);
  EXPECT_FALSE(block.several_chunks);
  EXPECT_EQ(block.value_stride, 8);
}

}  // namespace
}  // namespace qkv::kernels
