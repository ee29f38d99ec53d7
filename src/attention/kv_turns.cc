#include "attention/kv_turns.h"

#include <algorithm>

namespace qkv::attention_detail {
namespace {

/// Tokens whose turns are set at a time.
constexpr std::int64_t kMostTurns = 32;
/// Of rows that are turned before they are rounded: they stay in the nearest cache.
constexpr std::int64_t kScratchBytes = std::int64_t{1} << 15;

/// What keys are turned into: the cache's dtype, or one from which a single rounding leads to it.
Dtype turned_dtype(Dtype from, Dtype to) {
  if (to == from) return to;
  if (size_of(from) == 2) return Dtype::kFloat32;
  // A scale of 8 bits is that of float32.
  return from == Dtype::kFloat32 && to == Dtype::kInt8 ? Dtype::kFloat32 : Dtype::kFloat64;
}

std::int64_t token_bytes(const ConstTensorView& keys, Dtype dtype) {
  return keys.extent(1) * keys.extent(3) * static_cast<std::int64_t>(size_of(dtype));
}

}  // namespace

KVTurning::KVTurning(const Rope& rope, const ConstTensorView& keys, Dtype to)
    : from_(keys.dtype()),
      turned_(turned_dtype(from_, to)),
      direct_(turned_ == to),
      block_(direct_ ? kMostTurns
                     : std::clamp<std::int64_t>(kScratchBytes / token_bytes(keys, turned_), 1, kMostTurns)),
      rows_(rope, {from_, turned_}, block_) {
  rows_.reserve();
  if (direct_) return;
  scratch_ = allocate_aligned(static_cast<std::size_t>(block_ * token_bytes(keys, turned_)));
  round_ = KVRounding({scratch_.get(), turned_, {1, 1, 1, keys.extent(3)}, {0, 0, 0, 1}}, to);
}

void KVTurning::write(const ConstTensorView& keys, std::int64_t first, std::int64_t position, const KVSlots& to,
                      KVRows& rows) {
  for (std::int64_t done = 0; done < to.count; done += block_) {
    const KVSlots slots{to.entry, to.slot + done, std::min(block_, to.count - done)};
    set_turns(position + done, slots.count);
    if (direct_) {
      rotate(keys, first + done, slots.count, rows.place_of(slots));
      continue;
    }
    const Extents shape{keys.extent(0), slots.count, keys.extent(2)};
    rotate(keys, first + done, slots.count,
           {.numbers = reinterpret_cast<char*>(scratch_.get()), .head_stride = shape[1] * shape[2]});
    rows.write(slots, {scratch_.get(), turned_, shape, dense_strides(shape)}, 0, round_);
  }
}

void KVTurning::set_turns(std::int64_t position, std::int64_t count) {
  if (position == position_ && count <= num_turns_) return;
  for (std::int64_t i = 0; i < count; ++i) rows_.set_turn(i, position + i);
  position_ = position;
  num_turns_ = count;
}

void KVTurning::rotate(const ConstTensorView& keys, std::int64_t first, std::int64_t count, KVRows::Place to) {
  const std::int64_t heads = keys.extent(0);
  const auto* from = static_cast<const char*>(keys.data());
  const auto item = static_cast<std::int64_t>(size_of(from_));
  RopeStrip strip{.from = from + first * keys.stride(1) * item, .from_column = keys.stride(2), .to = to.numbers};
  if (count == 1) {
    strip.from_row = keys.stride(0);
    strip.to_row = to.head_stride;
    strip.count = heads;
    strip.alike = true;
    return rows_.rotate(strip);
  }
  // Head by head, as they lie in the cache.
  strip.from_row = keys.stride(1);
  strip.to_row = keys.extent(2);
  strip.count = count;
  for (std::int64_t head = 0; head < heads; ++head) {
    rows_.rotate(strip);
    strip.from = static_cast<const char*>(strip.from) + keys.stride(0) * item;
    strip.to = static_cast<char*>(strip.to) + to.head_stride * static_cast<std::int64_t>(size_of(turned_));
  }
}

}  // namespace qkv::attention_detail
