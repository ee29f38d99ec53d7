// When memory runs out: an append is all or nothing, at whatever allocation it fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "attention/kv_tokens.h"
#include "support/results.h"

namespace {

/// Allocations that still succeed; below 0: all do.
thread_local std::int64_t g_left = -1;

void* limited(void* memory) {
  if (g_left == 0 || memory == nullptr) {
    std::free(memory);
    throw std::bad_alloc();
  }
  if (g_left > 0) --g_left;
  return memory;
}

[[gnu::noinline]] void release(void* memory) noexcept { std::free(memory); }

}  // namespace

void* operator new(std::size_t size) { return limited(std::malloc(size == 0 ? 1 : size)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto step = static_cast<std::size_t>(alignment);
  return limited(std::aligned_alloc(step, (size + step - 1) / step * step));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

namespace qkv::support {
namespace {

/// Calls change() with 0, 1, 2, .. allocations until it succeeds; check() after each failure. @return failures
template <class Change, class Check>
int fail_at_every_allocation(const Change& change, const Check& check) {
  for (int failures = 0;; ++failures) {
    g_left = failures;
    try {
      change();
      g_left = -1;
      return failures;
    } catch (const std::bad_alloc&) {
      g_left = -1;
      check();
    }
  }
}

Tensor attend_alike(const KVView& kv) {
  Random random(3);
  const Tensor q = random.normal_tensor({3, 2, 1, 4}, Dtype::kFloat32);
  Tensor out({3, 2, 1, 4}, Dtype::kFloat32);
  attention(q, kv, out);
  return out;
}

template <class Cache>
void expect_all_or_nothing(Cache cache) {
  Random random(1);
  const Tensor first = random.normal_tensor({3, 2, 5, 4}, Dtype::kFloat32);
  const Tensor tokens = random.normal_tensor({3, 2, 4, 4}, Dtype::kFloat64);
  cache.append(first, first);  // with a rope, what turns float32 does not do for float64
  const Tensor before = attend_alike(cache.view());
  const auto is_as_before = [&] {
    EXPECT_THAT(cache.lengths(), ::testing::ElementsAre(5, 5, 5));
    EXPECT_TRUE(same_bits(attend_alike(cache.view()), before));
  };
  EXPECT_GT(fail_at_every_allocation([&] { cache.append(tokens, tokens); }, is_as_before), 2);
  cache.truncate(std::vector<std::int64_t>{5, 5, 5});
  is_as_before();
  EXPECT_GT(fail_at_every_allocation([&] { cache.grow(5); }, is_as_before), 0);
}

TEST(KVFailure, AppendingIsAllOrNothing) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kInt8, Dtype::kBFloat16}) {
    expect_all_or_nothing(
        KVCache({.batch = 3, .num_kv_heads = 2, .head_dim = 4, .capacity = 12, .k_dtype = dtype, .v_dtype = dtype}));
    expect_all_or_nothing(KVCache({.batch = 3,
                                   .num_kv_heads = 2,
                                   .head_dim = 4,
                                   .capacity = 12,
                                   .k_dtype = dtype,
                                   .v_dtype = dtype,
                                   .window = 5,
                                   .num_sinks = 1}));
    expect_all_or_nothing(PagedKVCache({.batch = 3,
                                        .num_kv_heads = 2,
                                        .head_dim = 4,
                                        .num_pages = 15,
                                        .page_size = 3,
                                        .k_dtype = dtype,
                                        .v_dtype = dtype}));
  }
}

TEST(KVFailure, AppendingWhatTurnsIsAllOrNothing) {
  const Rope rope(4);
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kInt8, Dtype::kBFloat16}) {
    KVCacheOptions slots{.batch = 3, .num_kv_heads = 2, .head_dim = 4, .capacity = 12, .k_dtype = dtype, .rope = rope};
    slots.v_dtype = dtype;
    expect_all_or_nothing(KVCache(slots));
    slots.window = 5;
    slots.num_sinks = 1;
    expect_all_or_nothing(KVCache(slots));
    PagedKVCacheOptions pages{.batch = 3, .num_kv_heads = 2, .head_dim = 4, .num_pages = 15, .page_size = 3};
    pages.k_dtype = pages.v_dtype = dtype;
    pages.rope = rope;
    expect_all_or_nothing(PagedKVCache(pages));
  }
}

/// Allocations of one more append of a token, after another like it.
std::int64_t allocations_of_append(const std::optional<Rope>& rope, Dtype from, Dtype to) {
  KVCache cache({.num_kv_heads = 2, .head_dim = 8, .capacity = 12, .k_dtype = to, .v_dtype = from, .rope = rope});
  Random random(4);
  const Tensor token = random.normal_tensor({1, 2, 1, 8}, from);
  cache.append(token, token);
  constexpr std::int64_t kMany = 1000;
  g_left = kMany;
  cache.append(token, token);
  return kMany - std::exchange(g_left, -1);
}

TEST(KVFailure, ATokenThatTurnsCostsNoAllocationMore) {
  for (const Dtype from : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBFloat16}) {
    for (const Dtype to : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBFloat16, Dtype::kInt8}) {
      EXPECT_LE(allocations_of_append(Rope(8), from, to), allocations_of_append({}, from, to))
          << name_of(from) << " to " << name_of(to);
    }
  }
}

void expect_no_page_lost(const std::optional<Rope>& rope) {
  PagedKVCache cache({.batch = 3, .num_kv_heads = 2, .head_dim = 4, .num_pages = 6, .page_size = 4, .rope = rope});
  Random random(2);
  const Tensor tokens = random.normal_tensor({3, 2, 4, 4}, Dtype::kFloat64);
  const ConstTensorView strided = tokens.view().permute({0, 1, 3, 2});
  // What is kept from call to call is there: what fails now fails in this one.
  cache.append(strided, tokens, std::vector<std::int64_t>{0, 0, 0});
  fail_at_every_allocation([&] { cache.append(strided, tokens); }, [&] { EXPECT_EQ(cache.num_free_pages(), 6); });
  EXPECT_EQ(cache.num_free_pages(), 3);
}

TEST(KVFailure, PagesAreNotLost) {
  expect_no_page_lost({});
  expect_no_page_lost(Rope(4));
}

TEST(KVFailure, MemoryThatIsNotThereLeavesTheCacheAsItWas) {
  Random random(9);
  KVCache cache(small_options());
  const Tokens tokens(random, {2, 2, 10, 24});
  append(cache, tokens, 0, 10);
  const Tensor q = random.normal_tensor({2, 2, 1, 24}, Dtype::kFloat32);
  const Tensor before = attend_to(q, cache.view());
  EXPECT_THROW(cache.grow(std::int64_t{1} << 30), std::bad_alloc);
  EXPECT_THAT(cache.lengths(), ::testing::ElementsAre(10, 10));
  EXPECT_TRUE(same_bits(attend_to(q, cache.view()), before));
  EXPECT_THROW(KVCache({.head_dim = 128, .capacity = std::int64_t{1} << 45}), std::bad_alloc);
}

}  // namespace
}  // namespace qkv::support
