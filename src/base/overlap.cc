#include "base/overlap.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "base/checked.h"

namespace qkv {
namespace {

// Both questions are one: has sum_k step_k * x_k = target a solution with 0 <= x_k <= most_k? Steps are positive.
// Finding one is hard in general, but with the steps in descending order the rest of a dense layout can hardly reach
// beyond one step of the current axis, so the search is a straight line there.

struct Term {
  std::int64_t step = 0;
  std::int64_t most = 0;
};

constexpr int kMaxTerms = 2 * (kMaxRank + 1);
constexpr int kMaxVisits = 20'000;

class Search {
 public:
  /// False where a sum does not fit 63 bits.
  bool add(std::int64_t step, std::int64_t most) {
    if (step == 0 || most == 0) return true;
    const auto reach = checked_mul(step, most);
    const auto total = reach ? checked_add(total_, *reach) : std::nullopt;
    if (!total) return false;
    total_ = *total;
    for (Term& term : std::span(terms_.data(), size_)) {
      if (term.step == step) {
        term.most += most;
        return true;
      }
    }
    terms_[size_++] = {step, most};
    return true;
  }

  /// "Yes" where the search takes too long.
  bool solvable(std::int64_t target) {
    std::sort(terms_.begin(), terms_.begin() + size_, [](const Term& a, const Term& b) { return a.step > b.step; });
    reach_[size_] = 0;
    divisor_[size_] = 0;
    for (std::size_t k = size_; k-- > 0;) {
      reach_[k] = reach_[k + 1] + terms_[k].step * terms_[k].most;
      divisor_[k] = std::gcd(divisor_[k + 1], terms_[k].step);
    }
    visits_ = 0;
    return search(0, target);
  }

 private:
  bool search(std::size_t k, std::int64_t target) {
    if (target < 0 || target > reach_[k]) return false;
    if (target == 0) return true;
    if (k == size_ || target % divisor_[k] != 0) return false;
    const auto [step, most] = terms_[k];
    const std::int64_t missing = std::max<std::int64_t>(0, target - reach_[k + 1]);
    const std::int64_t first = missing / step + (missing % step != 0 ? 1 : 0);
    const std::int64_t last = std::min(most, target / step);
    for (std::int64_t x = first; x <= last; ++x) {
      if (++visits_ > kMaxVisits) return true;
      if (search(k + 1, target - x * step)) return true;
    }
    return false;
  }

  std::array<Term, kMaxTerms> terms_ = {};
  std::size_t size_ = 0;
  std::int64_t total_ = 0;
  std::array<std::int64_t, kMaxTerms + 1> reach_ = {};    // largest sum of the terms from k on
  std::array<std::int64_t, kMaxTerms + 1> divisor_ = {};  // every such sum is a multiple of this
  int visits_ = 0;
};

std::int64_t item_size(const ConstTensorView& view) { return static_cast<std::int64_t>(size_of(view.dtype())); }

/// The bytes [low, high] that hold a non-empty view, by address.
struct Interval {
  std::int64_t low = 0;
  std::int64_t high = 0;
};

/// Empty where an address, or the distance from low to high, does not fit 63 bits.
std::optional<Interval> bounds(const ConstTensorView& view) {
  const auto address = reinterpret_cast<std::uintptr_t>(view.data());
  if (address > static_cast<std::uintptr_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  Interval interval{static_cast<std::int64_t>(address), static_cast<std::int64_t>(address)};
  for (int axis = 0; axis < view.rank(); ++axis) {
    const auto elements = checked_mul(view.extent(axis) - 1, view.stride(axis));
    const auto reach = elements ? checked_mul(*elements, item_size(view)) : std::nullopt;
    std::int64_t& end = reach && *reach < 0 ? interval.low : interval.high;
    const auto moved = reach ? checked_add(end, *reach) : std::nullopt;
    if (!moved) return std::nullopt;
    end = *moved;
  }
  const auto high = checked_add(interval.high, item_size(view) - 1);
  if (!high || !checked_sub(*high, interval.low)) return std::nullopt;
  interval.high = *high;
  return interval;
}

/// The bytes of a view as terms: one for each axis, and one for the bytes within an element.
bool add_bytes(const ConstTensorView& view, Search& search) {
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.extent(axis) == 1) continue;
    // bounds() has shown that this product fits.
    if (!search.add(std::abs(view.stride(axis)) * item_size(view), view.extent(axis) - 1)) return false;
  }
  return search.add(1, item_size(view) - 1);
}

/// Whether each axis steps over everything that the smaller ones span, as in every dense or padded layout.
bool nests(std::span<const Term> ascending) {
  std::int64_t span = 0;
  for (const Term& axis : ascending) {
    if (axis.step <= span) return false;
    span += axis.step * axis.most;
  }
  return true;
}

/// Whether two indices that differ in `leading`, and else only in `lesser`, meet. With d the difference of the indices:
/// leading.step * d + sum step_k * d_k = 0, 1 <= d <= most, |d_k| <= most_k; shifted so that every unknown starts at 0.
bool axes_meet(const Term& leading, std::span<const Term> lesser) {
  Search search;
  std::int64_t target = -leading.step;
  if (!search.add(leading.step, leading.most - 1)) return true;
  for (const Term& axis : lesser) {
    const auto width = checked_mul(axis.most, 2);
    if (!width || !search.add(axis.step, *width)) return true;
    target += axis.step * axis.most;
  }
  return search.solvable(target);
}

}  // namespace

bool share_memory(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.num_elements() == 0 || b.num_elements() == 0) return false;
  const auto in_a = bounds(a);
  const auto in_b = bounds(b);
  if (!in_a || !in_b) return true;
  if (in_a->high < in_b->low || in_b->high < in_a->low) return false;
  // a.low + bytes of a = b.low + bytes of b; counting b's down from its end makes every sign positive.
  Search search;
  if (!add_bytes(a, search) || !add_bytes(b, search)) return true;
  return search.solvable(in_b->high - in_a->low);
}

bool has_internal_overlap(const ConstTensorView& view) {
  if (view.num_elements() <= 1) return false;
  if (!bounds(view)) return true;
  std::vector<Term> axes;
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.extent(axis) == 1) continue;
    if (view.stride(axis) == 0) return true;
    axes.push_back({std::abs(view.stride(axis)), view.extent(axis) - 1});
  }
  std::sort(axes.begin(), axes.end(), [](const Term& a, const Term& b) { return a.step < b.step; });
  if (nests(axes)) return false;
  for (std::size_t k = 1; k < axes.size(); ++k) {
    if (axes_meet(axes[k], std::span(axes).first(k))) return true;
  }
  return false;
}

}  // namespace qkv
