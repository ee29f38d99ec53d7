#include "attention/kv_turns.h"

#include <algorithm>
#include <variant>

#include "base/raise.h"

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
      rotate(keys, first + done, rows.slots(slots));
      continue;
    }
    const Extents shape{keys.extent(0), slots.count, keys.extent(2)};
    const TensorView turned(scratch_.get(), turned_, shape, dense_strides(shape));
    rotate(keys, first + done, turned);
    rows.write(slots, turned, 0, round_);
  }
}

void KVTurning::set_turns(std::int64_t position, std::int64_t count) {
  if (position == position_ && count <= num_turns_) return;
  for (std::int64_t i = 0; i < count; ++i) rows_.set_turn(i, position + i);
  position_ = position;
  num_turns_ = count;
}

void KVTurning::rotate(const ConstTensorView& keys, std::int64_t first, const TensorView& to) {
  const auto item = static_cast<std::int64_t>(size_of(from_));
  RopeStrip strip{.from = static_cast<const char*>(keys.data()) + first * keys.stride(1) * item,
                  .from_column = keys.stride(2),
                  .to = to.data()};
  // One token: its heads, which turn alike. More: head by head, as they lie in the cache.
  strip.alike = to.extent(1) == 1;
  const int axis = strip.alike ? 0 : 1;
  strip.from_row = keys.stride(axis);
  strip.to_row = to.stride(axis);
  strip.count = to.extent(axis);
  for (std::int64_t strips = strip.alike ? 1 : to.extent(0); strips > 0; --strips) {
    rows_.rotate(strip);
    strip.from = static_cast<const char*>(strip.from) + keys.stride(0) * item;
    strip.to = static_cast<char*>(strip.to) + to.stride(0) * static_cast<std::int64_t>(size_of(turned_));
  }
}

void check_cached_rope(std::string_view function, std::string_view argument, const Rope& rope, std::int64_t head_dim) {
  if (rope.head_dim() != head_dim) {
    raise<ValueError>("{}: {}: expected a Rope of head_dim = {}, that of the keys, got one of {}", function, argument,
                      head_dim, rope.head_dim());
  }
  if (!std::holds_alternative<DynamicScaling>(rope.options().scaling)) return;
  raise<ValueError>(
      "{}: {}: dynamic scaling changes the frequencies as a sequence grows, and keys that have been turned do not "
      "follow; use yarn, llama3 or linear scaling, or turn q and k by Rope::apply with one seq_len",
      function, argument);
}

}  // namespace qkv::attention_detail
