#include "kernels/rotate.h"

#include <algorithm>
#include <type_traits>

#include "kernels/element.h"
#include "kernels/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rotate.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets the target of each pass.
#include "hwy/highway.h"
#include "kernels/rotate-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

/// Halves of bfloat16 are loaded as words of two, which gives even and odd pairs in different vectors. So their cosines
/// and sines lie in groups of this many: the even ones, then the odd ones. What is left behind the last whole group lies
/// in order.
inline constexpr std::int64_t kGroup = 2 * kMostLanes;

template <class T>
inline constexpr bool kGrouped = std::is_same_v<T, BFloat16>;

/// x cos - y sin and y cos + x sin.
template <class V>
HWY_INLINE Pairs<V> turned(const Pairs<V>& pairs, V cosine, V sine) {
  return {hn::Sub(hn::Mul(pairs.x, cosine), hn::Mul(pairs.y, sine)),
          hn::Add(hn::Mul(pairs.y, cosine), hn::Mul(pairs.x, sine))};
}

/// One pair, by vectors of one lane: of plain numbers GCC 12 makes a fused step where a second pair stands beside, even
/// with -ffp-contract=off.
template <class From, class To>
HWY_INLINE void rotate_pair(const From* x, const From* y, Number<From> cosine, Number<From> sine, To* to_x, To* to_y) {
  using N = Number<From>;
  const hn::CappedTag<N, 1> one;
  const Pairs<hn::Vec<decltype(one)>> given = {hn::Set(one, static_cast<N>(*x)), hn::Set(one, static_cast<N>(*y))};
  const auto result = turned(given, hn::Set(one, cosine), hn::Set(one, sine));
  *to_x = static_cast<To>(static_cast<double>(hn::GetLane(result.x)));
  *to_y = static_cast<To>(static_cast<double>(hn::GetLane(result.y)));
}

/// Pairs i and pairs + i, from `i` on.
template <class From, class To>
HWY_INLINE void rotate_half(const From* from, const Number<From>* turn, std::int64_t pairs, To* to, std::int64_t i) {
  using As = Turned<From>;
  constexpr auto kTag = As::kTag;
  constexpr auto kStep = static_cast<std::int64_t>(hn::MaxLanes(kTag));
  const Number<From>* sines = turn + pairs;
  for (; i + kStep <= pairs; i += kStep) {
    const Pairs<typename As::Vector> given = {load_turned(from + i), load_turned(from + pairs + i)};
    const auto result = turned(given, hn::LoadU(kTag, turn + i), hn::LoadU(kTag, sines + i));
    store_turned(result.x, to + i);
    store_turned(result.y, to + pairs + i);
  }
  for (; i < pairs; ++i) rotate_pair(from + i, from + pairs + i, turn[i], sines[i], to + i, to + pairs + i);
}

#if HWY_TARGET == HWY_SCALAR
template <class To>
void rotate_groups(const BFloat16* from, const float* turn, std::int64_t pairs, To* to) {
  for (std::int64_t i = 0; i < pairs / kGroup * kGroup; ++i) {
    const std::int64_t at = i / kGroup * kGroup + i % 2 * kMostLanes + i % kGroup / 2;
    rotate_pair(from + i, from + pairs + i, turn[at], turn[pairs + at], to + i, to + pairs + i);
  }
}
#else
template <class To>
HWY_INLINE void rotate_groups(const BFloat16* from, const float* turn, std::int64_t pairs, To* to) {
  const float* sines = turn + pairs;
  for (std::int64_t group = 0; group + kGroup <= pairs; group += kGroup) {
    for (std::int64_t i = 0; i < kMostLanes; i += kLanes) {
      const std::int64_t even = group + i;
      const std::int64_t odd = even + kMostLanes;
      const std::int64_t at = group + 2 * i;
      const Pairs<VF> x = load_interleaved(from + at);
      const Pairs<VF> y = load_interleaved(from + pairs + at);
      const auto evens = turned(Pairs<VF>{x.x, y.x}, load(turn + even), load(sines + even));
      const auto odds = turned(Pairs<VF>{x.y, y.y}, load(turn + odd), load(sines + odd));
      store_interleaved(Pairs<VF>{evens.x, odds.x}, to + at);
      store_interleaved(Pairs<VF>{evens.y, odds.y}, to + pairs + at);
    }
  }
}
#endif

template <class From, class To>
HWY_INLINE void rotate_interleaved(const From* from, const Number<From>* turn, std::int64_t pairs, To* to) {
  constexpr auto kTag = Turned<From>::kTag;
  constexpr auto kStep = static_cast<std::int64_t>(hn::MaxLanes(kTag));
  const Number<From>* sines = turn + pairs;
  std::int64_t i = 0;
  for (; i + kStep <= pairs; i += kStep) {
    const auto result = turned(load_interleaved(from + 2 * i), hn::LoadU(kTag, turn + i), hn::LoadU(kTag, sines + i));
    store_interleaved(result, to + 2 * i);
  }
  for (; i < pairs; ++i) {
    rotate_pair(from + 2 * i, from + 2 * i + 1, turn[i], sines[i], to + 2 * i, to + 2 * i + 1);
  }
}

/// Behind the pairs.
template <class From, class To>
HWY_INLINE void copy_rest(const From* from, std::int64_t count, To* to) {
  if constexpr (std::is_same_v<From, To>) {
    std::copy_n(from, count, to);
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(from[i]);
  }
}

/// Into L2: hardware starts anew wherever a run of memory ends, and heads lie far apart.
template <class T>
HWY_INLINE void prefetch_row(const T* row, std::int64_t columns) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = 0; i < columns; i += kLine) __builtin_prefetch(row + i, 0, 2);
}

template <class From, class To>
HWY_INLINE void rotate_all(const Rotation& rotation) {
  const PairLayout& layout = rotation.layout;
  const auto* from = static_cast<const From*>(rotation.from);
  const auto* turn = static_cast<const Number<From>*>(rotation.turns);
  auto* to = static_cast<To*>(rotation.to);
  const bool in_place = rotation.from == rotation.to;
  const std::int64_t grouped = kGrouped<From> ? layout.pairs / kGroup * kGroup : 0;
  for (std::int64_t row = 0; row < rotation.rows; ++row) {
    if (rotation.from_next != 0) {
      prefetch_row(from + rotation.from_next, rotation.columns);
      if (!in_place) prefetch_row(to + rotation.to_next, rotation.columns);
    }
    if (layout.interleaved) {
      rotate_interleaved(from, turn, layout.pairs, to);
    } else {
      if constexpr (kGrouped<From>) rotate_groups(from, turn, layout.pairs, to);
      rotate_half(from, turn, layout.pairs, to, grouped);
    }
    const std::int64_t turned = 2 * layout.pairs;
    if (rotation.columns > turned && !in_place) {
      copy_rest(from + turned, rotation.columns - turned, to + turned);
    }
    from += rotation.from_stride;
    to += rotation.to_stride;
    if (!rotation.alike) turn += turned;
  }
}

void rotate_rows(const Rotation& rotation) {
  const Dtype dtype = rotation.layout.dtype;
  if (dtype == Dtype::kFloat64) return rotate_all<double, double>(rotation);
  visit_storage(dtype, [&]<class From>(From) HWY_ATTR {
    if (rotation.to_dtype == dtype) return rotate_all<From, From>(rotation);
    rotate_all<From, Number<From>>(rotation);
  });
}

/// Cosines and sines of pairs i, i + 1, ...
HWY_INLINE Pairs<VD> product_at(const TurnProduct& product, std::int64_t pairs, std::int64_t i) {
  const Pairs<VD> first = {hn::LoadU(kF64, product.first + i), hn::LoadU(kF64, product.first + pairs + i)};
  const auto both = turned(first, hn::LoadU(kF64, product.second + i), hn::LoadU(kF64, product.second + pairs + i));
  return {hn::Mul(both.x, hn::Set(kF64, product.cosine_factor)), hn::Mul(both.y, hn::Set(kF64, product.sine_factor))};
}

/// From pair `i` on, in order.
template <class To>
HWY_INLINE void multiply(const TurnProduct& product, std::int64_t pairs, To* turn, std::int64_t i) {
  constexpr auto kStep = static_cast<std::int64_t>(hn::MaxLanes(kF64));
  for (; i + kStep <= pairs; i += kStep) {
    const Pairs<VD> both = product_at(product, pairs, i);
    store_turned(both.x, turn + i);
    store_turned(both.y, turn + pairs + i);
  }
  for (; i < pairs; ++i) {
    double cosine = 0;
    double sine = 0;
    rotate_pair(product.first + i, product.first + pairs + i, product.second[i], product.second[pairs + i], &cosine,
                &sine);
    turn[i] = static_cast<To>(cosine * product.cosine_factor);
    turn[pairs + i] = static_cast<To>(sine * product.sine_factor);
  }
}

#if HWY_TARGET == HWY_SCALAR
void multiply_group(const TurnProduct& product, std::int64_t pairs, float* turn, std::int64_t group) {
  for (std::int64_t i = 0; i < kGroup; ++i) {
    const Pairs<VD> both = product_at(product, pairs, group + i);
    const std::int64_t at = group + i % 2 * kMostLanes + i / 2;
    store_turned(both.x, turn + at);
    store_turned(both.y, turn + pairs + at);
  }
}
#else
HWY_INLINE void store_even_and_odd(VD low, VD high, float* to) {
  const auto a = hn::DemoteTo(kNarrowF32, low);
  const auto b = hn::DemoteTo(kNarrowF32, high);
  hn::StoreU(hn::ConcatEven(kNarrowF32, b, a), kNarrowF32, to);
  hn::StoreU(hn::ConcatOdd(kNarrowF32, b, a), kNarrowF32, to + kMostLanes);
}

HWY_INLINE void multiply_group(const TurnProduct& product, std::int64_t pairs, float* turn, std::int64_t group) {
  constexpr auto kStep = static_cast<std::int64_t>(hn::MaxLanes(kF64));
  for (std::int64_t i = 0; i < kGroup; i += 2 * kStep) {
    const Pairs<VD> low = product_at(product, pairs, group + i);
    const Pairs<VD> high = product_at(product, pairs, group + i + kStep);
    store_even_and_odd(low.x, high.x, turn + group + i / 2);
    store_even_and_odd(low.y, high.y, turn + pairs + group + i / 2);
  }
}
#endif

void multiply_turns(const PairLayout& layout, const TurnProduct& product, void* turn) {
  const std::int64_t pairs = layout.pairs;
  if (size_of(layout.dtype) > 2) return multiply(product, pairs, static_cast<double*>(turn), 0);
  auto* floats = static_cast<float*>(turn);
  std::int64_t done = 0;
  if (layout.dtype == Dtype::kBFloat16 && !layout.interleaved) {
    for (; done + kGroup <= pairs; done += kGroup) multiply_group(product, pairs, floats, done);
  }
  multiply(product, pairs, floats, done);
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace qkv::kernels {

HWY_EXPORT(rotate_rows);
HWY_EXPORT(multiply_turns);

void rotate(const Rotation& rotation) { HWY_DYNAMIC_DISPATCH(rotate_rows)(rotation); }

void make_turn(const PairLayout& layout, const TurnProduct& product, void* turn) {
  HWY_DYNAMIC_DISPATCH(multiply_turns)(layout, product, turn);
}

}  // namespace qkv::kernels
#endif  // HWY_ONCE
