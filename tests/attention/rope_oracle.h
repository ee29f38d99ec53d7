#ifndef QKV_TESTS_ATTENTION_ROPE_ORACLE_H_
#define QKV_TESTS_ATTENTION_ROPE_ORACLE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "qkv/position.h"
#include "support/compare.h"
#include "support/elements.h"

namespace qkv::support {

/// Where row i of batch b is.
inline std::int64_t position_of(const Positions& positions, std::int64_t b, std::int64_t i) {
  if (!positions.ids()) return positions.first() + i;
  const ConstTensorView& ids = *positions.ids();
  const Extents index = ids.rank() == 1 ? Extents{i} : Extents{ids.extent(0) == 1 ? 0 : b, i};
  return static_cast<std::int64_t>(read(ids, index));
}

/// Both columns of a pair, and the angle.
struct OnePair {
  Extents x;
  Extents y;
  long double angle;
};

/// Calls visit(pair) for every pair of x, which has four axes.
template <class Visit>
void for_each_pair(const Rope& rope, const Positions& positions, const Extents& shape, Visit visit) {
  const std::vector<double> frequencies = rope.frequencies();
  const auto pairs = static_cast<std::int64_t>(frequencies.size());
  const bool interleaved = rope.options().layout == RopeLayout::kInterleaved;
  for_each_index({shape[0], shape[1], shape[2], pairs}, [&](const Extents& index) {
    const std::int64_t i = index[3];
    OnePair pair{index, index, 0};
    pair.x[3] = interleaved ? 2 * i : i;
    pair.y[3] = interleaved ? 2 * i + 1 : pairs + i;
    pair.angle = static_cast<long double>(position_of(positions, index[0], index[2])) *
                 static_cast<long double>(frequencies[static_cast<std::size_t>(i)]);
    visit(pair);
  });
}

/// That `out` is x turned, in long double, and rounded once: half a unit in the last place, what the angle may be off by,
/// and of 16 bits a few roundings of f32.
inline void expect_rotated(const Rope& rope, const ConstTensorView& x, const Positions& positions,
                           const ConstTensorView& out) {
  ASSERT_TRUE(comparable(out, x));
  const double on_the_way = size_of(x.dtype()) == 2 ? 4 * 0x1p-24 : 0x1p-50;
  const double tiny = x.dtype() == Dtype::kFloat16 ? 0x1p-25 : 0;
  std::int64_t wrong = 0;
  const auto expect = [&](const Extents& at, long double exact, double size, double angle) {
    const double allowed = 0.50001 * epsilon_of(x.dtype()) * static_cast<double>(std::abs(exact)) + tiny +
                           (on_the_way + std::abs(angle) * 0x1p-52) * size;
    const auto off = static_cast<double>(std::abs(static_cast<long double>(read(out, at)) - exact));
    if (off <= allowed || ++wrong > 3) return;
    ADD_FAILURE() << name_of(x.dtype()) << " at " << to_string(at) << ": " << read(out, at) << ", expected "
                  << static_cast<double>(exact) << " to " << allowed << ", angle " << angle;
  };
  const auto factor = static_cast<long double>(rope.attention_factor());
  for_each_pair(rope, positions, x.shape(), [&](const OnePair& pair) {
    const long double a = static_cast<long double>(read(x, pair.x)) * factor;
    const long double b = static_cast<long double>(read(x, pair.y)) * factor;
    const auto size = static_cast<double>(std::hypot(a, b));
    const auto angle = static_cast<double>(pair.angle);
    expect(pair.x, a * std::cos(pair.angle) - b * std::sin(pair.angle), size, angle);
    expect(pair.y, b * std::cos(pair.angle) + a * std::sin(pair.angle), size, angle);
  });
  for_each_index(x.shape(), [&](const Extents& index) {
    if (index[3] < *rope.options().rotary_dim) return;
    EXPECT_EQ(read(out, index), read(x, index)) << "column " << index[3] << " does not turn";
  });
}

inline constexpr Dtype kRealDtypes[] = {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16};

}  // namespace qkv::support

#endif  // QKV_TESTS_ATTENTION_ROPE_ORACLE_H_
