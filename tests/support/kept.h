#ifndef QKV_TESTS_SUPPORT_KEPT_H_
#define QKV_TESTS_SUPPORT_KEPT_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "qkv/kv_view.h"
#include "support/random_call.h"

namespace qkv::support {

enum class Keeping : std::uint8_t { kSlots, kPages, kRing };

/// The keys of a call as a cache might keep them, laid out by hand: whatever is not a key is a canary.
struct Kept {
  std::vector<std::int64_t> lengths, kept_from;
  std::unique_ptr<Guarded> k, v, k_scales, v_scales, table;
  std::int64_t num_sinks = 0;

  KVView view() const {
    KVView kv;
    kv.k = *k;
    kv.v = *v;
    if (k_scales) kv.k_scales = *k_scales;
    if (v_scales) kv.v_scales = *v_scales;
    kv.lengths = qkv::view(lengths.data(), {std::ssize(lengths)});
    if (table) kv.page_table = *table;
    kv.num_sinks = num_sinks;
    if (!kept_from.empty()) kv.kept_from = qkv::view(kept_from.data(), {std::ssize(kept_from)});
    return kv;
  }
};

/// Position of a row of a call with query_offset options of any kind.
inline std::int64_t position_of(const Call& call, const std::vector<std::int64_t>& lengths, std::int64_t b,
                                std::int64_t row) {
  if (call.offsets) return static_cast<std::int64_t>(read(*call.offsets, {b})) + row;
  if (call.options.query_offset.one() != nullptr) return *call.options.query_offset.one() + row;
  return lengths[static_cast<std::size_t>(b)] - call.q_len + row;
}

inline bool in_window(const Window& window, std::int64_t position, std::int64_t key) {
  return !(window.left && position - key > *window.left) && !(window.right && key - position > *window.right);
}

class KeptMaker {
 public:
  KeptMaker(Random& random, Call& call, Keeping keeping) : random_(random), call_(call), keeping_(keeping) {}

  /// Draws lengths (one of them the whole), sinks, places; `whole` numbers replace k, v or both by int8 and a scale each,
  /// and the call's own k and v by what those stand for.
  Kept make(bool whole_k, bool whole_v) {
    draw_lengths();
    if (random_.chance(keeping_ == Keeping::kRing ? 0.7 : 0.3)) kept_.num_sinks = random_.integer(1, 9);
    if (keeping_ == Keeping::kRing) {
      for (std::int64_t b = 0; b < call_.batch; ++b) kept_.kept_from.push_back(lowest_needed(b));
    }
    draw_places();
    place(*call_.k, whole_k, kept_.k, kept_.k_scales);
    place(*call_.v, whole_v, kept_.v, kept_.v_scales);
    call_.kv_lens = std::make_unique<Guarded>(Extents{call_.batch}, Dtype::kInt64);
    for (std::int64_t b = 0; b < call_.batch; ++b) write(*call_.kv_lens, {b}, static_cast<double>(length(b)));
    return std::move(kept_);
  }

 private:
  std::int64_t length(std::int64_t b) const { return kept_.lengths[static_cast<std::size_t>(b)]; }

  void draw_lengths() {
    for (std::int64_t b = 0; b < call_.batch; ++b) kept_.lengths.push_back(random_.integer(0, call_.kv_len));
    kept_.lengths[static_cast<std::size_t>(random_.integer(0, call_.batch - 1))] = call_.kv_len;
  }

  /// The lowest key behind the sinks that some row's window reaches, at most the length.
  std::int64_t lowest_needed(std::int64_t b) const {
    const Window& window = call_.options.window;
    if (!window.left) return kept_.num_sinks;
    const std::int64_t first = position_of(call_, kept_.lengths, b, 0) - *window.left;
    return std::max(std::min(first, length(b)), kept_.num_sinks);
  }

  void draw_places() {
    if (keeping_ == Keeping::kPages) return draw_pages();
    slots_ = call_.kv_len;
    if (keeping_ == Keeping::kRing) {
      slots_ = 1;  // behind the sinks
      for (std::int64_t b = 0; b < call_.batch; ++b) {
        slots_ = std::max(slots_, length(b) - kept_.kept_from[static_cast<std::size_t>(b)]);
      }
      slots_ += kept_.num_sinks;
    }
    slots_ += random_.integer(0, 5);
    entries_ = call_.batch;
  }

  void draw_pages() {
    constexpr std::int64_t kSizes[] = {1, 3, 8, 16, 17, 32, 64, 100};
    slots_ = kSizes[random_.integer(0, std::ssize(kSizes) - 1)];
    const std::int64_t most = (call_.kv_len + slots_ - 1) / slots_ + random_.integer(0, 2);
    entries_ = call_.batch * most + random_.integer(1, 4);
    std::vector<std::int64_t> pool(static_cast<std::size_t>(entries_));
    for (std::size_t i = 0; i < pool.size(); ++i) {
      pool[i] = static_cast<std::int64_t>(i);
      std::swap(pool[i], pool[static_cast<std::size_t>(random_.integer(0, static_cast<std::int64_t>(i)))]);
    }
    const Dtype dtype = random_.chance(0.5) ? Dtype::kInt32 : Dtype::kInt64;
    kept_.table = std::make_unique<Guarded>(Extents{call_.batch, most}, dtype, draw_layout(random_));
    std::size_t next = 0;
    for_each_index({call_.batch, most}, [&](const Extents& at) {
      const bool used = at[1] * slots_ < length(at[0]);
      write(*kept_.table, at, used ? static_cast<double>(pool[next++]) : -1);
    });
  }

  Extents place_of(std::int64_t b, std::int64_t key) const {
    if (kept_.table) return {static_cast<std::int64_t>(read(*kept_.table, {b, key / slots_})), key % slots_};
    if (keeping_ == Keeping::kSlots || key < kept_.num_sinks) return {b, key};
    return {b, kept_.num_sinks + (key - kept_.num_sinks) % (slots_ - kept_.num_sinks)};
  }

  bool is_kept(std::int64_t b, std::int64_t key) const {
    if (key >= length(b)) return false;
    return keeping_ != Keeping::kRing || key < kept_.num_sinks || key >= kept_.kept_from[static_cast<std::size_t>(b)];
  }

  void place(const TensorView& numbers, bool whole, std::unique_ptr<Guarded>& to, std::unique_ptr<Guarded>& scales) {
    const std::int64_t columns = numbers.extent(3);
    const Dtype dtype = whole ? Dtype::kInt8 : numbers.dtype();
    to = std::make_unique<Guarded>(Extents{entries_, call_.num_kv_heads, slots_, columns}, dtype, draw_layout(random_));
    if (whole) {
      scales = std::make_unique<Guarded>(Extents{entries_, call_.num_kv_heads, slots_}, Dtype::kFloat32,
                                         draw_layout(random_));
    }
    for_each_index({call_.batch, call_.num_kv_heads, call_.kv_len}, [&](const Extents& at) {
      if (!is_kept(at[0], at[2])) return;
      const Extents entry = place_of(at[0], at[2]);
      const auto scale = static_cast<float>(random_.uniform(0.005, 0.02));
      if (whole) write(*scales, {entry[0], at[1], entry[1]}, static_cast<double>(scale));
      for (std::int64_t c = 0; c < columns; ++c) {
        double x = read(numbers, {at[0], at[1], at[2], c});
        if (whole) {
          const double number = std::clamp(std::round(x * 90), -127.0, 127.0);
          write(*to, {entry[0], at[1], entry[1], c}, number);
          x = static_cast<double>(static_cast<float>(number) * scale);
          write(numbers, {at[0], at[1], at[2], c}, x);
        } else {
          write(*to, {entry[0], at[1], entry[1], c}, x);
        }
      }
    });
  }

  Random& random_;
  Call& call_;
  Keeping keeping_;
  Kept kept_;
  std::int64_t slots_ = 0;
  std::int64_t entries_ = 0;
};

/// Replaces the call's window by a mask that says the same but leaves the sinks alone.
inline void window_to_mask(Call& call, const Kept& kept) {
  auto mask = std::make_unique<Guarded>(Extents{call.batch, call.num_heads, call.q_len, call.kv_len}, Dtype::kBool);
  const auto own = call.mask ? static_cast<ConstTensorView>(*call.mask).broadcast_to(mask->shape()) : ConstTensorView();
  for_each_index(mask->shape(), [&](const Extents& at) {
    const std::int64_t position = position_of(call, kept.lengths, at[0], at[2]);
    const bool visible = at[3] < kept.num_sinks || in_window(call.options.window, position, at[3]);
    write(*mask, at, visible && (!call.mask || read(own, at) != 0) ? 1 : 0);
  });
  call.mask = std::move(mask);
  call.options.window = {};
}

}  // namespace qkv::support

#endif  // QKV_TESTS_SUPPORT_KEPT_H_
