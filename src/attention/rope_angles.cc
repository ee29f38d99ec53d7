#include "attention/rope_angles.h"

#include <cmath>
#include <cstddef>
#include <utility>

#include "kernels/rotate.h"

namespace qkv::attention_detail {

RopeAngles::RopeAngles(std::vector<double> frequencies, bool with_tables) : frequencies_(std::move(frequencies)) {
  if (!with_tables) return;
  const std::int64_t width = 2 * count();
  low_.resize(static_cast<std::size_t>(kDigits * width));
  middle_.resize(low_.size());
  for (std::int64_t digit = 0; digit < kDigits; ++digit) {
    compute(digit, low_.data() + digit * width);
    compute(digit * kDigits, middle_.data() + digit * width);
  }
}

void RopeAngles::compute(std::int64_t position, double* turn) const {
  for (std::size_t i = 0; i < frequencies_.size(); ++i) {
    const double angle = static_cast<double>(position) * frequencies_[i];
    turn[i] = std::cos(angle);
    turn[frequencies_.size() + i] = std::sin(angle);
  }
}

const double* RopeAngles::look_up(const std::vector<double>& table, std::int64_t digit, std::int64_t step,
                                  double* room) const {
  if (!table.empty()) return table.data() + digit * 2 * count();
  compute(digit * step, room);
  return room;
}

RopeTurner::RopeTurner(const RopeAngles& angles)
    : angles_(&angles), upper_(2 * angles.frequencies().size()), room_(2 * upper_.size()) {}

TurnParts RopeTurner::at(std::int64_t position) {
  constexpr std::int64_t kDigits = RopeAngles::kDigits;
  // A position below 0 turns the other way, exactly.
  const std::int64_t size = position < 0 ? -position : position;
  const std::int64_t upper = size / kDigits;
  double* room = room_.data();
  if (upper != upper_digits_) {
    double* high = room + upper_.size();
    angles_->compute(upper / kDigits * kDigits * kDigits, high);
    const double* middle = angles_->look_up(angles_->middle_, upper % kDigits, kDigits, room);
    const kernels::PairLayout layout{.dtype = Dtype::kFloat64, .pairs = angles_->count()};
    kernels::make_turn(layout, {.first = high, .second = middle}, upper_.data());
    upper_digits_ = upper;
  }
  return {upper_.data(), angles_->look_up(angles_->low_, size % kDigits, 1, room), position < 0};
}

}  // namespace qkv::attention_detail
