#include "kernels/packed_head.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/forward_f32.h"
#include "kernels/key_order.h"
#include "support/guarded.h"
#include "support/random.h"

namespace qkv::kernels {
namespace {

using support::Guarded;
using support::Layout;
using support::Random;
using support::read;
using support::write;

std::uint32_t magnitude(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu; }

/// K of one head, and the problem that reads it.
struct Head {
  Head(std::int64_t keys, std::int64_t head_dim, Layout layout = Layout::kDense, Dtype dtype = Dtype::kFloat32)
      : k({keys, head_dim}, dtype, layout) {
    Random random(static_cast<std::uint64_t>(keys + head_dim));
    random.fill_normal(k);
    problem.batch = problem.num_heads = problem.num_kv_heads = 1;
    problem.kv_len = keys;
    problem.head_dim = head_dim;
    problem.k = {k.view().data(), k.dtype(), 0, 0, k.view().stride(0), k.view().stride(1)};
  }
  float key(std::int64_t j, std::int64_t d) const { return static_cast<float>(read(k, {j, d})); }

  Guarded k;
  ForwardProblem problem;
};

/// Keys of a panel, which only the kernel knows: dimension 1 of a panel begins there.
std::int64_t panel_keys(const ForwardKernelF32& kernel) {
  Head head(1, 2);
  write(head.k, {0, 0}, 1);
  write(head.k, {0, 1}, 2);
  PackedHeadBuffer buffer;
  const PackedHead packed = buffer.layout(head.problem, 0, 0, {{0, 1}, {}});
  std::fill_n(packed.keys, 2 * kWordKeys, 0.0f);
  kernel.pack(head.problem, packed, 0, 1);
  return std::find(packed.keys, packed.keys + 2 * kWordKeys, 2.0f) - packed.keys;
}

class PackedHeads : public ::testing::TestWithParam<ForwardKernelF32> {
 protected:
  const ForwardKernelF32& kernel() const { return GetParam(); }

  PackedHead pack(const Head& head, KeyRange range) {
    const PackedHead packed = buffer_.layout(head.problem, 0, 0, {range, {}});
    kernel().pack(head.problem, packed, 0, packed.num_words());
    return packed;
  }

  void expect_holds(const PackedHead& packed, const Head& head, KeyRange range) const {
    const std::int64_t panel = panel_keys(kernel());
    const std::int64_t begin = align_down(range.begin, kWordKeys);
    const std::int64_t dims = head.problem.head_dim;
    ASSERT_EQ(packed.span.range.begin, begin);
    ASSERT_EQ(packed.span.range.end, range.end);
    for (std::int64_t j = begin; j < align_up(range.end, kernel().lanes); ++j) {
      const std::int64_t local = j - begin;
      const float* column = packed.keys + local / panel * panel * dims + local % panel;
      for (std::int64_t d = 0; d < dims; ++d) {
        ASSERT_EQ(column[d * panel], j < range.end ? head.key(j, d) : 0.0f) << "key " << j << " dimension " << d;
      }
    }
    expect_magnitudes(packed, head);
  }

  static void expect_magnitudes(const PackedHead& packed, const Head& head) {
    for (std::int64_t word = 0; word < packed.num_words(); ++word) {
      const std::int64_t begin = packed.span.range.begin + word * kWordKeys;
      std::uint32_t keys = 0;
      for (std::int64_t j = begin; j < std::min(begin + kWordKeys, packed.span.range.end); ++j) {
        for (std::int64_t d = 0; d < head.problem.head_dim; ++d) keys = std::max(keys, magnitude(head.key(j, d)));
      }
      ASSERT_EQ(packed.key_magnitude[word], keys) << "word " << word;
    }
  }

  PackedHeadBuffer buffer_;
};

TEST_P(PackedHeads, HoldEveryKeyOfAnyLayout) {
  for (const Layout layout : support::kAllLayouts) {
    for (const std::int64_t dim : {1, 3, 4, 16, 17, 33}) {
      for (const std::int64_t keys : {1, 3, 64, 65, 130}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(layout)) + " dim " + std::to_string(dim) + " keys " +
                     std::to_string(keys));
        const Head head(keys, dim, layout);
        expect_holds(pack(head, {0, keys}), head, {0, keys});
      }
    }
  }
}

TEST_P(PackedHeads, HoldEveryKeyOfAnyType) {
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBFloat16}) {
    for (const Layout layout : {Layout::kDense, Layout::kTransposed, Layout::kReversed}) {
      for (const std::int64_t dim : {1, 7, 32, 64, 67, 130}) {
        SCOPED_TRACE(std::string(name_of(dtype)) + " layout " + std::to_string(static_cast<int>(layout)) + " dim " +
                     std::to_string(dim));
        const Head head(71, dim, layout, dtype);
        expect_holds(pack(head, {0, 71}), head, {0, 71});
      }
    }
  }
}

TEST_P(PackedHeads, APartOfTheKeysBeginsAtAWord) {
  const Head head(300, 5);
  for (const KeyRange range : {KeyRange{0, 300}, {1, 2}, {63, 64}, {64, 65}, {100, 200}, {256, 300}}) {
    SCOPED_TRACE(range.begin);
    expect_holds(pack(head, range), head, range);
  }
}

TEST_P(PackedHeads, WordsArePackedInAnyOrder) {
  const Head head(300, 7);
  const PackedHead packed = buffer_.layout(head.problem, 0, 0, {{0, 300}, {}});
  kernel().pack(head.problem, packed, 3, 5);
  kernel().pack(head.problem, packed, 0, 1);
  kernel().pack(head.problem, packed, 1, 3);
  expect_holds(packed, head, {0, 300});
}

TEST_P(PackedHeads, MagnitudesOrderNaNAboveInfinityAboveNumbers) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float payload = std::bit_cast<float>(0xff800001u);  // negative and signalling, next to -infinity
  for (const std::int64_t dim : {4, 7}) {
    for (const std::int64_t at : {0, 3, 5, 62, 63}) {
      for (const float x : {0.0f, -7.5f, 3e38f, kInf, -kInf, nan, -nan, payload}) {
        Head head(64, dim);
        for (const std::int64_t column : {std::int64_t{0}, dim - 1}) {
          // Memory, not write(): a conversion would quieten a signalling NaN.
          head.k.view().as<float>()[at * head.k.view().stride(0) + column] = x;
          const PackedHead packed = pack(head, {0, 64});
          const std::uint32_t expected = magnitude(x);
          if (expected > magnitude(5.0f)) {
            EXPECT_EQ(packed.key_magnitude[0] >= kInfinityBits, expected >= kInfinityBits) << x;
            EXPECT_EQ(packed.key_magnitude[0] > kInfinityBits, std::isnan(x)) << x;
          } else {
            EXPECT_LT(packed.key_magnitude[0], magnitude(7.0f));
          }
        }
      }
    }
  }
}

TEST_P(PackedHeads, NothingBeyondTheHeadIsRead) {
  // Around the elements there are NaNs, which would raise a magnitude.
  for (const Layout layout : support::kAllLayouts) {
    const Head head(67, 5, layout);
    const PackedHead packed = pack(head, {0, 67});
    for (std::int64_t word = 0; word < 2; ++word) {
      EXPECT_LT(packed.key_magnitude[word], kInfinityBits);
    }
  }
}

TEST_P(PackedHeads, ABufferServesHeadsOfAnySize) {
  for (const std::int64_t keys : {10, 500, 3, 130}) {
    const Head head(keys, 6);
    expect_holds(pack(head, {0, keys}), head, {0, keys});
  }
  const Head none(0, 6);
  EXPECT_EQ(pack(none, {0, 0}).num_words(), 0);
}

INSTANTIATE_TEST_SUITE_P(On, PackedHeads,
                         ::testing::ValuesIn(forward_kernels_f32().begin(), forward_kernels_f32().end()),
                         [](const auto& test) { return std::string(test.param.target); });

}  // namespace
}  // namespace qkv::kernels
