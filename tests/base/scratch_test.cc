#include "base/scratch.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>

namespace qkv {
namespace {

/// On a thread of its own: scratch memory is each thread's, and none has been used there.
template <class Body>
void on_fresh_thread(Body body) {
  std::thread(body).join();
}

TEST(Scratch, PiecesAreAlignedAndApart) {
  on_fresh_thread([] {
    ScratchArena arena;
    auto* first = arena.take<char>(1);
    auto* second = arena.take<float>(100);
    auto* third = arena.take<float>(1);
    for (const void* piece : {static_cast<void*>(first), static_cast<void*>(second), static_cast<void*>(third)}) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(piece) % 64, 0U);
    }
    EXPECT_GE(reinterpret_cast<char*>(second), first + 1);
    EXPECT_GE(third, second + 100);
  });
}

TEST(Scratch, GrowthMovesNothing) {
  on_fresh_thread([] {
    ScratchArena arena;
    constexpr std::int64_t kBytes = 300 << 10;
    auto* first = arena.take<unsigned char>(kBytes);
    std::memset(first, 7, kBytes);
    auto* second = arena.take<unsigned char>(4 * kBytes);
    std::memset(second, 9, 4 * kBytes);
    EXPECT_EQ(first[0], 7);
    EXPECT_EQ(first[kBytes - 1], 7);
  });
}

TEST(Scratch, SizesThatDoNotFitAreMemoryThatNobodyHas) {
  on_fresh_thread([] {
    ScratchArena arena;
    for (const std::int64_t count : {std::int64_t{1} << 61, std::int64_t{1} << 62, INT64_MAX}) {
      EXPECT_THROW(arena.take<float>(count), std::bad_alloc) << count;
    }
    EXPECT_EQ(scratch_bytes(), 0U);
  });
}

TEST(Scratch, TheNextArenaUsesTheSameMemory) {
  on_fresh_thread([] {
    EXPECT_EQ(scratch_bytes(), 0U);
    const auto fill = [] {
      ScratchArena arena;
      for (int i = 0; i < 5; ++i) arena.take<float>(100'000);
    };
    fill();
    const std::size_t after_one = scratch_bytes();
    EXPECT_GE(after_one, 5U * 400'000U);
    for (int i = 0; i < 20; ++i) fill();
    EXPECT_LE(scratch_bytes(), 2 * after_one) << "scratch grows from call to call";
  });
}

}  // namespace
}  // namespace qkv
