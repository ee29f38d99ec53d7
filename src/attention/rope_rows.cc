#include "attention/rope_rows.h"

#include <type_traits>
#include <utility>

#include "attention/rope_frequencies.h"
#include "base/element.h"

namespace qkv {

Rope::State::State(std::int64_t head_dim_given, const RopeOptions& options_given)
    : head_dim(head_dim_given),
      options(attention_detail::checked_rope_options(head_dim_given, options_given)),
      attention_factor(attention_detail::attention_factor_of(options)),
      angles(std::make_shared<const attention_detail::RopeAngles>(
          attention_detail::rope_frequencies(options, std::nullopt), /*with_tables=*/true)) {}

std::shared_ptr<const attention_detail::RopeAngles> Rope::State::angles_for(std::optional<std::int64_t> seq_len,
                                                                            std::int64_t positions) const {
  const bool stretched =
      std::holds_alternative<DynamicScaling>(options.scaling) && seq_len && *seq_len > *options.max_position;
  if (!stretched) return angles;
  constexpr std::int64_t kManyPositions = 256;
  return std::make_shared<const attention_detail::RopeAngles>(attention_detail::rope_frequencies(options, seq_len),
                                                              positions >= kManyPositions);
}

namespace attention_detail {
namespace {

/// Elements `from_step` apart to places `to_step` apart, rounded if the types differ.
template <class From, class To>
void move_numbers(const From* from, std::int64_t from_step, To* to, std::int64_t to_step, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<From, To>) {
      to[i * to_step] = from[i * from_step];
    } else {
      to[i * to_step] = static_cast<To>(static_cast<double>(from[i * from_step]));
    }
  }
}

}  // namespace

RopeRows::RopeRows(const Rope& rope, RopePass pass, Dtypes dtypes, std::shared_ptr<const RopeAngles> angles,
                   std::int64_t num_turns)
    : angles_(std::move(angles)), turner_(*angles_), to_(dtypes.to) {
  const Rope::State& state = *rope.state_;
  const bool sixteen_bits = size_of(dtypes.from) == 2;
  const Dtype turned = sixteen_bits ? Dtype::kFloat32 : Dtype::kFloat64;
  direct_ = dtypes.to == dtypes.from || dtypes.to == turned;
  rotation_.layout = {
      .dtype = dtypes.from, .interleaved = state.options.layout == RopeLayout::kInterleaved, .pairs = angles_->count()};
  rotation_.to_dtype = direct_ ? dtypes.to : sixteen_bits ? Dtype::kFloat32 : dtypes.from;
  rotation_.columns = state.head_dim;
  const double factor = state.attention_factor;
  cosine_factor_ = pass == RopePass::kInverse ? 1 / factor : factor;
  sine_factor_ = pass == RopePass::kForward ? factor : -cosine_factor_;
  turns_ = allocate_aligned(static_cast<std::size_t>(num_turns * rotation_.layout.turn_bytes()));
}

RopeRows::RopeRows(const Rope& rope, Dtypes dtypes, std::int64_t num_turns)
    : RopeRows(rope, RopePass::kForward, dtypes, rope.state_->angles, num_turns) {}

void RopeRows::reserve() {
  row_.resize(static_cast<std::size_t>(rotation_.columns));
  turned_.resize(row_.size());
}

void RopeRows::set_turn(std::int64_t index, std::int64_t position) {
  const TurnParts parts = turner_.at(position);
  const kernels::TurnProduct product{.first = parts.upper,
                                     .second = parts.lower,
                                     .cosine_factor = cosine_factor_,
                                     .sine_factor = parts.back ? -sine_factor_ : sine_factor_};
  kernels::make_turn(rotation_.layout, product, turns_.get() + index * rotation_.layout.turn_bytes());
}

kernels::Rotation RopeRows::rotation_of(const RopeStrip& strip) const {
  kernels::Rotation rotation = rotation_;
  rotation.turns = turns_.get() + strip.turn * rotation.layout.turn_bytes();
  rotation.alike = strip.alike;
  rotation.rows = strip.count;
  rotation.from = strip.from;
  rotation.from_stride = strip.from_row;
  rotation.to = strip.to;
  rotation.to_stride = strip.to_row;
  rotation.from_next = strip.from_next;
  rotation.to_next = strip.to_next;
  return rotation;
}

void RopeRows::rotate(const RopeStrip& strip) {
  if (direct_ && strip.from_column == 1 && strip.to_column == 1) return kernels::rotate(rotation_of(strip));
  reserve();
  for (std::int64_t row = 0; row < strip.count; ++row) rotate_row(strip, row);
}

void RopeRows::rotate_row(const RopeStrip& strip, std::int64_t row) {
  RopeStrip one = {.from = row_.data(), .to = turned_.data(), .count = 1};
  one.turn = strip.alike ? strip.turn : strip.turn + row;
  visit_real(rotation_.layout.dtype, [&]<class From>(From) {
    move_numbers(static_cast<const From*>(strip.from) + row * strip.from_row, strip.from_column,
                 reinterpret_cast<From*>(row_.data()), 1, rotation_.columns);
  });
  kernels::rotate(rotation_of(one));
  visit_real(rotation_.to_dtype, [&]<class Turned>(Turned) {
    visit_real(to_, [&]<class To>(To) {
      move_numbers(reinterpret_cast<const Turned*>(turned_.data()), 1, static_cast<To*>(strip.to) + row * strip.to_row,
                   strip.to_column, rotation_.columns);
    });
  });
}

}  // namespace attention_detail
}  // namespace qkv
