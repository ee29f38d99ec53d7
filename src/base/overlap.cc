#include "base/overlap.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <optional>
#include <span>

#include "base/checked.h"
#include "base/shape.h"

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

/// Widens [low, high] by the reach of one axis. False where something does not fit.
bool widen(const ConstTensorView& view, int axis, std::int64_t item, Footprint& footprint) {
  const auto elements = checked_mul(view.extent(axis) - 1, view.stride(axis));
  const auto reach = elements ? checked_mul(*elements, item) : std::nullopt;
  std::int64_t& end = reach && *reach < 0 ? footprint.low : footprint.high;
  const auto moved = reach ? checked_add(end, *reach) : std::nullopt;
  if (moved) end = *moved;
  return moved.has_value();
}

/// The bytes of a view as terms: one for each axis, and one for the bytes within an element.
bool add_bytes(const ConstTensorView& view, Search& search) {
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.extent(axis) == 1) continue;
    // The footprint has shown that this product fits.
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

Footprint::Footprint(const ConstTensorView& of) : view(of), empty(has_no_elements(of.shape())) {
  const auto address = reinterpret_cast<std::uintptr_t>(view.data());
  if (empty || address > static_cast<std::uintptr_t>(std::numeric_limits<std::int64_t>::max())) return;
  const std::int64_t item = item_size(view);
  low = high = static_cast<std::int64_t>(address);
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (!widen(view, axis, item, *this)) return;
  }
  const auto last = checked_add(high, item - 1);
  if (!last || !checked_sub(*last, low)) return;
  high = *last;
  bounded = true;
}

bool share_memory(const Footprint& a, const Footprint& b) {
  if (a.empty || b.empty) return false;
  if (!a.bounded || !b.bounded) return true;
  if (a.high < b.low || b.high < a.low) return false;
  // a.low + bytes of a = b.low + bytes of b; counting b's down from its end makes every sign positive.
  Search search;
  if (!add_bytes(a.view, search) || !add_bytes(b.view, search)) return true;
  return search.solvable(b.high - a.low);
}

bool has_internal_overlap(const Footprint& footprint) {
  if (footprint.empty) return false;
  if (!footprint.bounded) return true;
  const ConstTensorView& view = footprint.view;
  std::array<Term, kMaxRank> all = {};
  std::size_t count = 0;
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.extent(axis) == 1) continue;
    if (view.stride(axis) == 0) return true;
    all[count++] = {std::abs(view.stride(axis)), view.extent(axis) - 1};
  }
  const std::span<Term> axes = std::span(all).first(count);
  std::sort(axes.begin(), axes.end(), [](const Term& a, const Term& b) { return a.step < b.step; });
  if (nests(axes)) return false;
  for (std::size_t k = 1; k < axes.size(); ++k) {
    if (axes_meet(axes[k], axes.first(k))) return true;
  }
  return false;
}

}  // namespace qkv
