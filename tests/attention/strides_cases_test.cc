// Layouts, extents and offsets that break index arithmetic.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "qkv/error.h"
#include "support/on_target.h"

namespace qkv::support {
namespace {

/// Reserved address space: pages come into being where they are touched, the rest costs nothing.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes)
      : bytes_(bytes),
        memory_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (memory_ != MAP_FAILED) madvise(memory_, bytes_, MADV_NOHUGEPAGE);
  }
  ~SparseMemory() {
    if (memory_ != MAP_FAILED) munmap(memory_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  bool ok() const { return memory_ != MAP_FAILED; }
  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }

 private:
  std::size_t bytes_;
  void* memory_;
};

class Strides : public OnTarget {
 protected:
  /// The same numbers, laid out differently.
  std::unique_ptr<Guarded> laid_out(const Tensor& tensor, Layout layout) const {
    auto copied = std::make_unique<Guarded>(tensor.shape(), tensor.dtype(), layout);
    copy(tensor, *copied);
    return copied;
  }
};

TEST_P(Strides, AnyLayoutOfAnyOperandGivesTheSameBits) {
  const Tensor q = normal({2, 4, 7, 12});
  const Tensor k = normal({2, 2, 70, 12});
  const Tensor v = normal({2, 2, 70, 10});
  const Tensor bias = normal({2, 4, 7, 70});
  const Tensor mask = random_.bool_tensor({2, 4, 7, 70}, 0.7);
  const Tensor sinks = normal({2, 4});
  const Tensor slopes = normal({2, 4});
  AttentionOptions options{
      .mask = mask.view(), .bias = bias.view(), .sinks = sinks.view(), .alibi_slopes = slopes.view()};
  const Results plain = run(q, k, v);
  const Results all = run(q, k, v, options);
  for (const Layout layout : kAllLayouts) {
    SCOPED_TRACE(static_cast<int>(layout));
    const auto q2 = laid_out(q, layout), k2 = laid_out(k, layout), v2 = laid_out(v, layout);
    expect_same_bits(run(*q2, *k2, *v2), plain);
    const auto bias2 = laid_out(bias, layout), mask2 = laid_out(mask, layout);
    const auto sinks2 = laid_out(sinks, layout), slopes2 = laid_out(slopes, layout);
    options.mask = *mask2;
    options.bias = *bias2;
    options.sinks = *sinks2;
    options.alibi_slopes = *slopes2;
    expect_same_bits(run(*q2, *k2, *v2, options), all);
  }
}

TEST_P(Strides, BatchLengthHeadDimOrderWithGroups) {
  const Tensor q = normal({2, 7, 4, 12});
  const Tensor k = normal({2, 70, 2, 12});
  const Tensor v = normal({2, 70, 2, 10});
  const auto by_heads = [&](const Tensor& tensor) { return tensor.view().permute({0, 2, 1, 3}); };
  const auto dense = [&](const Tensor& tensor) {
    const ConstTensorView view = by_heads(tensor);
    Tensor copied(view.shape(), dtype());
    copy(view, copied);
    return copied;
  };
  expect_same_bits(run(by_heads(q), by_heads(k), by_heads(v), {.causal = true}),
                   run(dense(q), dense(k), dense(v), {.causal = true}));
  Tensor out({2, 7, 4, 10}, dtype());
  attention(by_heads(q), by_heads(k), by_heads(v), out.view().permute({0, 2, 1, 3}), {.causal = true});
  EXPECT_TRUE(same_bits(by_heads(out), run(dense(q), dense(k), dense(v), {.causal = true}).out));
}

TEST_P(Strides, ValuesWithoutColumns) {
  // Few rows read V where it lies, several are handed a packed copy, and many keys are cut into chunks.
  for (const std::int64_t rows : {1, 2, 6, 7, 40}) {
    for (const std::int64_t keys : {1, 70, 300, 5000}) {
      SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(keys) + " keys");
      const Tensor q = normal({1, 2, rows, 8});
      const Tensor k = normal({1, 2, keys, 8});
      const Tensor none({1, 2, keys, 0}, dtype());
      const Results a = run(q, k, none);
      const Results b = run(q, k, k);
      EXPECT_EQ(a.out.num_elements(), 0);
      EXPECT_TRUE(same_bits(a.lse, b.lse));
      EXPECT_TRUE(same_bits(a.entropy, b.entropy));
    }
  }
}

TEST_P(Strides, StrideZeroRepeats) {
  const Tensor q = normal({3, 2, 5, 8});
  const Tensor k = normal({1, 1, 70, 8});
  const Tensor v = normal({1, 1, 1, 8});
  const auto expanded = [&](const Tensor& tensor, const Extents& shape) {
    const ConstTensorView repeated = tensor.view();
    return static_cast<ConstTensorView>(repeated).broadcast_to(shape);
  };
  const ConstTensorView many_k = expanded(k, {3, 2, 70, 8});
  const ConstTensorView many_v = expanded(v, {3, 2, 70, 8});
  Tensor dense_k({3, 2, 70, 8}, dtype());
  Tensor dense_v({3, 2, 70, 8}, dtype());
  copy(many_k, dense_k);
  copy(many_v, dense_v);
  expect_same_bits(run(q, many_k, many_v, {.causal = true}), run(q, dense_k, dense_v, {.causal = true}));
}

TEST_P(Strides, EveryOperandLaidOutInItsOwnWay) {
  const Tensor q = normal({2, 4, 12, 7});   // d-major: the last two axes are exchanged below
  const Tensor k = normal({1, 1, 70, 12});  // one head of one batch for all
  const Tensor v = normal({2, 70, 4, 10});  // heads inside positions
  const Tensor bias = normal({70, 7});      // keys before rows
  const ConstTensorView views[] = {q.view().permute({0, 1, 3, 2}),
                                   static_cast<ConstTensorView>(k).broadcast_to({2, 4, 70, 12}),
                                   v.view().permute({0, 2, 1, 3}), bias.view().permute({1, 0})};
  std::vector<Tensor> dense;
  for (const ConstTensorView& view : views) copy(view, dense.emplace_back(view.shape(), dtype()));
  expect_same_bits(run(views[0], views[1], views[2], {.causal = true, .bias = views[3]}),
                   run(dense[0], dense[1], dense[2], {.causal = true, .bias = dense[3].view()}));
}

TEST_P(Strides, FewerAxesAreLeadingOnes) {
  const Tensor q = normal({1, 1, 5, 8});
  const Tensor k = normal({1, 1, 70, 8});
  const Tensor v = normal({1, 1, 70, 9});
  const Results whole = run(q, k, v, {.causal = true});
  Tensor out({5, 9}, dtype());
  Tensor lse({5}, dtype());
  const auto flat = [](const ConstTensorView& dense) {
    return ConstTensorView(dense.data(), dense.dtype(), {dense.extent(2), dense.extent(3)}, {dense.extent(3), 1});
  };
  attention(flat(q), flat(k), flat(v), out, {.causal = true}, {.lse = lse.view()});
  EXPECT_TRUE(same_bits(out, flat(whole.out)));
  for (std::int64_t i = 0; i < 5; ++i) EXPECT_EQ(read(lse, {i}), read(whole.lse, {0, 0, i}));
}

struct Sizes {
  std::int64_t batch, rows, keys, columns;
};

TEST_P(Strides, WithoutBatchesOrRowsNothingIsWritten) {
  // attend() looks at the canaries, of which the outputs' memory is then made.
  for (const Sizes& s : {Sizes{0, 3, 5, 4}, {2, 0, 5, 4}, {0, 0, 0, 0}, {0, 3, 0, 4}, {2, 0, 0, 4}, {2, 0, 5, 0}}) {
    const Tensor q = normal({s.batch, 2, s.rows, 4});
    const Tensor k = normal({s.batch, 2, s.keys, 4});
    const Tensor v = normal({s.batch, 2, s.keys, s.columns});
    const Tensor sinks = normal({2});
    for (const Layout layout : kAllLayouts) {
      for (const bool with_sinks : {false, true}) {
        AttentionOptions options{.causal = true};
        if (with_sinks) options.sinks = sinks.view();
        const Results a = run(q, k, v, options, {.layout = layout});
        EXPECT_EQ(a.out.num_elements(), 0);
        EXPECT_EQ(a.lse.num_elements(), 0);
        EXPECT_EQ(a.weights.num_elements(), 0);
      }
    }
  }
}

TEST_P(Strides, WithoutKeysEveryRowIsEmpty) {
  const Tensor sinks = tensor({2}, {0.75, -3});
  for (const Layout layout : kAllLayouts) {
    for (const bool causal : {false, true}) {
      const Tensor q = normal({2, 2, 3, 4});
      const Results a = run(q, normal({2, 2, 0, 4}), normal({2, 2, 0, 5}), {.causal = causal}, {.layout = layout});
      for_each_index({2, 2, 3}, [&](const Extents& row) { expect_empty_row(a, row); });
      const Results with_sinks = run(q, normal({2, 2, 0, 4}), normal({2, 2, 0, 5}),
                                     {.causal = causal, .sinks = sinks.view()}, {.layout = layout});
      for_each_index({2, 2, 3}, [&](const Extents& row) {
        EXPECT_EQ(read(with_sinks.lse, row), read(sinks, {row[1]}));
        EXPECT_EQ(read(with_sinks.max_key, row), -1);
        EXPECT_TRUE(all_of_row(with_sinks.out, row, [](double x) { return x == 0; }));
      });
    }
  }
}

TEST_P(Strides, WithoutColumnsAllTheRestIsThere) {
  // q = 0: every visible key weighs the same.
  const Tensor q({2, 2, 3, 4}, dtype());
  const Tensor k = normal({2, 2, 5, 4});
  const Tensor v({2, 2, 5, 0}, dtype());
  for (const Layout layout : kAllLayouts) {
    const Results a = run(q, k, v, {.causal = true}, {.keys = {0, 4}, .layout = layout});
    EXPECT_EQ(a.out.num_elements(), 0);
    for_each_index({2, 2, 3}, [&](const Extents& row) {
      const auto seen = static_cast<double>(3 + row[2]);
      SCOPED_TRACE(to_string(row));
      EXPECT_NEAR(read(a.lse, row), std::log(seen), kFewSteps * epsilon());
      EXPECT_NEAR(read(a.entropy, row), std::log(seen), kFewSteps * epsilon());
      EXPECT_NEAR(read(a.max_weight, row), 1 / seen, kOneStep * epsilon());
      EXPECT_NEAR(read(a.key_weight, row), (seen == 5 ? 2 : 1) / seen, kOneStep * epsilon());
      EXPECT_EQ(read(a.max_key, row), 0);
      EXPECT_EQ(read(a.max_raw, row), 0);
      EXPECT_EQ(read(a.max_logit, row), 0);
      for (std::int64_t j = 0; j < 5; ++j) {
        const bool visible = static_cast<double>(j) < seen;
        EXPECT_NEAR(read(a.weights, {row[0], row[1], row[2], j}), visible ? 1 / seen : 0,
                    visible ? kOneStep * epsilon() : 0);
        EXPECT_EQ(read(a.logits, {row[0], row[1], row[2], j}), visible ? 0 : -kInf);
      }
    });
  }
}

TEST_P(Strides, WithoutHeadDimOrHeadsACallIsRefusedBeforeItWrites) {
  const auto expect_refused = [&](const Tensor& q, const Tensor& k) {
    Results nothing(q, k, k);
    EXPECT_THROW(attention(q, k, k, nothing.out, {}, nothing.outputs()), ShapeError);
    for (const NamedView& output : nothing.views()) {
      if (output.name == "max_key") continue;  // has no NaN to begin with
      for_each_index(output.view.shape(),
                     [&](const Extents& at) { EXPECT_TRUE(std::isnan(read(output.view, at))) << output.name; });
    }
    EXPECT_TRUE(nothing.intact());
  };
  expect_refused(Tensor({1, 1, 2, 0}, dtype()), Tensor({1, 1, 2, 0}, dtype()));
  expect_refused(Tensor({1, 2, 2, 3}, dtype()), Tensor({1, 0, 2, 3}, dtype()));
  expect_refused(Tensor({1, 0, 2, 3}, dtype()), Tensor({1, 1, 2, 3}, dtype()));
}

TEST_P(Strides, NullDataWhereNothingIsThere) {
  // Of two batches and heads: an offset to null is undefined, and UBSan would see it.
  const Tensor q = normal({2, 2, 3, 4});
  const ConstTensorView nothing(nullptr, dtype(), {2, 2, 0, 4}, {8, 4, 4, 1});
  const ConstTensorView no_mask(nullptr, Dtype::kBool, {2, 2, 3, 0}, {6, 3, 1, 1});
  const Results a = run(q, nothing, nothing, {.mask = no_mask});
  for_each_index({2, 2, 3}, [&](const Extents& row) { expect_empty_row(a, row); });
}

TEST_P(Strides, DimensionsAroundVectors) {
  for (const std::int64_t dim : {1, 3, 40, 257, 1024}) {
    for (const std::int64_t columns : {1, 5, 257}) {
      SCOPED_TRACE(std::to_string(dim) + " and " + std::to_string(columns));
      expect_as_reference(normal({1, 1, 3, dim}), normal({1, 1, 33, dim}), normal({1, 1, 33, columns}),
                          {.causal = true}, {.keys = {3, 32}});
    }
  }
}

TEST_P(Strides, LengthsOneBeyondAWord) {
  for (const std::int64_t keys : {1, 33, 65, 97, 129, 513}) {
    SCOPED_TRACE(keys);
    expect_as_reference(normal({1, 2, 7, 16}), normal({1, 2, keys, 16}), normal({1, 2, keys, 16}), {.causal = true});
  }
}

TEST_P(Strides, OffsetsBeyond32Bits) {
  // Rows of q, k, v and out so far apart that their offsets leave 31 bits, then 32.
  constexpr std::int64_t kRows = 3;
  const std::size_t item = size_of(dtype());
  for (const std::int64_t apart : {(std::int64_t{1} << 31) + 24, (std::int64_t{1} << 32) + 24}) {
    SCOPED_TRACE(apart);
    const SparseMemory memory(static_cast<std::size_t>(kRows * apart + 64) * item);
    if (!memory.ok()) GTEST_SKIP() << "no address space of this size";
    const auto at = [&](std::int64_t first) {
      return TensorView(memory.as<char>() + static_cast<std::size_t>(first) * item, dtype(), {1, 1, kRows, 4},
                        {0, 0, apart, 1});
    };
    const Tensor q = normal({1, 1, kRows, 4});
    const Tensor k = normal({1, 1, kRows, 4});
    const Tensor v = normal({1, 1, kRows, 4});
    copy(q, at(0));
    copy(k, at(4));
    copy(v, at(8));
    attention(at(0), at(4), at(8), at(12), {.causal = true});
    EXPECT_TRUE(same_bits(at(12), run(q, k, v, {.causal = true}).out));
  }
}

TEST_P(Strides, MaskOfMoreThan2To31Elements) {
  // Rows 2^31 bytes apart, and keys 2^31 bytes apart: both products leave 32 bits.
  constexpr std::int64_t kApart = (std::int64_t{1} << 31) + 8;
  const SparseMemory memory(static_cast<std::size_t>(4 * kApart));
  if (!memory.ok()) GTEST_SKIP() << "no address space of this size";
  const Tensor q = normal({1, 1, 3, 4});
  const Tensor k = normal({1, 1, 3, 4});
  const Tensor v = normal({1, 1, 3, 4});
  const Tensor mask = tensor_of({3, 3}, Dtype::kBool, {0, 1, 0, 1, 1, 0, 0, 1, 1});
  const Results expected = run(q, k, v, {.mask = mask.view()});
  for (const Extents& strides : {Extents{kApart, 1}, Extents{1, kApart}}) {
    const TensorView sparse(memory.as<bool>(), Dtype::kBool, {3, 3}, strides);
    copy(mask, sparse);
    expect_same_bits(run(q, k, v, {.mask = sparse}), expected);
  }
}

TEST_P(Strides, MaskOfMoreThan2To31ElementsByStrideZero) {
  // Of 2^33 elements of the mask a window leaves a few: nothing may walk over the others.
  constexpr std::int64_t kKeys = std::int64_t{1} << 17;
  constexpr std::int64_t kRows = std::int64_t{1} << 16;
  if (GetParam().target == "reference") GTEST_SKIP() << "the reference looks at every pair";
  const Tensor k = tensor({1, 1, 1, 1}, {0.5});
  const Tensor v = tensor({1, 1, 1, 1}, {2});
  const Tensor yes = tensor_of({1}, Dtype::kBool, {1});
  const ConstTensorView q = ConstTensorView(k.view()).broadcast_to({1, 1, kRows, 1});
  const ConstTensorView keys = ConstTensorView(k.view()).broadcast_to({1, 1, kKeys, 1});
  const ConstTensorView values = ConstTensorView(v.view()).broadcast_to({1, 1, kKeys, 1});
  Tensor out({1, 1, kRows, 1}, dtype());
  Tensor max_key({1, 1, kRows}, Dtype::kInt64);
  attention(q, keys, values, out,
            {.window = {.left = 3, .right = 1}, .mask = ConstTensorView(yes.view()).broadcast_to({kRows, kKeys})},
            {.stats = Stats{.max_key = max_key.view()}});
  for (const std::int64_t i : {std::int64_t{0}, std::int64_t{1}, kRows - 1}) {
    EXPECT_EQ(read(out, {0, 0, i, 0}), 2) << i;
    EXPECT_EQ(read(max_key, {0, 0, i}), kKeys - kRows + i - 3) << i;
  }
}

TEST_P(Strides, ThreadsAndRepeatsChangeNoBitAtLength33) {
  const Tensor q = normal({2, 4, 33, 64});
  const Tensor k = normal({2, 2, 33, 64});
  const Tensor v = normal({2, 2, 33, 64});
  const ThreadScope one(1);
  const Results expected = run(q, k, v, {.causal = true});
  for (const int threads : {1, 2, 4}) {
    const ThreadScope scope(threads);
    for (int repeat = 0; repeat < 30 && !HasFailure(); ++repeat) {
      SCOPED_TRACE(std::to_string(threads) + " threads, repeat " + std::to_string(repeat));
      expect_same_bits(run(q, k, v, {.causal = true}), expected);
    }
  }
}

TEST_P(Strides, NoKeysWhoseStridesLeadNowhere) {
  // Nothing is read by them, so nothing may be worked out with them: 3 heads of 2^62 elements overflow.
  const Extents nowhere{0, std::int64_t{1} << 62, 8, 1};
  const Tensor nothing = normal({1, 4, 0, 8});
  const ConstTensorView keys(nothing.view().data(), dtype(), {1, 4, 0, 8}, nowhere);
  const Results a = run(normal({1, 4, 3, 8}), keys, keys);
  for (std::int64_t head = 0; head < 4; ++head) expect_empty_row(a, {0, head, 2});
}

TEST_P(Strides, ARowAloneIsThatRowAmongNine) {
  const Tensor q = normal({1, 1, 9, 40});
  const Tensor k = normal({1, 1, 100, 40});
  const Tensor v = normal({1, 1, 100, 40});
  const Results nine = run(q, k, v);
  for (std::int64_t i = 0; i < 9; ++i) {
    SCOPED_TRACE(i);
    expect_same_bits(run(q.view().slice(2, i, i + 1), k, v).views(), sliced(nine.views(), 2, i, i + 1));
  }
}

INSTANTIATE_TEST_SUITE_P(On, Strides, ::testing::ValuesIn(every_setting()), setting_name);

}  // namespace
}  // namespace qkv::support
