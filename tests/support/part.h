#ifndef QKV_TESTS_SUPPORT_PART_H_
#define QKV_TESTS_SUPPORT_PART_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "support/call.h"

namespace qkv::support {

/// Part of a call, as views of its memory: some batches, kv heads (with their query heads), rows and keys. Positions are
/// said explicitly, so that the part means what the same rows mean in the whole.
class Part {
 public:
  explicit Part(const Call& call)
      : call_(call),
        batches_{0, call.batch},
        kv_heads_{0, call.num_kv_heads},
        rows_{0, call.q_len},
        keys_{0, call.kv_len} {}

  Part& batches(std::int64_t begin, std::int64_t end) { return set(batches_, begin, end); }
  Part& kv_heads(std::int64_t begin, std::int64_t end) { return set(kv_heads_, begin, end); }
  Part& rows(std::int64_t begin, std::int64_t end) { return set(rows_, begin, end); }
  /// Only for keys [0, end): positions are absolute.
  Part& keys(std::int64_t end) { return set(keys_, 0, end); }

  /// Fails unless attention on the part alone gives every bit, of every output, that the whole call gave it.
  void expect_bits_of(const Results& whole) {
    const Wanted wanted{.keys = chosen_keys(), .matrices = whole.wanted.matrices};
    const Results alone = attend(&attention, query(*call_.q), key(*call_.k), key(*call_.v), options(), wanted);
    expect_same_bits(given(alone), part_of(given(whole)));
  }

 protected:
  struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t size() const { return end - begin; }
  };

  Part& set(Range& range, std::int64_t begin, std::int64_t end) {
    range = {begin, end};
    return *this;
  }

  Range heads() const {
    const std::int64_t group = call_.num_heads / call_.num_kv_heads;
    return {kv_heads_.begin * group, kv_heads_.end * group};
  }

  ConstTensorView query(const ConstTensorView& view) const {
    return view.slice(0, batches_.begin, batches_.end)
        .slice(1, heads().begin, heads().end)
        .slice(2, rows_.begin, rows_.end);
  }
  ConstTensorView key(const ConstTensorView& view) const {
    return view.slice(0, batches_.begin, batches_.end)
        .slice(1, kv_heads_.begin, kv_heads_.end)
        .slice(2, keys_.begin, keys_.end);
  }
  ConstTensorView per_key(const ConstTensorView& view) const {
    return query(view.broadcast_to({call_.batch, call_.num_heads, call_.q_len, call_.kv_len}))
        .slice(3, keys_.begin, keys_.end);
  }
  ConstTensorView per_head(const ConstTensorView& view) const {
    return view.broadcast_to({call_.batch, call_.num_heads})
        .slice(0, batches_.begin, batches_.end)
        .slice(1, heads().begin, heads().end);
  }

  /// What was asked for.
  static NamedViews given(const Results& results) {
    NamedViews views = results.views();
    if (!results.wanted.matrices) std::erase_if(views, [](const NamedView& each) { return each.per_key; });
    return views;
  }

  NamedViews part_of(NamedViews views) const {
    views = sliced(views, 0, batches_.begin, batches_.end);
    views = sliced(views, 1, heads().begin, heads().end);
    views = sliced(views, 2, rows_.begin, rows_.end);
    return sliced(views, 3, keys_.begin, keys_.end);
  }
  std::vector<std::int64_t> chosen_keys() const {
    std::vector<std::int64_t> chosen = call_.stats_keys;
    std::erase_if(chosen, [&](std::int64_t key) { return key >= keys_.end; });
    return chosen;
  }

  std::int64_t filled(std::int64_t b) const {
    return call_.kv_lens ? static_cast<std::int64_t>(read(*call_.kv_lens, {b})) : call_.kv_len;
  }
  std::int64_t offset(std::int64_t b) const {
    if (call_.offsets) return static_cast<std::int64_t>(read(*call_.offsets, {b}));
    if (const auto* one = call_.options.query_offset.one()) return *one;
    return filled(b) - call_.q_len;
  }

  AttentionOptions options() {
    AttentionOptions all = call_.options;
    offsets_.clear();
    lengths_.clear();
    for (std::int64_t b = batches_.begin; b < batches_.end; ++b) {
      offsets_.push_back(offset(b) + rows_.begin);
      lengths_.push_back(std::min(filled(b), keys_.end));
    }
    all.query_offset = QueryOffset(ConstTensorView(view(offsets_.data(), {batches_.size()})));
    if (call_.kv_lens) all.kv_lens = view(lengths_.data(), {batches_.size()});
    if (call_.mask) all.mask = per_key(*call_.mask);
    if (call_.bias) all.bias = per_key(*call_.bias);
    if (call_.sinks) all.sinks = per_head(*call_.sinks);
    if (call_.slopes) all.alibi_slopes = per_head(*call_.slopes);
    if (!all.scale) all.scale = 1 / std::sqrt(static_cast<double>(call_.head_dim));
    return all;
  }

  const Call& call_;
  Range batches_, kv_heads_, rows_, keys_;
  std::vector<std::int64_t> offsets_, lengths_;
};

}  // namespace qkv::support

#endif  // QKV_TESTS_SUPPORT_PART_H_
