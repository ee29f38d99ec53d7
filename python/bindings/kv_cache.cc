#include "bindings/kv_cache.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/text.h"
#include "bindings/arguments.h"
#include "bindings/array.h"
#include "bindings/bindings.h"
#include "qkv/error.h"
#include "qkv/kv_cache.h"

namespace qkv::python {
namespace {

template <class Cache>
class Bound : public BoundCache {
 public:
  explicit Bound(Cache cache) : cache_(std::move(cache)) {}

  std::int64_t kv_len() const override {
    const auto lengths = cache_.lengths();
    return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  }
  std::int64_t value_dim() const override { return *cache_.options().value_dim; }
  KVView view() const override { return cache_.view(); }

  Cache& cache() noexcept { return cache_; }

 private:
  Cache cache_;
};

using Exclusive = std::unique_lock<std::shared_mutex>;
using Shared = std::shared_lock<std::shared_mutex>;

Dtype dtype_argument(nb::handle name, const char* argument) {
  const std::string text = to_text(name, argument);
  const std::optional<Dtype> dtype = dtype_named(text);
  if (!dtype) {
    throw DtypeError(format_text("{}: expected float32, float64, float16, bfloat16 or int8, got '{}'", argument, text));
  }
  return *dtype;
}

std::optional<std::int64_t> optional_int(nb::handle object, const char* name) {
  if (object.is_none()) return std::nullopt;
  return to_int64(object, name);
}

/// Other threads run while memory is zeroed.
template <class Cache, class Options>
void make(Bound<Cache>* self, const Options& options) {
  std::optional<Cache> made;
  {
    const nb::gil_scoped_release unlocked;
    made.emplace(options);
  }
  new (self) Bound<Cache>(std::move(*made));
}

std::optional<Rope> optional_rope(nb::handle object) {
  if (object.is_none()) return std::nullopt;
  const Rope* rope = nullptr;
  if (nb::try_cast<const Rope*>(object, rope) && rope != nullptr) return *rope;
  throw nb::type_error(
      format_text("rope: expected a qkv.position.Rope, got {}", std::string_view(nb::type_name(object.type()).c_str()))
          .c_str());
}

/// Sizes, dtypes, and (rope, positions), which both kinds have.
template <class Options>
Options common_options(const nb::tuple& sizes, nb::handle value_dim, nb::handle k_dtype, nb::handle v_dtype,
                       const nb::tuple& turning) {
  Options options;
  options.rope = optional_rope(turning[0]);
  options.positions = to_cache_positions(turning[1]);
  options.batch = to_int64(sizes[0], "batch");
  options.num_kv_heads = to_int64(sizes[1], "num_kv_heads");
  options.head_dim = to_int64(sizes[2], "head_dim");
  options.value_dim = optional_int(value_dim, "value_dim");
  options.k_dtype = dtype_argument(k_dtype, "dtype");
  options.v_dtype = dtype_argument(v_dtype, "dtype");
  return options;
}

void make_cache(Bound<KVCache>* self, const nb::tuple& sizes, nb::handle k_dtype, nb::handle v_dtype,
                const nb::tuple& ring, const nb::tuple& turning) {
  auto options = common_options<KVCacheOptions>(sizes, sizes[4], k_dtype, v_dtype, turning);
  options.capacity = to_int64(sizes[3], "capacity");
  options.window = optional_int(ring[0], "window");
  options.num_sinks = to_int64(ring[1], "num_sinks");
  make(self, options);
}

void make_pages(Bound<PagedKVCache>* self, const nb::tuple& sizes, nb::handle k_dtype, nb::handle v_dtype,
                const nb::tuple& turning) {
  auto options = common_options<PagedKVCacheOptions>(sizes, sizes[5], k_dtype, v_dtype, turning);
  options.num_pages = to_int64(sizes[3], "num_pages");
  options.page_size = to_int64(sizes[4], "page_size");
  make(self, options);
}

/// Lengths as they were given. Python's code runs while they are read: never under a lock of the cache.
struct Lengths {
  std::vector<std::int64_t> values;
  bool one = false;  ///< a single int, for all sequences

  explicit Lengths(nb::handle object)
      : values(to_int64s(object, "lengths")),
        one(array_type_of(object).kind == Kind::kNone && PyIndex_Check(object.ptr()) != 0) {}

  /// One for each sequence of a cache that is locked.
  std::vector<std::int64_t> for_batch(std::int64_t batch) const {
    if (one) return std::vector<std::int64_t>(static_cast<std::size_t>(batch), values.front());
    if (static_cast<std::int64_t>(values.size()) != batch) {
      throw ShapeError(format_text("lengths: expected [batch] = [{}], got [{}]", batch, values.size()));
    }
    return values;
  }
};

template <class Cache>
void append(Bound<Cache>& self, nb::handle k, nb::handle v, nb::handle lengths) {
  const Kind kind = require_first_array(k, "k");
  require_kind(v, "v", kind, "k");
  const Array keys(k, {"k", kFloatDtypes});
  const Array values(v, {"v", kFloatDtypes});
  std::optional<Lengths> given;
  if (!lengths.is_none()) given.emplace(lengths);
  const auto lock = locked<Exclusive>(self);
  std::vector<std::int64_t> counts;
  if (given) counts = given->for_batch(self.cache().options().batch);
  constexpr std::int64_t kFew = 1 << 14;  // copied in less time than the interpreter lock takes to hand over
  std::optional<nb::gil_scoped_release> unlocked;
  if (!keys.has_at_most(kFew) || !values.has_at_most(kFew)) unlocked.emplace();
  self.cache().append(keys.view(), values.view(), counts);
}

template <class Cache>
void truncate(Bound<Cache>& self, nb::handle lengths) {
  const Lengths given(lengths);
  const auto lock = locked<Exclusive>(self);
  self.cache().truncate(given.for_batch(self.cache().options().batch));
}

template <class Cache>
void grow(Bound<Cache>& self, nb::handle batch) {
  const std::int64_t wanted = to_int64(batch, "batch");
  const auto lock = locked<Exclusive>(self);
  const nb::gil_scoped_release unlocked;
  self.cache().grow(wanted);
}

void share(Bound<PagedKVCache>& self, nb::handle from, nb::handle to, nb::handle length) {
  const std::int64_t source = to_int64(from, "source");
  const std::int64_t target = to_int64(to, "target");
  const std::optional<std::int64_t> wanted = optional_int(length, "length");
  const auto lock = locked<Exclusive>(self);
  const auto lengths = self.cache().lengths();
  const bool exists = source >= 0 && source < static_cast<std::int64_t>(lengths.size());
  const std::int64_t all = exists ? lengths[static_cast<std::size_t>(source)] : 0;
  self.cache().share(source, target, wanted.value_or(all));
}

/// What `read` makes of a cache that nobody changes meanwhile. It makes no Python object: those may run other code.
template <class Cache, class Read>
auto locked_read(Bound<Cache>& self, const Read& read) {
  const auto lock = locked<Shared>(self);
  return read(self.cache());
}

template <class Cache>
nb::tuple lengths_of(Bound<Cache>& self) {
  const auto lengths = locked_read(self, [](const Cache& cache) {
    return std::vector<std::int64_t>(cache.lengths().begin(), cache.lengths().end());
  });
  nb::list list;
  for (const std::int64_t length : lengths) list.append(length);
  return nb::tuple(list);
}

template <class Cache>
void save(Bound<Cache>& self, const std::string& path) {
  const nb::gil_scoped_release unlocked;
  const Shared lock(self.users());
  self.cache().save(path);
}

template <class Cache>
void load(Bound<Cache>* self, const std::string& path) {
  std::optional<Cache> loaded;
  {
    const nb::gil_scoped_release unlocked;
    loaded.emplace(Cache::load(path));
  }
  new (self) Bound<Cache>(std::move(*loaded));
}

/// One of the sizes that a cache was made for.
template <class Cache, auto member>
std::int64_t option(Bound<Cache>& self) {
  return locked_read(self, [](const Cache& cache) { return cache.options().*member; });
}

template <class Cache>
nb::object rope_of(Bound<Cache>& self) {
  const std::optional<Rope> rope = locked_read(self, [](const Cache& cache) { return cache.options().rope; });
  return rope ? nb::cast(*rope) : nb::none();
}

nb::object optional_value(const std::optional<std::int64_t>& value) {
  return value ? nb::object(nb::int_(*value)) : nb::none();
}

/// What both kinds have.
template <class Cache>
nb::class_<Bound<Cache>, BoundCache> bind_common(nb::module_& m, const char* name) {
  using Options = std::remove_cvref_t<decltype(std::declval<Cache>().options())>;
  nb::class_<Bound<Cache>, BoundCache> type(m, name);
  type.def("__init__", &load<Cache>, nb::sig("def __init__(self, path: str, /) -> None"));
  type.def("append", &append<Cache>, nb::arg().none(), nb::arg().none(), nb::arg().none(),
           nb::sig("def append(self, k: object, v: object, lengths: object, /) -> None"));
  type.def("truncate", &truncate<Cache>, nb::arg().none(), nb::sig("def truncate(self, lengths: object, /) -> None"));
  type.def("grow", &grow<Cache>, nb::arg().none(), nb::sig("def grow(self, batch: int, /) -> None"));
  type.def("save", &save<Cache>, nb::sig("def save(self, path: str, /) -> None"));
  type.def_prop_ro("lengths", &lengths_of<Cache>, nb::sig("def lengths(self) -> tuple[int, ...]"));
  type.def_prop_ro("batch", &option<Cache, &Options::batch>);
  type.def_prop_ro("num_kv_heads", &option<Cache, &Options::num_kv_heads>);
  type.def_prop_ro("head_dim", &option<Cache, &Options::head_dim>);
  type.def_prop_ro("value_dim", [](Bound<Cache>& self) {
    return locked_read(self, [](const Cache& cache) { return *cache.options().value_dim; });
  });
  type.def_prop_ro("nbytes", [](Bound<Cache>& self) {
    return locked_read(self, [](const Cache& cache) { return cache.nbytes(); });
  });
  type.def_prop_ro("rope", &rope_of<Cache>, nb::sig("def rope(self) -> Rope | None"));
  type.def_prop_ro("positions", [](Bound<Cache>& self) {
    const CachePositions positions = locked_read(self, [](const Cache& cache) { return cache.options().positions; });
    return std::string(positions == CachePositions::kAbsolute ? "absolute" : "cache");
  });
  type.def_prop_ro(
      "dtype",
      [](Bound<Cache>& self) {
        const auto [k, v] = locked_read(
            self, [](const Cache& cache) { return std::pair(cache.options().k_dtype, cache.options().v_dtype); });
        return nb::make_tuple(std::string(name_of(k)), std::string(name_of(v)));
      },
      nb::sig("def dtype(self) -> tuple[str, str]"));
  return type;
}

}  // namespace

const BoundCache* cache_of(nb::handle object) {
  BoundCache* cache = nullptr;
  return nb::try_cast<BoundCache*>(object, cache) ? cache : nullptr;
}

void bind_kv_cache(nb::module_& m) {
  nb::class_<BoundCache>(m, "Cache");
  auto cache = bind_common<KVCache>(m, "KVCache");
  cache.def("__init__", &make_cache, nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(),
            nb::sig("def __init__(self, sizes: tuple[object, ...], k_dtype: object, v_dtype: object, "
                    "ring: tuple[object, ...], turning: tuple[object, ...], /) -> None"));
  cache.def_prop_ro("capacity", &option<KVCache, &KVCacheOptions::capacity>);
  cache.def_prop_ro("num_sinks", &option<KVCache, &KVCacheOptions::num_sinks>);
  cache.def_prop_ro(
      "window",
      [](Bound<KVCache>& self) {
        return optional_value(locked_read(self, [](const KVCache& one) { return one.options().window; }));
      },
      nb::sig("def window(self) -> int | None"));
  auto paged = bind_common<PagedKVCache>(m, "PagedKVCache");
  paged.def("__init__", &make_pages, nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(),
            nb::sig("def __init__(self, sizes: tuple[object, ...], k_dtype: object, v_dtype: object, "
                    "turning: tuple[object, ...], /) -> None"));
  paged.def("share", &share, nb::arg().none(), nb::arg().none(), nb::arg().none(),
            nb::sig("def share(self, source: int, target: int, length: int | None, /) -> None"));
  paged.def_prop_ro("num_pages", &option<PagedKVCache, &PagedKVCacheOptions::num_pages>);
  paged.def_prop_ro("page_size", &option<PagedKVCache, &PagedKVCacheOptions::page_size>);
  paged.def_prop_ro("num_free_pages", [](Bound<PagedKVCache>& self) {
    return locked_read(self, [](const PagedKVCache& pages) { return pages.num_free_pages(); });
  });
}

}  // namespace qkv::python
