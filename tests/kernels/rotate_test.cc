// Turning pairs, on every instruction set that it is built for: the bits of the formula written down plainly.
#include "kernels/rotate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/element.h"
#include "support/built_target.h"
#include "support/compare.h"
#include "support/guarded.h"
#include "support/random.h"

namespace qkv::kernels {
namespace {

using support::Guarded;
using support::Random;
using support::read;
using support::same_bits;
using support::write;

constexpr std::int64_t kRows = 3;
constexpr std::int64_t kRest = 5;  ///< columns behind the pairs

/// A turn by two random angles, and what it is worth as doubles.
struct Turn {
  std::vector<double> first, second;
  double cosine_factor = 0.75;
  double sine_factor = -1.25;

  Turn(std::int64_t pairs, Random& random) {
    for (std::int64_t i = 0; i < 2 * pairs; ++i) {
      first.push_back(random.uniform(-1, 1));
      second.push_back(random.uniform(-1, 1));
    }
  }
  std::int64_t pairs() const { return static_cast<std::int64_t>(first.size()) / 2; }
  TurnProduct product() const { return {first.data(), second.data(), cosine_factor, sine_factor}; }
  double cosine(std::int64_t i) const {
    const auto at = static_cast<std::size_t>(i);
    const auto sine = static_cast<std::size_t>(pairs() + i);
    return (first[at] * second[at] - first[sine] * second[sine]) * cosine_factor;
  }
  double sine(std::int64_t i) const {
    const auto at = static_cast<std::size_t>(i);
    const auto sine = static_cast<std::size_t>(pairs() + i);
    return (first[sine] * second[at] + first[at] * second[sine]) * sine_factor;
  }
};

/// What the pairs of a row become, with numbers of this type on the way.
template <class Number>
void expect_row(const TensorView& expected, const TensorView& x, std::int64_t row, const Turn& turn, bool interleaved) {
  for (std::int64_t c = 2 * turn.pairs(); c < x.extent(1); ++c) write(expected, {row, c}, read(x, {row, c}));
  for (std::int64_t i = 0; i < turn.pairs(); ++i) {
    const Extents at_x = {row, interleaved ? 2 * i : i};
    const Extents at_y = {row, interleaved ? 2 * i + 1 : turn.pairs() + i};
    const auto a = static_cast<Number>(read(x, at_x));
    const auto b = static_cast<Number>(read(x, at_y));
    const auto cosine = static_cast<Number>(turn.cosine(i));
    const auto sine = static_cast<Number>(turn.sine(i));
    write(expected, at_x, static_cast<double>(a * cosine - b * sine));
    write(expected, at_y, static_cast<double>(b * cosine + a * sine));
  }
}

/// Layout, and the dtype of the result.
struct Case {
  PairLayout layout;
  Dtype to;
  bool alike = false;
  bool in_place = false;
};

void expect_bits(const Case& given) {
  const PairLayout& layout = given.layout;
  SCOPED_TRACE(::testing::Message() << name_of(layout.dtype) << " to " << name_of(given.to) << ", " << layout.pairs
                                    << " pairs, interleaved " << layout.interleaved << ", alike " << given.alike);
  Random random(static_cast<std::uint64_t>(layout.pairs));
  const std::int64_t columns = 2 * layout.pairs + kRest;
  const Guarded x({kRows, columns}, layout.dtype, support::Layout::kPadded);
  random.fill_normal(x.view());
  std::vector<char> turns(static_cast<std::size_t>(kRows * layout.turn_bytes()));
  Tensor expected({kRows, columns}, given.to);
  Turn turn(layout.pairs, random);
  for (std::int64_t row = 0; row < kRows; ++row) {
    if (!given.alike) turn = Turn(layout.pairs, random);
    make_turn(layout, turn.product(), turns.data() + (given.alike ? 0 : row) * layout.turn_bytes());
    const auto expect = size_of(layout.dtype) > 2 ? &expect_row<double> : &expect_row<float>;
    expect(expected, x.view(), row, turn, layout.interleaved);
  }
  const Guarded result({kRows, columns}, given.to, support::Layout::kPadded);
  const TensorView& to = given.in_place ? x.view() : result.view();
  rotate({.layout = layout,
          .to_dtype = given.to,
          .columns = columns,
          .rows = kRows,
          .turns = turns.data(),
          .alike = given.alike,
          .from = x.view().data(),
          .from_stride = x.view().stride(0),
          .to = to.data(),
          .to_stride = to.stride(0)});
  EXPECT_TRUE(same_bits(to, expected));
  EXPECT_TRUE(result.intact());
  EXPECT_TRUE(x.intact());
}

class Rotate : public support::OnBuiltTarget {};

TEST_P(Rotate, HasTheBitsOfTheFormula) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16}) {
    for (const std::int64_t pairs : {1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 40, 64, 70, 97}) {
      for (const bool interleaved : {false, true}) {
        const PairLayout layout{.dtype = dtype, .interleaved = interleaved, .pairs = pairs};
        expect_bits({.layout = layout, .to = dtype});
        expect_bits({.layout = layout, .to = dtype, .alike = true});
        expect_bits({.layout = layout, .to = dtype, .in_place = true});
        if (size_of(dtype) == 2) expect_bits({.layout = layout, .to = Dtype::kFloat32});
        if (dtype == Dtype::kFloat32) expect_bits({.layout = layout, .to = Dtype::kFloat64});
      }
    }
  }
}

TEST_P(Rotate, KeepsNaNToItsPair) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16}) {
    for (const bool interleaved : {false, true}) {
      constexpr std::int64_t kPairs = 32;
      const PairLayout layout{.dtype = dtype, .interleaved = interleaved, .pairs = kPairs};
      for (const double value : {support::kNaN, support::kInf}) {
        Random random(1);
        Tensor x = random.normal_tensor({1, 2 * kPairs}, dtype);
        write(x, {0, 6}, value);
        std::vector<char> turn(static_cast<std::size_t>(layout.turn_bytes()));
        make_turn(layout, Turn(kPairs, random).product(), turn.data());
        rotate({.layout = layout,
                .to_dtype = dtype,
                .columns = 2 * kPairs,
                .rows = 1,
                .turns = turn.data(),
                .from = x.view().data(),
                .to = x.view().data()});
        for (std::int64_t c = 0; c < 2 * kPairs; ++c) {
          const bool touched = c == 6 || c == (interleaved ? 7 : 6 + kPairs);
          EXPECT_EQ(std::isfinite(read(x, {0, c})), !touched) << name_of(dtype) << " column " << c;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(On, Rotate, ::testing::ValuesIn(support::built_targets()), support::built_target_name);

}  // namespace
}  // namespace qkv::kernels
