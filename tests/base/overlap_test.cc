#include "base/overlap.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "support/elements.h"
#include "support/random.h"

namespace qkv {
namespace {

ConstTensorView strided(const float* data, const Extents& shape, const Extents& strides) {
  return view(data, shape, strides);
}

TEST(ShareMemory, SeparateBlocksDoNot) {
  std::vector<float> data(20);
  EXPECT_FALSE(share_memory(view(data.data(), {10}), view(data.data() + 10, {10})));
  EXPECT_TRUE(share_memory(view(data.data(), {11}), view(data.data() + 10, {10})));
}

TEST(ShareMemory, InterleavedViewsAreToldApart) {
  std::vector<float> data(64);
  const auto even = strided(data.data(), {32}, {2});
  const auto odd = strided(data.data() + 1, {32}, {2});
  EXPECT_FALSE(share_memory(even, odd));
  EXPECT_TRUE(share_memory(even, strided(data.data() + 1, {21}, {3})));
  // The q, k and v of one fused projection, [length, 3, width].
  const auto q = strided(data.data(), {4, 5}, {15, 1});
  const auto k = strided(data.data() + 5, {4, 5}, {15, 1});
  EXPECT_FALSE(share_memory(q, k));
  EXPECT_TRUE(share_memory(q, strided(data.data() + 4, {4, 5}, {15, 1})));
}

TEST(ShareMemory, ElementsOfDifferentSizesShareBytes) {
  std::vector<double> data(4);
  const ConstTensorView doubles = view(data.data() + 1, {1});
  const auto* floats = reinterpret_cast<const float*>(data.data());
  EXPECT_FALSE(share_memory(doubles, view(floats + 1, {1})));
  EXPECT_TRUE(share_memory(doubles, view(floats + 2, {1})));
  EXPECT_TRUE(share_memory(doubles, view(floats + 3, {1})));
  EXPECT_FALSE(share_memory(doubles, view(floats + 4, {1})));
}

TEST(ShareMemory, EmptyViewsShareNothing) {
  std::vector<float> data(4);
  EXPECT_FALSE(share_memory(view(data.data(), {0, 4}), view(data.data(), {4})));
}

TEST(ShareMemory, LargeTransposesAreDecidedExactly) {
  // Addresses only: no element is touched. Column 0 of a matrix against its other columns, seen transposed.
  constexpr std::int64_t kN = 1 << 20;
  const auto* base = reinterpret_cast<const float*>(std::uintptr_t{1} << 32);
  const auto column = strided(base, {kN}, {kN});
  const auto rest = strided(base + 1, {kN - 1, kN}, {1, kN});
  EXPECT_FALSE(share_memory(column, rest));
  EXPECT_TRUE(share_memory(column, strided(base, {kN - 1, kN}, {1, kN})));
}

TEST(ShareMemory, AnAddressThatDoesNotFitCountsAsShared) {
  const float x = 0;
  const float y = 0;
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(share_memory(strided(&x, {3}, {kMost}), strided(&y, {1}, {1})));
}

TEST(InternalOverlap, RegularLayoutsHaveNone) {
  std::vector<float> data(100);
  EXPECT_FALSE(has_internal_overlap(view(data.data(), {2, 3, 4})));
  EXPECT_FALSE(has_internal_overlap(strided(data.data(), {3, 4}, {1, 3})));
  EXPECT_FALSE(has_internal_overlap(strided(data.data(), {1, 4}, {0, 1}))) << "an axis of extent 1 is never stepped";
  EXPECT_FALSE(has_internal_overlap(strided(data.data() + 20, {3, 4}, {-4, 1})));
  EXPECT_FALSE(has_internal_overlap(strided(data.data(), {0, 4}, {0, 0})));
}

TEST(InternalOverlap, RepeatedAndCrossingAxesAreFound) {
  std::vector<float> data(100);
  EXPECT_TRUE(has_internal_overlap(strided(data.data(), {2, 4}, {0, 1})));
  EXPECT_TRUE(has_internal_overlap(strided(data.data(), {3, 4}, {1, 1})));
  EXPECT_TRUE(has_internal_overlap(strided(data.data(), {3, 4}, {3, 1}))) << "a row begins at the end of the last";
  EXPECT_TRUE(has_internal_overlap(strided(data.data(), {4, 3}, {2, 3})));
  EXPECT_FALSE(has_internal_overlap(strided(data.data(), {3, 2}, {2, 3}))) << "2 i + 3 j meets nothing twice here";
}

/// Byte addresses of the elements, by enumeration.
std::multiset<std::uintptr_t> addresses(const ConstTensorView& view) {
  std::multiset<std::uintptr_t> result;
  const auto base = reinterpret_cast<std::uintptr_t>(view.data());
  support::for_each_index(view.shape(), [&](const Extents& index) {
    const auto item = static_cast<std::int64_t>(size_of(view.dtype()));
    result.insert(base + static_cast<std::uintptr_t>(support::offset_of(view, index) * item));
  });
  return result;
}

bool share_bytes(const ConstTensorView& a, const ConstTensorView& b) {
  for (const std::uintptr_t x : addresses(a)) {
    for (const std::uintptr_t y : addresses(b)) {
      if (x < y + size_of(b.dtype()) && y < x + size_of(a.dtype())) return true;
    }
  }
  return false;
}

ConstTensorView random_view(support::Random& random) {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  for (std::int64_t axis = random.integer(0, 3); axis > 0; --axis) {
    shape.push_back(random.integer(random.chance(0.1) ? 0 : 1, 4));
    strides.push_back(random.integer(-9, 9));
  }
  const std::uintptr_t address = (std::uintptr_t{1} << 20) + static_cast<std::uintptr_t>(4 * random.integer(0, 60));
  return {reinterpret_cast<const void*>(address), random.chance(0.5) ? Dtype::kFloat32 : Dtype::kFloat64,
          Extents(shape), Extents(strides)};
}

TEST(Overlap, AgreesWithEnumeration) {
  constexpr std::uint64_t kSeed = 20;
  SCOPED_TRACE(kSeed);
  support::Random random(kSeed);
  int shared = 0;
  int repeated = 0;
  for (int round = 0; round < 5000; ++round) {
    const ConstTensorView a = random_view(random);
    const ConstTensorView b = random_view(random);
    const bool meet = share_bytes(a, b);
    const auto in_a = addresses(a);
    const bool repeat = std::set<std::uintptr_t>(in_a.begin(), in_a.end()).size() != in_a.size();
    shared += meet ? 1 : 0;
    repeated += repeat ? 1 : 0;
    ASSERT_EQ(share_memory(a, b), meet) << to_string(a.shape()) << to_string(a.strides()) << to_string(b.shape())
                                        << to_string(b.strides());
    ASSERT_EQ(has_internal_overlap(a), repeat) << to_string(a.shape()) << to_string(a.strides());
  }
  EXPECT_GT(shared, 500) << "the random views hardly ever meet: this tests nothing";
  EXPECT_GT(repeated, 500);
}

}  // namespace
}  // namespace qkv
