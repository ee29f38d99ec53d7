#include "kernels/slot_index.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace qkv::kernels {
namespace {

std::vector<std::int64_t> places(const SlotIndex& index, std::int64_t chosen) {
  std::vector<std::int64_t> all;
  for (const SlotIndex::Slot& slot : index.of(chosen)) {
    EXPECT_EQ(slot.chosen, chosen);
    all.push_back(slot.place);
  }
  return all;
}

using List = std::vector<std::int64_t>;

TEST(SlotIndex, FindsEveryPlaceInOrder) {
  const SlotIndex index(List{7, 0, 7, 3, 7, 0});
  EXPECT_EQ(places(index, 7), (List{0, 2, 4}));
  EXPECT_EQ(places(index, 0), (List{1, 5}));
  EXPECT_EQ(places(index, 3), (List{3}));
}

TEST(SlotIndex, WhatIsNotListedHasNoPlace) {
  const SlotIndex index(List{7, 0, 3});
  for (const std::int64_t absent : {-1, 1, 4, 8, 1000}) EXPECT_TRUE(places(index, absent).empty()) << absent;
  EXPECT_TRUE(places(SlotIndex(), 0).empty());
  EXPECT_TRUE(places(SlotIndex(List{}), 0).empty());
}

TEST(SlotIndex, APartIsCountedFromItsFirstNumber) {
  const SlotIndex index(List{7, 0, 7, 3, 4, 0});
  const SlotIndex part = index.within(3, 7);
  EXPECT_EQ(places(part, 0), (List{3}));
  EXPECT_EQ(places(part, 1), (List{4}));
  for (const std::int64_t absent : {-3, 3, 4, 7}) EXPECT_TRUE(places(part, absent).empty()) << absent;
  EXPECT_EQ(places(index.within(7, 8), 0), (List{0, 2}));
  EXPECT_TRUE(places(index.within(1, 3), 0).empty());
}

}  // namespace
}  // namespace qkv::kernels
