#include "attention/kv_pair.h"

#include <algorithm>
#include <limits>

#include "attention/arguments.h"
#include "base/checked.h"
#include "base/overlap.h"
#include "base/raise.h"
#include "base/shape.h"
#include "kernels/forward_problem.h"

namespace qkv::attention_detail {
namespace {

void check_dtype(std::string_view function, std::string_view name, Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
    case Dtype::kFloat64:
    case Dtype::kFloat16:
    case Dtype::kBFloat16:
    case Dtype::kInt8:
      return;
    default:
      raise<DtypeError>("{}: {}: expected float32, float64, float16, bfloat16 or int8, got {}", function, name, dtype);
  }
}

/// k or v with four axes of the cache's sizes; the batch may be missing where it is 1.
ConstTensorView read_rows(std::string_view name, const ConstTensorView& given, const KVPair& pair, std::int64_t batch,
                          Arguments& arguments) {
  const bool is_k = name == "k";
  const ConstTensorView kept = (is_k ? pair.k : pair.v).numbers();
  const std::string_view axes = is_k ? "[batch, num_kv_heads, n, head_dim]" : "[batch, num_kv_heads, n, value_dim]";
  const ConstTensorView view = arguments.read(name, given, {axes, 3, 4});
  arguments.expect_real(name, given);
  arguments.expect_shape(name, given, view, {batch, kept.extent(1), view.extent(2), kept.extent(3)}, axes);
  const Footprint footprint(given);
  const auto is_in = [&](const KVRows& rows) {
    return share_memory(footprint, Footprint(rows.numbers())) ||
           (rows.scales() && share_memory(footprint, Footprint(*rows.scales())));
  };
  if (is_in(pair.k) || is_in(pair.v)) {
    arguments.refuse<ValueError>(name, "{} shares memory with the cache, which would read what it writes",
                                 given.shape());
  }
  return view;
}

}  // namespace

void KVShape::check(std::string_view function) const {
  const auto expect = [&](bool right, std::string_view name, std::int64_t least, std::int64_t got) {
    if (!right) raise<ValueError>("{}: {}: expected {} or more, got {}", function, name, least, got);
  };
  expect(num_kv_heads >= 1, "num_kv_heads", 1, num_kv_heads);
  expect(head_dim >= 1, "head_dim", 1, head_dim);
  expect(value_dim >= 0, "value_dim", 0, value_dim);
  expect(slots >= 0, "capacity", 0, slots);
  check_dtype(function, "k_dtype", k_dtype);
  check_dtype(function, "v_dtype", v_dtype);
  std::optional<std::int64_t> bytes = 8;  // of the widest number
  for (const std::int64_t extent : {entries, num_kv_heads, slots, std::max(head_dim, value_dim)}) {
    if (bytes) bytes = checked_mul(*bytes, std::max<std::int64_t>(extent, 1));
  }
  if (!bytes) {
    raise<ValueError>("{}: {} entries of {} heads, {} slots and {} columns have more bytes than 63 bits can count",
                      function, entries, num_kv_heads, slots, std::max(head_dim, value_dim));
  }
}

KVPair::KVPair(const KVShape& shape)
    : k({shape.entries, shape.num_kv_heads, shape.slots, shape.head_dim}, shape.k_dtype),
      v({shape.entries, shape.num_kv_heads, shape.slots, shape.value_dim}, shape.v_dtype) {}

void KVPair::prepare(const ConstTensorView& keys) {
  if (!rope || (turning && turning->is_for(keys))) return;
  turning = std::make_unique<KVTurning>(*rope, keys, k.numbers().dtype());
}

KVAddition::KVAddition(std::string_view function, const ConstTensorView& given_k, const ConstTensorView& given_v,
                       std::span<const std::int64_t> given_lengths, KVPair& pair, std::int64_t batch)
    : counts(given_lengths.begin(), given_lengths.end()) {
  Arguments arguments(function);
  k = read_rows("k", given_k, pair, batch, arguments);
  v = read_rows("v", given_v, pair, batch, arguments);
  const std::int64_t tokens = k.extent(2);
  if (v.extent(2) != tokens) {
    arguments.refuse<ShapeError>("v", "expected {} tokens as in k {}, got {} in {}", tokens, given_k.shape(),
                                 v.extent(2), given_v.shape());
  }
  if (tokens > kernels::ForwardProblem::kMostPosition) {
    arguments.refuse<ShapeError>("k", "more than 2^60 tokens in {}", given_k.shape());
  }
  pair.prepare(k);
  if (!pair.rope) round_k_ = KVRounding(k, pair.k.numbers().dtype());
  round_v_ = KVRounding(v, pair.v.numbers().dtype());
  if (given_lengths.empty()) {
    counts.assign(static_cast<std::size_t>(batch), tokens);
  } else if (static_cast<std::int64_t>(counts.size()) != batch) {
    arguments.refuse<ShapeError>("lengths", "expected [batch] = [{}], got [{}]", batch, counts.size());
  }
  for (std::size_t b = 0; b < counts.size(); ++b) {
    if (counts[b] >= 0 && counts[b] <= tokens) continue;
    arguments.refuse<ValueError>("lengths", "expected 0 to {} tokens as in k {}, got {} for sequence {}", tokens,
                                 given_k.shape(), counts[b], b);
  }
}

void KVAddition::write(std::int64_t sequence, std::int64_t first, std::int64_t position, const KVSlots& to,
                       KVPair& pair) {
  const auto of_sequence = [sequence](const ConstTensorView& view) {
    const Extents shape{view.extent(1), view.extent(2), view.extent(3)};
    if (has_no_elements(view.shape())) return ConstTensorView(view.data(), view.dtype(), shape, {0, 0, 0});
    const auto bytes = sequence * view.stride(0) * static_cast<std::int64_t>(size_of(view.dtype()));
    return ConstTensorView(static_cast<const char*>(view.data()) + bytes, view.dtype(), shape,
                           {view.stride(1), view.stride(2), view.stride(3)});
  };
  if (pair.turning) {
    pair.turning->write(of_sequence(k), first, position, to, pair.k);
  } else {
    pair.k.write(to, of_sequence(k), first, round_k_);
  }
  pair.v.write(to, of_sequence(v), first, round_v_);
}

void check_batch(std::string_view function, std::int64_t batch, std::int64_t least) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (batch >= least && batch <= kMost) return;
  raise<ValueError>("{}: batch: expected {} to {}, got {}", function, least, kMost, batch);
}

void check_lengths(std::string_view function, std::span<const std::int64_t> lengths,
                   std::span<const std::int64_t> present) {
  if (lengths.size() != present.size()) {
    raise<ShapeError>("{}: lengths: expected [batch] = [{}], got [{}]", function, present.size(), lengths.size());
  }
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    if (lengths[b] >= 0 && lengths[b] <= present[b]) continue;
    raise<ValueError>("{}: lengths: expected 0 to {}, the keys of sequence {}, got {}", function, present[b], b,
                      lengths[b]);
  }
}

}  // namespace qkv::attention_detail
