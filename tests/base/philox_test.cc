#include "base/philox.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace qkv {
namespace {

struct KnownAnswer {
  int rounds;
  Philox::Counter counter;
  Philox::Key key;
  Philox::Counter words;
};

/// The lines "philox4x32" of kat_vectors, which comes with Random123.
constexpr KnownAnswer kKnown[] = {
    {7, {0, 0, 0, 0}, {0, 0}, {0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}},
    {7,
     {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}},
    {7,
     {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}},
    {10, {0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {10,
     {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {10,
     {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

TEST(Philox, GivesTheKnownAnswersOfRandom123) {
  for (const KnownAnswer& known : kKnown) {
    EXPECT_EQ(Philox::words(known.counter, known.key, known.rounds), known.words)
        << known.rounds << " rounds, counter " << known.counter[0];
  }
}

TEST(Philox, TenRoundsAreTheDefault) {
  EXPECT_EQ(Philox::words({1, 2, 3, 4}, {5, 6}), Philox::words({1, 2, 3, 4}, {5, 6}, 10));
}

}  // namespace
}  // namespace qkv
