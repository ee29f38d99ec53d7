#include "qkv/kv_cache.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "attention/kv_cache_state.h"
#include "attention/kv_positions.h"
#include "base/raise.h"
#include "kernels/forward_problem.h"

namespace qkv {

using attention_detail::KVAddition;
using attention_detail::KVPair;
using attention_detail::KVShape;
using attention_detail::KVSlots;

KVCache::State::State(const KVCacheOptions& given) : options(given) {
  constexpr std::string_view kFunction = "qkv::KVCache";
  options.value_dim = given.value_dim.value_or(given.head_dim);
  attention_detail::check_batch(kFunction, options.batch, 0);
  shape().check(kFunction);
  if (options.num_sinks < 0) {
    raise<ValueError>("{}: num_sinks: expected 0 or more, got {}", kFunction, options.num_sinks);
  }
  if (options.window) {
    if (*options.window < 1) raise<ValueError>("{}: window: expected 1 or more, got {}", kFunction, *options.window);
    // Not the sum, which may not fit.
    if (options.capacity < options.num_sinks || options.capacity - options.num_sinks < *options.window) {
      raise<ValueError>("{}: capacity: expected at least {} sinks and a window of {}, got {}", kFunction,
                        options.num_sinks, *options.window, options.capacity);
    }
  }
  attention_detail::check_cached_rope(kFunction, "", options.rope, options.positions, options.head_dim);
  pair = KVPair(shape());
  if (options.positions == CachePositions::kAbsolute) pair.rope = options.rope;
  lengths.assign(static_cast<std::size_t>(options.batch), 0);
  kept_from.assign(lengths.size(), options.num_sinks);
}

KVShape KVCache::State::shape() const {
  return {options.batch,      options.num_kv_heads, options.capacity, options.head_dim,
          *options.value_dim, options.k_dtype,      options.v_dtype};
}

std::int64_t KVCache::State::most_keys() const noexcept {
  if (!options.window) return options.capacity;
  return pair.rope ? attention_detail::kFarthestPosition : kernels::ForwardProblem::kMostPosition;
}

std::int64_t KVCache::State::lowest_kept(std::size_t sequence, std::int64_t length) const {
  return options.window ? std::max(kept_from[sequence], length - ring()) : 0;
}

/// The slots that tokens [begin, end) of a sequence fill, as far as they are consecutive.
KVSlots KVCache::State::slots_of(std::size_t sequence, std::int64_t begin, std::int64_t end) const {
  const auto entry = static_cast<std::int64_t>(sequence);
  if (!options.window) return {entry, begin, end - begin};
  if (begin < options.num_sinks) return {entry, begin, std::min(end, options.num_sinks) - begin};
  const std::int64_t turn = (begin - options.num_sinks) % ring();
  return {entry, options.num_sinks + turn, std::min(end - begin, ring() - turn)};
}

void KVCache::State::append(KVAddition& added) {
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    const std::int64_t begin = lengths[b];
    const std::int64_t end = begin + added.counts[b];
    std::int64_t key = begin;
    while (key < end) {
      // Of more tokens than the ring has room for, those that would be overwritten at once are left out.
      if (options.window && key >= options.num_sinks) key = std::max(key, end - ring());
      const KVSlots slots = slots_of(b, key, end);
      added.write(static_cast<std::int64_t>(b), key - begin, key, slots, pair);
      key += slots.count;
    }
    kept_from[b] = lowest_kept(b, end);
    lengths[b] = end;
  }
}

KVCache::KVCache(const KVCacheOptions& options) : state_(std::make_unique<State>(options)) {}
KVCache::KVCache(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
KVCache::KVCache(KVCache&&) noexcept = default;
KVCache& KVCache::operator=(KVCache&&) noexcept = default;
KVCache::~KVCache() = default;

KVCache::State& KVCache::state() const {
  if (state_ == nullptr) raise<ValueError>("qkv::KVCache: used after it was moved from");
  return *state_;
}

void KVCache::append(ConstTensorView k, ConstTensorView v, std::span<const std::int64_t> lengths) {
  constexpr std::string_view kFunction = "qkv::KVCache::append";
  State& state = this->state();
  const KVCacheOptions& options = state.options;
  KVAddition added(kFunction, k, v, lengths, state.pair, options.batch);
  for (std::size_t b = 0; b < added.counts.size(); ++b) {
    const std::int64_t most = state.most_keys();
    const std::int64_t free = most - state.lengths[b];
    if (added.counts[b] <= free) continue;
    raise<ValueError>(
        "{}: k: the cache is full: sequence {} holds {} of {} keys and has room for {} more, got {}; nothing "
        "was appended",
        kFunction, b, state.lengths[b], most, free, added.counts[b]);
  }
  state.append(added);
}

void KVCache::truncate(std::span<const std::int64_t> lengths) {
  constexpr std::string_view kFunction = "qkv::KVCache::truncate";
  State& state = this->state();
  attention_detail::check_lengths(kFunction, lengths, state.lengths);
  for (std::size_t b = 0; b < lengths.size() && state.options.window; ++b) {
    // The last row that is left must find its window, and the next one too.
    const std::int64_t kept = state.kept_from[b];
    const std::int64_t needed = std::max(lengths[b] - *state.options.window, state.options.num_sinks);
    if (needed >= kept || lengths[b] == state.lengths[b] || lengths[b] <= state.options.num_sinks) continue;
    raise<ValueError>(
        "{}: lengths: expected at most {} sinks, or {} keys or more for sequence {}, whose ring has overwritten those "
        "before {}, got {}",
        kFunction, state.options.num_sinks, kept + *state.options.window, b, kept, lengths[b]);
  }
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    state.lengths[b] = lengths[b];
    if (lengths[b] <= state.options.num_sinks) state.kept_from[b] = state.options.num_sinks;
  }
}

void KVCache::grow(std::int64_t batch) {
  State& state = this->state();
  attention_detail::check_batch("qkv::KVCache::grow", batch, state.options.batch);
  KVCacheOptions options = state.options;
  options.batch = batch;
  State grown(options);
  for (std::size_t b = 0; b < state.lengths.size(); ++b) {
    const auto entry = static_cast<std::int64_t>(b);
    const KVSlots used{entry, 0, std::min(state.lengths[b], options.capacity)};
    grown.pair.copy(used, state.pair, used);
    grown.lengths[b] = state.lengths[b];
    grown.kept_from[b] = state.kept_from[b];
  }
  state = std::move(grown);
}

std::span<const std::int64_t> KVCache::lengths() const { return state().lengths; }
const KVCacheOptions& KVCache::options() const { return state().options; }
std::int64_t KVCache::nbytes() const { return state().pair.nbytes(); }

KVView KVCache::view() const {
  const State& state = this->state();
  const Extents batch{state.options.batch};
  KVView kv;
  kv.k = state.pair.k.numbers();
  kv.v = state.pair.v.numbers();
  kv.k_scales = state.pair.k.scales();
  kv.v_scales = state.pair.v.scales();
  kv.lengths = qkv::view(state.lengths.data(), batch);
  kv.num_sinks = state.options.num_sinks;
  kv.window = state.options.window;
  if (state.options.window) kv.kept_from = qkv::view(state.kept_from.data(), batch);
  kv.rope = state.options.rope;
  kv.positions = state.options.positions;
  return kv;
}

}  // namespace qkv
