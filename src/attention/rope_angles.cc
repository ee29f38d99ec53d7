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
    : angles_(&angles),
      low_room_(2 * angles.frequencies().size()),
      middle_room_(low_room_.size()),
      high_(low_room_.size()),
      product_(low_room_.size()) {}

TurnParts RopeTurner::at(std::int64_t position) {
  constexpr std::int64_t kDigits = RopeAngles::kDigits;
  // A position below 0 turns the other way, exactly.
  const std::int64_t size = position < 0 ? -position : position;
  if (size / kDigits != upper_digits_) {
    upper_digits_ = size / kDigits;
    set_upper();
  }
  return {upper_, angles_->look_up(angles_->low_, size % kDigits, 1, low_room_.data()), position < 0};
}

void RopeTurner::set_upper() {
  constexpr std::int64_t kDigits = RopeAngles::kDigits;
  const double* middle = angles_->look_up(angles_->middle_, upper_digits_ % kDigits, kDigits, middle_room_.data());
  upper_ = middle;
  const std::int64_t high = upper_digits_ / kDigits;
  if (high == 0) return;  // a turn by nothing changes no bit of a product
  if (high != high_digits_) {
    angles_->compute(high * kDigits * kDigits, high_.data());
    high_digits_ = high;
  }
  const kernels::PairLayout layout{.dtype = Dtype::kFloat64, .pairs = angles_->count()};
  kernels::make_turn(layout, {.first = high_.data(), .second = middle}, product_.data());
  upper_ = product_.data();
}

}  // namespace qkv::attention_detail
