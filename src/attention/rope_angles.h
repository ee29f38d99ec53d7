#ifndef QKV_SRC_ATTENTION_ROPE_ANGLES_H_
#define QKV_SRC_ATTENTION_ROPE_ANGLES_H_

#include <cstdint>
#include <vector>

namespace qkv::attention_detail {

/// Positions whose neighbours differ by 1 in f64.
inline constexpr std::int64_t kFarthestPosition = std::int64_t{1} << 53;

/// A turn as the product of two, each as cosines, then sines, of all frequencies; with the sines negated, where `back`.
struct TurnParts {
  const double* upper = nullptr;
  const double* lower = nullptr;
  bool back = false;
};

/// cos(p w) and sin(p w) for frequencies w, in f64. The position is taken apart, p = 16384 c + 128 b + a, and the three
/// turns are multiplied, since a sine costs as much as ten such products. All positions go this way, with tables or
/// without, so that the bits are a function of p and w alone.
class RopeAngles {
 public:
  /// Tables hold all turns by 0 .. 127 and by 0 .. 127 * 128 positions, 4 KiB a frequency; they pay from some hundred
  /// positions on.
  RopeAngles(std::vector<double> frequencies, bool with_tables);

  std::int64_t count() const noexcept { return static_cast<std::int64_t>(frequencies_.size()); }
  const std::vector<double>& frequencies() const noexcept { return frequencies_; }

 private:
  friend class RopeTurner;
  static constexpr std::int64_t kDigits = 128;

  /// The turn by a number of positions: cosines, then sines.
  void compute(std::int64_t position, double* turn) const;
  /// The same, from a table where there is one: by `digit` of its steps.
  const double* look_up(const std::vector<double>& table, std::int64_t digit, std::int64_t step, double* room) const;

  std::vector<double> frequencies_;
  std::vector<double> low_;     ///< [kDigits, 2, count()], or empty
  std::vector<double> middle_;  ///< the same
};

/// Goes from position to position, for one thread.
class RopeTurner {
 public:
  explicit RopeTurner(const RopeAngles& angles);
  /// Of a position from -kFarthestPosition to kFarthestPosition. Valid until the next call.
  TurnParts at(std::int64_t position);

 private:
  void set_upper();

  const RopeAngles* angles_;
  std::int64_t upper_digits_ = -1;  ///< of the last position, without its lowest digit: neighbours share them
  std::int64_t high_digits_ = 0;
  const double* upper_ = nullptr;  ///< the turn by 128 * upper_digits_ positions
  std::vector<double> low_room_, middle_room_, high_, product_;
};

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_ROPE_ANGLES_H_
