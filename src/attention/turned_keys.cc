#include "attention/turned_keys.h"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "kernels/visibility.h"

namespace qkv::attention_detail {
namespace {

using kernels::ForwardProblem;
using kernels::KeyPlace;
using kernels::KeyPlaces;
using kernels::KeyRange;
using kernels::Operand;

/// The keys that the rows see by causal, window and lengths; before masks logits are of all.
KeyRange seen_keys(const ForwardProblem& call) {
  if (call.logits && call.logits_stage != LogitsStage::kMasked) return {0, call.kv_len};
  return rows_range(call, 0, 0, call.q_len);
}

/// Whole numbers of a head as the kernels read them: times their scale, in float32.
void read_whole(const Operand& kept, const Operand& scales, std::int64_t head, const KeyPlace& from, std::int64_t count,
                std::vector<float>& to) {
  const std::int64_t columns = std::ssize(to) / count;
  for (std::int64_t i = 0; i < count; ++i) {
    const float scale = *scales.at<float>(from.entry, head, from.row + i);
    const std::int8_t* row = kept.at<std::int8_t>(from.entry, head, from.row + i);
    float* numbers = to.data() + i * columns;
    for (std::int64_t c = 0; c < columns; ++c) numbers[c] = static_cast<float>(row[c * kept.col]) * scale;
  }
}

}  // namespace

void TurnedKeys::lay_out(const Rope& rope, std::shared_ptr<const RopeAngles> angles, std::int64_t shift,
                         ForwardProblem& call) {
  rope_ = &rope;
  angles_ = std::move(angles);
  kept_ = call.k;
  scales_ = call.k_scales;
  kept_places_ = call.key_places;
  num_kv_heads_ = call.num_kv_heads;
  head_dim_ = call.head_dim;
  shift_ = shift;
  sinks_ = std::min(call.num_sink_keys, call.kv_lens.front());
  const KeyRange seen = seen_keys(call);
  window_ = {std::max(seen.begin, sinks_), seen.end};
  if (window_.empty()) window_ = {sinks_, sinks_};
  from_ = kept_.dtype == Dtype::kInt8 ? Dtype::kFloat32 : kept_.dtype;
  // What pairs of 16 bits are turned in is not rounded again.
  to_ = from_ == Dtype::kFloat64 ? Dtype::kFloat64 : Dtype::kFloat32;
  // The order of a row's arithmetic goes by the keys' own numbers, so they keep them: a ring just large enough.
  places_ = window_.empty() ? KeyPlaces() : KeyPlaces::in_ring(sinks_, window_.end - window_.begin);

  std::optional<std::int64_t> bytes = static_cast<std::int64_t>(size_of(to_));
  for (const std::int64_t extent : {num_kv_heads_, std::max<std::int64_t>(size(), 1), head_dim_}) {
    if (bytes) bytes = checked_mul(*bytes, extent);
  }
  if (!bytes) throw std::bad_alloc();
  if (static_cast<std::size_t>(*bytes) > capacity_) {
    memory_.reset();
    capacity_ = 0;
    memory_ = allocate_aligned(static_cast<std::size_t>(*bytes));
    capacity_ = static_cast<std::size_t>(*bytes);
  }
  call.k = {memory_.get(), to_, 0, size() * head_dim_, head_dim_, 1};
  call.k_scales = {};
  call.k_places = places_;
}

void TurnedKeys::turn(std::int64_t block) const {
  const std::int64_t begin = block * kBlock;
  const std::int64_t end = std::min(begin + kBlock, size());
  RopeRows rows(*rope_, RopePass::kForward, {from_, to_}, angles_, end - begin);
  for (std::int64_t index = begin; index < end; ++index) {
    rows.set_turn(index - begin, index < sinks_ ? index : key_at(index) - shift_);
  }
  for (std::int64_t index = begin; index < end;) {
    const std::int64_t key = key_at(index);
    const KeyPlace from = kept_places_(0, key);
    const KeyPlace to = places_(0, key);
    const std::int64_t left = (index < sinks_ ? std::min(sinks_, end) : end) - index;
    const std::int64_t count = std::min({left, from.count, to.count});
    turn_run(rows, {.count = count, .turn = index - begin}, key, to);
    index += count;
  }
}

/// Keys in consecutive rows of both.
void TurnedKeys::turn_run(RopeRows& rows, RopeStrip strip, std::int64_t key, const KeyPlace& to) const {
  const KeyPlace from = kept_places_(0, key);
  const auto item = static_cast<std::int64_t>(size_of(to_));
  std::vector<float> whole;
  if (scales_) whole.resize(static_cast<std::size_t>(strip.count * head_dim_));
  strip.from_row = scales_ ? head_dim_ : kept_.row;
  strip.from_column = scales_ ? 1 : kept_.col;
  strip.to_row = head_dim_;
  for (std::int64_t head = 0; head < num_kv_heads_; ++head) {
    if (scales_) read_whole(kept_, scales_, head, from, strip.count, whole);
    strip.from = scales_ ? whole.data() : kept_.address(from.entry, head, from.row);
    strip.to = reinterpret_cast<char*>(memory_.get()) + (head * size() + to.row) * head_dim_ * item;
    rows.rotate(strip);
  }
}

}  // namespace qkv::attention_detail
