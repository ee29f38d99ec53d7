#include "qkv/masks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "qkv/error.h"
#include "support/elements.h"

namespace qkv {
namespace {

/// Rows of a mask as text, '1' = attend.
std::string drawn(const Tensor& mask) {
  std::string text;
  support::for_each_index(mask.shape(), [&](const Extents& index) {
    text += support::read(mask.view(), index) != 0 ? '1' : '0';
    if (index[index.size() - 1] == mask.shape()[index.size() - 1] - 1) text += ' ';
  });
  return text;
}

TEST(PaddingMask, IsTrueBelowTheLength) {
  const Tensor mask = padding_mask(std::vector<std::int64_t>{3, 0, 4}, 4);
  EXPECT_EQ(to_string(mask.shape()), "[3, 1, 1, 4]");
  EXPECT_EQ(mask.dtype(), Dtype::kBool);
  EXPECT_EQ(drawn(mask), "1110 0000 1111 ");
  EXPECT_EQ(to_string(padding_mask({}, 4).shape()), "[0, 1, 1, 4]");
}

TEST(PaddingMask, RefusesLengthsOutsideOfTheKeys) {
  try {
    padding_mask(std::vector<std::int64_t>{1, 5}, 4);
    FAIL() << "did not throw";
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(), "qkv::padding_mask: lengths: expected 0 to kv_len = 4, got 5 for batch 1");
  }
  EXPECT_THROW(padding_mask(std::vector<std::int64_t>{-1}, 4), ValueError);
  EXPECT_THROW(padding_mask({}, -1), ValueError);
}

TEST(CausalMask, IsBottomRightByDefault) {
  EXPECT_EQ(to_string(causal_mask(3, 5).shape()), "[3, 5]");
  EXPECT_EQ(drawn(causal_mask(3, 5)), "11100 11110 11111 ");
  EXPECT_EQ(drawn(causal_mask(3, 2)), "00 10 11 ");
}

TEST(CausalMask, TakesAnOffset) {
  EXPECT_EQ(drawn(causal_mask(3, 5, 0)), "10000 11000 11100 ");
  EXPECT_EQ(drawn(causal_mask(2, 2, -1)), "00 10 ");
  EXPECT_EQ(drawn(causal_mask(2, 2, std::numeric_limits<std::int64_t>::max())), "11 11 ");
  EXPECT_EQ(drawn(causal_mask(2, 2, std::numeric_limits<std::int64_t>::min())), "00 00 ");
}

TEST(CausalMask, RefusesNegativeLengths) {
  EXPECT_THROW(causal_mask(-1, 2), ValueError);
  EXPECT_THROW(causal_mask(2, -1), ValueError);
  EXPECT_EQ(causal_mask(0, 3).num_elements(), 0);
}

}  // namespace
}  // namespace qkv
