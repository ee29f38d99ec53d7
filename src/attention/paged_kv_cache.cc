#include <algorithm>
#include <limits>
#include <map>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "attention/kv_cache_state.h"
#include "attention/kv_positions.h"
#include "base/raise.h"
#include "qkv/kv_cache.h"

namespace qkv {

using attention_detail::KVAddition;
using attention_detail::KVPair;
using attention_detail::KVShape;
using attention_detail::KVSlots;

namespace {

/// Neither is beyond 2^31, but a table that large is memory that nobody has.
std::size_t table_size(std::int64_t batch, std::int64_t width) {
  constexpr std::int64_t kMost = std::int64_t{1} << 48;
  if (width > 0 && batch > kMost / width) throw std::bad_alloc();
  return static_cast<std::size_t>(batch * width);
}

}  // namespace

PagedKVCache::State::State(const PagedKVCacheOptions& given) : options(given) {
  constexpr std::string_view kFunction = "qkv::PagedKVCache";
  options.value_dim = given.value_dim.value_or(given.head_dim);
  const auto expect = [&](std::string_view name, std::int64_t least, std::int64_t got) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    if (got < least || got > kMost) {
      raise<ValueError>("{}: {}: expected {} to {}, got {}", kFunction, name, least, kMost, got);
    }
  };
  attention_detail::check_batch(kFunction, options.batch, 0);
  expect("num_pages", 0, options.num_pages);
  expect("page_size", 1, options.page_size);
  shape().check(kFunction);
  attention_detail::check_cached_rope(kFunction, "", options.rope, options.positions, options.head_dim);
  pair = KVPair(shape());
  if (options.positions == CachePositions::kAbsolute) pair.rope = options.rope;
  lengths.assign(static_cast<std::size_t>(options.batch), 0);
  users.assign(static_cast<std::size_t>(options.num_pages), 0);
  free.resize(users.size());
  for (std::size_t i = 0; i < free.size(); ++i) free[i] = static_cast<std::int32_t>(free.size() - 1 - i);
}

KVShape PagedKVCache::State::shape() const {
  return {options.num_pages,  options.num_kv_heads, options.page_size, options.head_dim,
          *options.value_dim, options.k_dtype,      options.v_dtype};
}

std::int64_t PagedKVCache::State::pages_missing(std::size_t sequence, std::int64_t length,
                                                std::map<std::int32_t, std::int32_t>& leaving) {
  const std::int64_t present = pages_for(lengths[sequence]);
  const std::int64_t missing = pages_for(length) - present;
  if (length == lengths[sequence] || lengths[sequence] % options.page_size == 0) return missing;
  const std::int32_t last = page(sequence, present - 1);
  const std::int32_t sharing = users[static_cast<std::size_t>(last)];
  if (sharing == 1 || sharing - leaving[last] == 1) return missing;
  ++leaving[last];
  return missing + 1;
}

void PagedKVCache::State::widen_table(std::int64_t pages) {
  if (pages <= table_width) return;
  const std::int64_t width = std::min(std::max(pages, 2 * table_width), options.num_pages);
  std::vector<std::int32_t> wider(table_size(std::ssize(lengths), width), 0);
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    std::copy_n(table.begin() + static_cast<std::ptrdiff_t>(b) * table_width, table_width,
                wider.begin() + static_cast<std::ptrdiff_t>(b) * width);
  }
  table = std::move(wider);
  table_width = width;
}

void PagedKVCache::State::take_pages(std::size_t sequence, std::int64_t length) {
  const auto take = [this] {
    const std::int32_t taken = free.back();
    free.pop_back();
    users[static_cast<std::size_t>(taken)] = 1;
    return taken;
  };
  const std::int64_t present = pages_for(lengths[sequence]);
  const std::int64_t in_last = lengths[sequence] % options.page_size;
  if (in_last != 0 && length > lengths[sequence]) {
    std::int32_t& last = page(sequence, present - 1);
    std::int32_t& sharing = users[static_cast<std::size_t>(last)];
    if (sharing > 1) {
      const std::int32_t own = take();
      pair.copy({own, 0, in_last}, pair, {last, 0, in_last});
      --sharing;
      last = own;
    }
  }
  for (std::int64_t p = present; p < pages_for(length); ++p) page(sequence, p) = take();
}

void PagedKVCache::State::append(KVAddition& added) {
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    const std::int64_t begin = lengths[b];
    const std::int64_t end = begin + added.counts[b];
    take_pages(b, end);
    for (std::int64_t key = begin; key < end;) {
      const std::int64_t slot = key % options.page_size;
      const std::int64_t count = std::min(options.page_size - slot, end - key);
      const KVSlots slots{page(b, key / options.page_size), slot, count};
      added.write(static_cast<std::int64_t>(b), key - begin, key, slots, pair);
      key += count;
    }
    lengths[b] = end;
  }
}

void PagedKVCache::State::shorten(std::size_t sequence, std::int64_t length) {
  for (std::int64_t p = pages_for(lengths[sequence]); p > pages_for(length); --p) {
    const std::int32_t given_back = page(sequence, p - 1);
    if (--users[static_cast<std::size_t>(given_back)] == 0) free.push_back(given_back);
  }
  lengths[sequence] = length;
}

PagedKVCache::PagedKVCache(const PagedKVCacheOptions& options) : state_(std::make_unique<State>(options)) {}
PagedKVCache::PagedKVCache(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
PagedKVCache::PagedKVCache(PagedKVCache&&) noexcept = default;
PagedKVCache& PagedKVCache::operator=(PagedKVCache&&) noexcept = default;
PagedKVCache::~PagedKVCache() = default;

PagedKVCache::State& PagedKVCache::state() const {
  if (state_ == nullptr) raise<ValueError>("qkv::PagedKVCache: used after it was moved from");
  return *state_;
}

void PagedKVCache::append(ConstTensorView k, ConstTensorView v, std::span<const std::int64_t> lengths) {
  constexpr std::string_view kFunction = "qkv::PagedKVCache::append";
  State& state = this->state();
  KVAddition added(kFunction, k, v, lengths, state.pair, state.options.batch);
  std::map<std::int32_t, std::int32_t> leaving;
  std::int64_t missing = 0;
  std::int64_t widest = 0;
  for (std::size_t b = 0; b < added.counts.size(); ++b) {
    const std::int64_t length = state.lengths[b] + added.counts[b];
    missing += state.pages_missing(b, length, leaving);
    widest = std::max(widest, state.pages_for(length));
  }
  if (missing > num_free_pages()) {
    raise<ValueError>(
        "{}: k: the cache is full: {} pages of {} keys are free of {}, {} are needed; nothing was appended", kFunction,
        num_free_pages(), state.options.page_size, state.options.num_pages, missing);
  }
  state.widen_table(widest);
  state.append(added);
}

void PagedKVCache::truncate(std::span<const std::int64_t> lengths) {
  State& state = this->state();
  attention_detail::check_lengths("qkv::PagedKVCache::truncate", lengths, state.lengths);
  for (std::size_t b = 0; b < lengths.size(); ++b) state.shorten(b, lengths[b]);
}

void PagedKVCache::grow(std::int64_t batch) {
  State& state = this->state();
  attention_detail::check_batch("qkv::PagedKVCache::grow", batch, state.options.batch);
  const auto count = static_cast<std::size_t>(batch);
  // The table first: if there is no memory for it, nothing has changed.
  state.lengths.reserve(count);
  state.table.resize(table_size(batch, state.table_width), 0);
  state.lengths.resize(count, 0);
  state.options.batch = batch;
}

void PagedKVCache::share(std::int64_t from, std::int64_t to, std::int64_t length) {
  constexpr std::string_view kFunction = "qkv::PagedKVCache::share";
  State& state = this->state();
  for (const auto& [name, sequence] : {std::pair("from", from), std::pair("to", to)}) {
    if (sequence >= 0 && sequence < state.options.batch) continue;
    raise<ValueError>("{}: {}: expected one of the {} sequences, from 0 on, got {}", kFunction, std::string_view(name),
                      state.options.batch, sequence);
  }
  const auto source = static_cast<std::size_t>(from);
  const auto target = static_cast<std::size_t>(to);
  if (state.lengths[target] != 0) {
    raise<ValueError>("{}: to: expected an empty sequence, got {} with {} keys", kFunction, to, state.lengths[target]);
  }
  if (length < 0 || length > state.lengths[source]) {
    raise<ValueError>("{}: length: expected 0 to {}, the keys of sequence {}, got {}", kFunction, state.lengths[source],
                      from, length);
  }
  for (std::int64_t p = 0; p < state.pages_for(length); ++p) {
    const std::int32_t shared = state.page(source, p);
    ++state.users[static_cast<std::size_t>(shared)];
    state.page(target, p) = shared;
  }
  state.lengths[target] = length;
}

std::span<const std::int64_t> PagedKVCache::lengths() const { return state().lengths; }
const PagedKVCacheOptions& PagedKVCache::options() const { return state().options; }
std::int64_t PagedKVCache::nbytes() const { return state().pair.nbytes(); }
std::int64_t PagedKVCache::num_free_pages() const { return static_cast<std::int64_t>(state().free.size()); }

KVView PagedKVCache::view() const {
  const State& state = this->state();
  KVView kv;
  kv.k = state.pair.k.numbers();
  kv.v = state.pair.v.numbers();
  kv.k_scales = state.pair.k.scales();
  kv.v_scales = state.pair.v.scales();
  kv.lengths = qkv::view(state.lengths.data(), {state.options.batch});
  kv.page_table = qkv::view(state.table.data(), {state.options.batch, state.table_width});
  kv.rope = state.options.rope;
  kv.positions = state.options.positions;
  return kv;
}

}  // namespace qkv
