#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string_view>

#include "attention/arguments.h"
#include "attention/rope_frequencies.h"
#include "attention/rope_rows.h"
#include "base/parallel.h"
#include "base/shape.h"
#include "qkv/position.h"

namespace qkv {
namespace {

using attention_detail::Arguments;
using attention_detail::kFarthestPosition;
using attention_detail::RopeAngles;
using attention_detail::RopeRows;
using attention_detail::RopeStrip;

constexpr attention_detail::Axes kRowAxes{"[batch, heads, n, head_dim]", 1, 4};
constexpr attention_detail::Axes kIdAxes{"[n] or [batch, n]", 1, 2};

/// Rows whose turns are made at a time: their sines stay in the nearest cache while the rows of all heads pass.
constexpr std::int64_t kBlock = 32;
/// Below this many elements other threads would come too late.
constexpr std::int64_t kFewElements = std::int64_t{1} << 16;

/// What apply was given, checked, with all axes.
struct Application {
  ConstTensorView x;
  TensorView out;
  Positions positions;  ///< ids as [1 or batch, n]

  std::int64_t rows() const { return x.extent(2); }
  bool per_batch() const { return positions.ids() && positions.ids()->extent(0) > 1; }
  std::int64_t position(std::int64_t b, std::int64_t i) const {
    if (!positions.ids()) return positions.first() + i;
    const ConstTensorView& ids = *positions.ids();
    const std::int64_t at = (per_batch() ? b * ids.stride(0) : 0) + i * ids.stride(1);
    return ids.dtype() == Dtype::kInt32 ? ids.as<std::int32_t>()[at] : ids.as<std::int64_t>()[at];
  }
};

/// Whether both lead to the same elements by the same indices.
bool is_same_view(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.data() != b.data() || a.dtype() != b.dtype() || !(a.shape() == b.shape())) return false;
  for (int axis = 0; axis < a.rank(); ++axis) {
    if (a.extent(axis) > 1 && a.stride(axis) != b.stride(axis)) return false;
  }
  return true;
}

void refuse_far(const Arguments& arguments, std::int64_t position) {
  if (position >= -kFarthestPosition && position <= kFarthestPosition) return;
  arguments.refuse<ValueError>("positions", "expected -2^53 to 2^53, got {}", position);
}

Positions check_positions(Arguments& arguments, const Positions& positions, const ConstTensorView& x) {
  const std::int64_t n = x.extent(2);
  if (!positions.ids()) {
    if (n == 0) return positions;
    refuse_far(arguments, positions.first());
    // No overflow: n is a number of elements, and what lies beyond is refused anyway.
    if (positions.first() > kFarthestPosition - (n - 1)) {
      arguments.refuse<ValueError>("positions", "expected at most 2^53, got {} rows from {} on", n, positions.first());
    }
    return positions;
  }
  const ConstTensorView& given = *positions.ids();
  const ConstTensorView ids = arguments.read("positions", given, kIdAxes);
  if (given.dtype() != Dtype::kInt32 && given.dtype() != Dtype::kInt64) {
    arguments.refuse<DtypeError>("positions", "expected int32 or int64, got {}", given.dtype());
  }
  if (ids.extent(1) != n || (ids.extent(0) != 1 && ids.extent(0) != x.extent(0))) {
    arguments.refuse<ShapeError>("positions", "expected [n] = [{}] or [batch, n] = [{}, {}], got {}", n, x.extent(0), n,
                                 given.shape());
  }
  return ids;
}

Application check(std::int64_t head_dim, const ConstTensorView& x, const Positions& positions, const TensorView& out) {
  Arguments arguments("qkv::Rope::apply");
  Application checked;
  arguments.expect_real("x", x);
  if (is_same_view(x, out)) {
    checked.out = arguments.written("x", out, kRowAxes);
    checked.x = checked.out;
  } else {
    checked.x = arguments.read("x", x, kRowAxes);
    checked.out = arguments.written("out", out, kRowAxes);
    arguments.expect_dtype("out", out, x.dtype());
    arguments.expect_shape("out", out, checked.out, checked.x.shape(), kRowAxes.names);
  }
  if (checked.x.extent(3) != head_dim) {
    arguments.refuse<ShapeError>("x", "expected head_dim = {} as the last axis, got {}", head_dim, x.shape());
  }
  checked.positions = check_positions(arguments, positions, checked.x);
  return checked;
}

/// The largest position of a call; every one of them is in range.
std::int64_t check_ids(const Application& call) {
  const std::int64_t batches = call.per_batch() ? call.x.extent(0) : 1;
  if (!call.positions.ids()) return call.position(0, call.rows() - 1);
  const Arguments arguments("qkv::Rope::apply");
  std::int64_t largest = -kFarthestPosition;
  for (std::int64_t b = 0; b < batches; ++b) {
    for (std::int64_t i = 0; i < call.rows(); ++i) {
      refuse_far(arguments, call.position(b, i));
      largest = std::max(largest, call.position(b, i));
    }
  }
  return largest;
}

template <class View>
auto* address(const View& view, std::int64_t b, std::int64_t h, std::int64_t i) {
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, char, const char>;
  const std::int64_t offset = b * view.stride(0) + h * view.stride(1) + i * view.stride(2);
  return static_cast<Byte*>(view.data()) + offset * static_cast<std::int64_t>(size_of(view.dtype()));
}

/// Rows [begin, end) of all heads of a batch, in the order in which they lie in memory.
void rotate_block(const Application& call, RopeRows& rows, std::int64_t b, std::int64_t begin, std::int64_t end) {
  const ConstTensorView& x = call.x;
  const TensorView& out = call.out;
  RopeStrip strip{.from_column = x.stride(3), .to_column = out.stride(3)};
  const auto rotate_from = [&](std::int64_t h, std::int64_t i) {
    strip.from = address(x, b, h, i);
    strip.to = address(out, b, h, i);
    rows.rotate(strip);
  };
  strip.alike = x.extent(1) > 1 && std::abs(x.stride(1)) < std::abs(x.stride(2));
  const int axis = strip.alike ? 1 : 2;
  strip.from_row = x.stride(axis);
  strip.to_row = out.stride(axis);
  strip.count = strip.alike ? x.extent(1) : end - begin;
  if (!strip.alike) {
    for (std::int64_t h = 0; h < x.extent(1); ++h) {
      const bool last = h + 1 == x.extent(1);
      strip.from_next = last ? 0 : x.stride(1);
      strip.to_next = last ? 0 : out.stride(1);
      rotate_from(h, begin);
    }
    return;
  }
  for (std::int64_t i = begin; i < end; ++i) {
    strip.turn = i - begin;
    rotate_from(0, i);
  }
}

void run(const Rope& rope, const Application& call, RopePass pass, const std::shared_ptr<const RopeAngles>& angles) {
  const std::int64_t blocks = (call.rows() + kBlock - 1) / kBlock;
  const std::int64_t batches = call.x.extent(0);
  const std::int64_t groups = call.per_batch() ? batches : 1;
  const auto block = [&](std::size_t item) {
    const auto group = static_cast<std::int64_t>(item) / blocks;
    const std::int64_t begin = static_cast<std::int64_t>(item) % blocks * kBlock;
    const std::int64_t end = std::min(begin + kBlock, call.rows());
    RopeRows rows(rope, pass, {call.x.dtype(), call.x.dtype()}, angles, end - begin);
    for (std::int64_t i = begin; i < end; ++i) rows.set_turn(i - begin, call.position(group, i));
    if (call.per_batch()) return rotate_block(call, rows, group, begin, end);
    for (std::int64_t b = 0; b < batches; ++b) rotate_block(call, rows, b, begin, end);
  };
  const auto items = static_cast<std::size_t>(groups * blocks);
  if (call.x.num_elements() >= kFewElements) return parallel_for(items, block);
  for (std::size_t item = 0; item < items; ++item) block(item);
}

void check_seq_len(std::string_view function, std::optional<std::int64_t> seq_len) {
  if (seq_len && *seq_len < 1) raise<ValueError>("{}: seq_len: expected at least 1, got {}", function, *seq_len);
}

/// Whatever the scaling: a length that does not hold the call's own rows is another sequence's.
void check_holds(std::int64_t seq_len, std::int64_t largest) {
  if (seq_len > largest) return;
  raise<ValueError>("qkv::Rope::apply: seq_len: expected at least {}, the largest position + 1, got {}", largest + 1,
                    seq_len);
}

}  // namespace

Rope::Rope(std::int64_t head_dim, const RopeOptions& options) : state_(std::make_shared<State>(head_dim, options)) {}

void Rope::apply(ConstTensorView x, const Positions& positions, TensorView out, const RopeCall& call) const {
  const Application checked = check(state_->head_dim, x, positions, out);
  check_seq_len("qkv::Rope::apply", call.seq_len);
  if (has_no_elements(checked.x.shape())) return;
  const std::int64_t largest = check_ids(checked);
  const std::int64_t seq_len = call.seq_len.value_or(largest + 1);
  if (call.seq_len) check_holds(seq_len, largest);
  run(*this, checked, call.pass, state_->angles_for(seq_len, checked.rows()));
}

std::vector<double> Rope::frequencies(std::optional<std::int64_t> seq_len) const {
  check_seq_len("qkv::Rope::frequencies", seq_len);
  return attention_detail::rope_frequencies(state_->options, seq_len);
}

double Rope::attention_factor() const noexcept { return state_->attention_factor; }
std::int64_t Rope::head_dim() const noexcept { return state_->head_dim; }
const RopeOptions& Rope::options() const noexcept { return state_->options; }

}  // namespace qkv
