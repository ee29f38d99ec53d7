#include "attention/kv_positions.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <variant>

#include "base/raise.h"
#include "base/safetensors.h"

namespace qkv::attention_detail {
namespace {

constexpr std::string_view kKey = "positions";
/// By CachePositions.
constexpr std::string_view kNames[] = {"absolute", "cache"};

}  // namespace

void check_cached_rope(std::string_view function, std::string_view prefix, const std::optional<Rope>& rope,
                       CachePositions positions, std::int64_t head_dim) {
  const auto place = static_cast<std::size_t>(positions);
  if (place >= std::size(kNames)) {
    raise<ValueError>("{}: {}positions: expected absolute or cache, got the number {}", function, prefix, place);
  }
  if (!rope) {
    if (positions == CachePositions::kAbsolute) return;
    raise<ValueError>(
        "{}: {}positions: places in the cache are what a rope turns keys by as they are read, and {}rope is not given",
        function, prefix, prefix);
  }
  if (rope->head_dim() != head_dim) {
    raise<ValueError>("{}: {}rope: expected a Rope of head_dim = {}, that of the keys, got one of {}", function, prefix,
                      head_dim, rope->head_dim());
  }
  if (positions == CachePositions::kCache || !std::holds_alternative<DynamicScaling>(rope->options().scaling)) return;
  raise<ValueError>(
      "{}: {}rope: dynamic scaling changes the frequencies as a sequence grows, and keys that have been turned do not "
      "follow; use yarn, llama3 or linear scaling, or turn q and k by Rope::apply with one seq_len",
      function, prefix);
}

void add_positions(CachePositions positions, Metadata& metadata) {
  if (positions == CachePositions::kAbsolute) return;
  metadata[std::string(kKey)] = kNames[static_cast<std::size_t>(positions)];
}

CachePositions positions_in(const Metadata& metadata) {
  const auto given = metadata.find(std::string(kKey));
  if (given == metadata.end()) return CachePositions::kAbsolute;
  const auto* known = std::find(std::begin(kNames), std::end(kNames), given->second);
  if (known != std::end(kNames)) return static_cast<CachePositions>(known - std::begin(kNames));
  raise<ValueError>("metadata: '{}': expected absolute or cache, got '{}'", kKey, safetensors_printable(given->second));
}

}  // namespace qkv::attention_detail
