#include <algorithm>
#include <charconv>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attention/kv_cache_state.h"
#include "attention/kv_positions.h"
#include "attention/rope_metadata.h"
#include "base/raise.h"
#include "base/safetensors.h"
#include "qkv/kv_cache.h"

// The files of caches: safetensors "k", "v", their scales, "lengths", and what each kind adds; sizes that no tensor
// shows, the options of a rope and what it turns by are in the metadata.

namespace qkv {

using attention_detail::KVPair;
using attention_detail::KVRows;
using attention_detail::KVSlots;

namespace {

using Integers = std::vector<std::int64_t>;
using attention_detail::Metadata;

constexpr std::string_view kFormat = "format";
constexpr std::string_view kSlotsFormat = "qkv.KVCache 1";
constexpr std::string_view kPagesFormat = "qkv.PagedKVCache 1";

/// Reads what it expects, and refuses what differs.
class KVFile {
 public:
  KVFile(const std::filesystem::path& path, std::string_view format)
      : name_(safetensors_printable(path.string())), file_(path) {
    const auto found = file_.metadata().find(std::string(kFormat));
    if (found == file_.metadata().end() || found->second != format) {
      raise<ValueError>(
          "{}: metadata: expected the format '{}', got {}", name_, format,
          found == file_.metadata().end() ? std::string("none") : "'" + safetensors_printable(found->second) + "'");
    }
  }

  bool has(std::string_view key) const { return file_.metadata().contains(std::string(key)); }

  std::int64_t number(std::string_view key) const {
    const auto found = file_.metadata().find(std::string(key));
    if (found == file_.metadata().end()) raise<ValueError>("{}: metadata: '{}' is missing", name_, key);
    const std::string& text = found->second;
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      raise<ValueError>("{}: metadata: '{}': expected an integer, got '{}'", name_, key, safetensors_printable(text));
    }
    return value;
  }

  /// Shape of a tensor that must have so many axes.
  Extents shape(std::string_view tensor, int axes) const {
    const Extents shape = file_.shape(tensor);
    if (shape.size() != axes)
      raise<ValueError>("{}: tensor '{}': expected {} axes, got {}", name_, tensor, axes, shape);
    return shape;
  }
  Dtype dtype(std::string_view tensor) const { return file_.dtype(tensor); }

  Tensor read(std::string_view tensor, Dtype dtype, const Extents& shape) const {
    if (file_.dtype(tensor) != dtype || !(file_.shape(tensor) == shape)) {
      raise<ValueError>("{}: tensor '{}': expected {} {}, got {} {}", name_, tensor, dtype, shape, file_.dtype(tensor),
                        file_.shape(tensor));
    }
    return file_.read(tensor);
  }

  KVRows rows(const std::string& tensor, const Extents& shape) const {
    Tensor scales;
    if (dtype(tensor) == Dtype::kInt8) {
      scales = read(tensor + "_scales", Dtype::kFloat32, {shape[0], shape[1], shape[2]});
    }
    return {read(tensor, dtype(tensor), shape), std::move(scales)};
  }

  /// One number a sequence, each in low[b]..high[b].
  Integers per_sequence(std::string_view tensor, const Integers& low, const Integers& high) const {
    const Tensor read_in = read(tensor, Dtype::kInt64, {static_cast<std::int64_t>(low.size())});
    Integers values(read_in.as<std::int64_t>(), read_in.as<std::int64_t>() + low.size());
    for (std::size_t b = 0; b < values.size(); ++b) {
      if (values[b] >= low[b] && values[b] <= high[b]) continue;
      raise<ValueError>("{}: tensor '{}': expected {} to {} for sequence {}, got {}", name_, tensor, low[b], high[b], b,
                        values[b]);
    }
    return values;
  }

  /// What `make` makes of options that were read; what it refuses is wrong with the file.
  template <class Make>
  auto checked(const Make& make) const {
    try {
      return make();
    } catch (const Error& error) {
      raise<ValueError>("{}: {}", name_, std::string_view(error.what()));
    }
  }

  std::optional<Rope> rope(std::int64_t head_dim) const {
    return checked([&] { return attention_detail::rope_in(file_.metadata(), head_dim); });
  }
  CachePositions positions() const {
    return checked([&] { return attention_detail::positions_in(file_.metadata()); });
  }

  template <class... Args>
  [[noreturn]] void refuse(TextFor<Args...> text, const Args&... args) const {
    raise<ValueError>("{}: {}", name_, format_text<Args...>(text, args...));
  }

 private:
  std::string name_;
  SafetensorsFile file_;
};

void add_rows(const std::string& name, const ConstTensorView& numbers, const std::optional<ConstTensorView>& scales,
              std::int64_t slots, std::vector<NamedView>& tensors) {
  tensors.push_back({name, numbers.slice(2, 0, slots)});
  if (scales) tensors.push_back({name + "_scales", scales->slice(2, 0, slots)});
}

/// What a file says of the cache that it was.
KVCacheOptions options_in(const KVFile& file, const Extents& k, const Extents& v) {
  KVCacheOptions options;
  options.batch = k[0];
  options.num_kv_heads = k[1];
  options.head_dim = k[3];
  options.capacity = file.number("capacity");
  options.value_dim = v[3];
  options.k_dtype = file.dtype("k");
  options.v_dtype = file.dtype("v");
  options.num_sinks = file.number("num_sinks");
  if (file.has("window")) options.window = file.number("window");
  options.rope = file.rope(options.head_dim);
  options.positions = file.positions();
  if (k[2] > options.capacity) file.refuse("tensor 'k': {} slots do not fit a capacity of {}", k[2], options.capacity);
  return options;
}

PagedKVCacheOptions page_options_in(const KVFile& file, const Extents& k, const Extents& v) {
  PagedKVCacheOptions options;
  options.batch = file.shape("page_table", 2)[0];
  options.num_kv_heads = k[1];
  options.head_dim = k[3];
  options.num_pages = file.number("num_pages");
  options.page_size = k[2];
  options.value_dim = v[3];
  options.k_dtype = file.dtype("k");
  options.v_dtype = file.dtype("v");
  options.rope = file.rope(options.head_dim);
  options.positions = file.positions();
  if (k[0] > options.num_pages) file.refuse("tensor 'k': {} pages do not fit into {}", k[0], options.num_pages);
  return options;
}

KVPair pair_in(const KVFile& file, const Extents& k, const Extents& v) {
  KVPair pair;
  pair.k = file.rows("k", k);
  pair.v = file.rows("v", {k[0], k[1], k[2], v[3]});
  return pair;
}

/// Slots that each sequence has filled.
Integers filled_slots(std::span<const std::int64_t> lengths, std::int64_t capacity) {
  Integers filled;
  for (const std::int64_t length : lengths) filled.push_back(std::min(length, capacity));
  return filled;
}

std::int64_t largest(const Integers& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

}  // namespace

void KVCache::save(const std::filesystem::path& path) const {
  const State& state = this->state();
  const KVCacheOptions& options = state.options;
  const std::int64_t slots = largest(filled_slots(state.lengths, options.capacity));
  std::vector<NamedView> tensors;
  add_rows("k", state.pair.k.numbers(), state.pair.k.scales(), slots, tensors);
  add_rows("v", state.pair.v.numbers(), state.pair.v.scales(), slots, tensors);
  tensors.push_back({"lengths", qkv::view(state.lengths.data(), {options.batch})});
  Metadata metadata{{std::string(kFormat), std::string(kSlotsFormat)},
                    {"capacity", std::to_string(options.capacity)},
                    {"num_sinks", std::to_string(options.num_sinks)}};
  if (options.window) {
    metadata["window"] = std::to_string(*options.window);
    tensors.push_back({"kept_from", qkv::view(state.kept_from.data(), {options.batch})});
  }
  if (options.rope) attention_detail::add_rope(*options.rope, metadata);
  attention_detail::add_positions(options.positions, metadata);
  write_safetensors(path, metadata, tensors);
}

KVCache KVCache::load(const std::filesystem::path& path) {
  const KVFile file(path, kSlotsFormat);
  const Extents k = file.shape("k", 4);
  const Extents v = file.shape("v", 4);
  const KVCacheOptions options = options_in(file, k, v);
  auto state = file.checked([&] { return std::make_unique<State>(options); });

  const auto batch = static_cast<std::size_t>(options.batch);
  const std::int64_t longest = options.window ? state->most_keys() : k[2];
  state->lengths = file.per_sequence("lengths", Integers(batch, 0), Integers(batch, longest));
  const Integers filled = filled_slots(state->lengths, options.capacity);
  if (batch > 0 && largest(filled) != k[2]) file.refuse("tensor 'k': {} slots are not those of the lengths", k[2]);
  if (options.window) {
    Integers low;
    Integers high;
    for (const std::int64_t length : state->lengths) {
      low.push_back(std::max(options.num_sinks, length - state->ring()));
      high.push_back(std::max(options.num_sinks, length));
    }
    state->kept_from = file.per_sequence("kept_from", low, high);
  }
  const KVPair saved = pair_in(file, k, v);
  for (std::size_t b = 0; b < batch; ++b) {
    const KVSlots slots{static_cast<std::int64_t>(b), 0, filled[b]};
    state->pair.copy(slots, saved, slots);
  }
  return KVCache(std::move(state));
}

void PagedKVCache::save(const std::filesystem::path& path) const {
  const State& state = this->state();
  const PagedKVCacheOptions& options = state.options;
  // Pages in the order in which sequences use them.
  std::map<std::int32_t, std::int64_t> number;
  std::int64_t most = 0;
  for (const std::int64_t length : state.lengths) most = std::max(most, state.pages_for(length));
  Tensor table({options.batch, most}, Dtype::kInt64);
  for (std::size_t b = 0; b < state.lengths.size(); ++b) {
    std::int64_t* row = table.as<std::int64_t>() + static_cast<std::int64_t>(b) * most;
    std::fill_n(row, most, std::int64_t{-1});
    for (std::int64_t p = 0; p < state.pages_for(state.lengths[b]); ++p) {
      row[p] = number.try_emplace(state.page(b, p), std::ssize(number)).first->second;
    }
  }
  attention_detail::KVShape shape = state.shape();
  shape.entries = std::ssize(number);
  KVPair pages(shape);
  for (const auto& [page, index] : number)
    pages.copy({index, 0, options.page_size}, state.pair, {page, 0, options.page_size});
  std::vector<NamedView> tensors;
  add_rows("k", pages.k.numbers(), pages.k.scales(), options.page_size, tensors);
  add_rows("v", pages.v.numbers(), pages.v.scales(), options.page_size, tensors);
  tensors.push_back({"lengths", qkv::view(state.lengths.data(), {options.batch})});
  tensors.push_back({"page_table", table.view()});
  Metadata metadata{{std::string(kFormat), std::string(kPagesFormat)},
                    {"num_pages", std::to_string(options.num_pages)}};
  if (options.rope) attention_detail::add_rope(*options.rope, metadata);
  attention_detail::add_positions(options.positions, metadata);
  write_safetensors(path, metadata, tensors);
}

PagedKVCache PagedKVCache::load(const std::filesystem::path& path) {
  const KVFile file(path, kPagesFormat);
  const Extents k = file.shape("k", 4);
  const Extents v = file.shape("v", 4);
  const PagedKVCacheOptions options = page_options_in(file, k, v);
  const Tensor table = file.read("page_table", Dtype::kInt64, file.shape("page_table", 2));
  auto state = file.checked([&] { return std::make_unique<State>(options); });

  const auto batch = static_cast<std::size_t>(options.batch);
  const std::int64_t most = table.shape()[1];
  if (most > options.num_pages) {
    file.refuse("tensor 'page_table': {} pages a sequence do not fit into {}", most, options.num_pages);
  }
  state->widen_table(most);
  state->lengths = file.per_sequence("lengths", Integers(batch, 0), Integers(batch, most * k[2]));
  for (std::size_t b = 0; b < batch; ++b) {
    const std::int64_t* row = table.as<std::int64_t>() + static_cast<std::int64_t>(b) * most;
    for (std::int64_t p = 0; p < state->pages_for(state->lengths[b]); ++p) {
      if (row[p] < 0 || row[p] >= k[0]) {
        file.refuse("tensor 'page_table': expected one of the {} pages, from 0 on, got {} at [{}, {}]", k[0], row[p], b,
                    p);
      }
      state->page(b, p) = static_cast<std::int32_t>(row[p]);
      ++state->users[static_cast<std::size_t>(row[p])];
    }
  }
  std::erase_if(state->free, [&](std::int32_t page) { return state->users[static_cast<std::size_t>(page)] > 0; });
  const KVPair saved = pair_in(file, k, v);
  for (std::int64_t page = 0; page < k[0]; ++page) {
    state->pair.copy({page, 0, k[2]}, saved, {page, 0, k[2]});
  }
  return PagedKVCache(std::move(state));
}

}  // namespace qkv
