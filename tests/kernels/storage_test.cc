// How the kernels read and write 16 bits, on every instruction set that they are built for: as the conversions of
// qkv/half.h do, which have tests of their own.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/storage_test.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets the target of each pass.
#include "hwy/highway.h"
#include "kernels/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

/// Counts are multiples of 16.
template <class T>
void load_all(const T* from, float* to, std::size_t count) {
  for (std::size_t i = 0; i < count; i += kLanes) store(load(from + i), to + i);
}
template <class T>
void store_all(const float* from, T* to, std::size_t count) {
  for (std::size_t i = 0; i < count; i += kLanes) store(load(from + i), to + i);
}

void load_float16(const Float16* from, float* to, std::size_t count) { load_all(from, to, count); }
void load_bfloat16(const BFloat16* from, float* to, std::size_t count) { load_all(from, to, count); }
void store_float16(const float* from, Float16* to, std::size_t count) { store_all(from, to, count); }
void store_bfloat16(const float* from, BFloat16* to, std::size_t count) { store_all(from, to, count); }
void round_all(const float* from, float* to, std::size_t count) {
  for (std::size_t i = 0; i < count; i += kLanes) store(round_to_bfloat16(load(from + i)), to + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "support/built_target.h"

namespace qkv::kernels {
namespace {

HWY_EXPORT(load_float16);
HWY_EXPORT(load_bfloat16);
HWY_EXPORT(store_float16);
HWY_EXPORT(store_bfloat16);
HWY_EXPORT(round_all);

constexpr std::size_t kPatterns = 65536;

/// Every number of 16 bits.
template <class T>
std::vector<T> all_patterns() {
  std::vector<T> all(kPatterns);
  for (std::size_t i = 0; i < kPatterns; ++i) all[i].bits = static_cast<std::uint16_t>(i);
  return all;
}

/// Floats about each number of 16 bits: itself, the middle to the next, and both neighbours of the middle.
template <class T>
std::vector<float> around_patterns() {
  std::vector<float> floats;
  for (const T& x : all_patterns<T>()) {
    T next = x;
    ++next.bits;
    const auto low = static_cast<float>(x);
    floats.push_back(low);
    if (!std::isfinite(low)) continue;
    // Beyond the largest number: the middle to what would be the next.
    const double high =
        std::isfinite(static_cast<float>(next)) ? static_cast<double>(next) : 2.0 * static_cast<double>(low);
    const auto middle = static_cast<float>((static_cast<double>(low) + high) / 2);
    for (const float f : {std::nextafter(middle, -1e30f), middle, std::nextafter(middle, 1e30f)}) floats.push_back(f);
  }
  for (const float f : {65504.0f, 65519.99f, 65520.0f, 1e30f, std::numeric_limits<float>::max(), 1e-45f, -1e-45f}) {
    floats.push_back(f);
  }
  while (floats.size() % 16 != 0) floats.push_back(0);
  return floats;
}

bool same(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

class Storage : public support::OnBuiltTarget {
 protected:
  template <class T, class Load>
  static void expect_loads(const Load& load) {
    const std::vector<T> all = all_patterns<T>();
    std::vector<float> actual(all.size());
    load(all.data(), actual.data(), all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      ASSERT_TRUE(same(actual[i], static_cast<float>(all[i]))) << "bits " << i << ": " << actual[i];
    }
  }

  template <class T, class Store>
  static void expect_stores(const Store& store) {
    const std::vector<float> floats = around_patterns<T>();
    std::vector<T> actual(floats.size());
    store(floats.data(), actual.data(), floats.size());
    for (std::size_t i = 0; i < floats.size(); ++i) {
      const T expected(static_cast<double>(floats[i]));
      if (std::isnan(floats[i])) {
        ASSERT_TRUE(std::isnan(static_cast<float>(actual[i]))) << "NaN became " << actual[i].bits;
      } else {
        ASSERT_EQ(actual[i].bits, expected.bits) << floats[i];
      }
    }
  }
};

TEST_P(Storage, ReadsEveryFloat16) { expect_loads<Float16>(HWY_DYNAMIC_DISPATCH(load_float16)); }
TEST_P(Storage, ReadsEveryBFloat16) { expect_loads<BFloat16>(HWY_DYNAMIC_DISPATCH(load_bfloat16)); }
TEST_P(Storage, RoundsToFloat16) { expect_stores<Float16>(HWY_DYNAMIC_DISPATCH(store_float16)); }
TEST_P(Storage, RoundsToBFloat16) { expect_stores<BFloat16>(HWY_DYNAMIC_DISPATCH(store_bfloat16)); }

TEST_P(Storage, RoundsWeightsAsItStoresThem) {
  const std::vector<float> floats = around_patterns<BFloat16>();
  std::vector<float> rounded(floats.size());
  HWY_DYNAMIC_DISPATCH(round_all)(floats.data(), rounded.data(), floats.size());
  for (std::size_t i = 0; i < floats.size(); ++i) {
    if (std::isnan(floats[i])) continue;
    ASSERT_TRUE(same(rounded[i], static_cast<float>(BFloat16(static_cast<double>(floats[i]))))) << floats[i];
  }
}

INSTANTIATE_TEST_SUITE_P(On, Storage, ::testing::ValuesIn(support::built_targets()), support::built_target_name);

}  // namespace
}  // namespace qkv::kernels
#endif  // HWY_ONCE
