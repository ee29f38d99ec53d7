#include "base/safetensors_header.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/raise.h"
#include "base/safetensors_json.h"

namespace qkv {
namespace {

using Named = std::pair<const std::string, SafetensorsEntry>;

constexpr std::array<std::pair<Dtype, std::string_view>, 10> kNames = {{
    {Dtype::kFloat64, "F64"},
    {Dtype::kFloat32, "F32"},
    {Dtype::kFloat16, "F16"},
    {Dtype::kBFloat16, "BF16"},
    {Dtype::kInt64, "I64"},
    {Dtype::kInt32, "I32"},
    {Dtype::kInt16, "I16"},
    {Dtype::kInt8, "I8"},
    {Dtype::kUInt8, "U8"},
    {Dtype::kBool, "BOOL"},
}};

std::string shown(const Named& tensor) { return "tensor '" + safetensors_printable(tensor.first) + "'"; }

/// Its offsets with each other and with what dtype and shape need.
void check_bytes(const Named& tensor, std::string_view file) {
  const SafetensorsEntry& entry = tensor.second;
  const Extents offsets{entry.begin, entry.end};
  if (entry.end < entry.begin) {
    raise<ValueError>("{}: {}: data_offsets {} end before they begin", file, shown(tensor), offsets);
  }
  const std::optional<Dtype> dtype = dtype_of_safetensors(entry.dtype);
  if (!dtype) return;
  const auto bytes = checked_mul(entry.elements, static_cast<std::int64_t>(size_of(*dtype)));
  const std::string what =
      entry.rank <= kMaxRank ? to_string(entry.shape) : "of " + std::to_string(entry.rank) + " axes";
  if (!bytes) {
    raise<ValueError>("{}: {}: {} {} has more bytes than 63 bits can count", file, shown(tensor), *dtype, what);
  }
  if (entry.end - entry.begin != *bytes) {
    raise<ValueError>("{}: {}: data_offsets {} hold {} bytes, expected {} for {} {}", file, shown(tensor), offsets,
                      entry.end - entry.begin, *bytes, *dtype, what);
  }
}

/// That each tensor begins where another ends, the first at 0, and that the last one ends with the data.
void check_layout(const SafetensorsHeader& header, std::uint64_t data_bytes, std::string_view file) {
  std::vector<const Named*> tensors;
  tensors.reserve(header.tensors.size());
  for (const Named& tensor : header.tensors) tensors.push_back(&tensor);
  std::sort(tensors.begin(), tensors.end(), [](const Named* a, const Named* b) {
    return std::tie(a->second.begin, a->second.end) < std::tie(b->second.begin, b->second.end);
  });
  std::int64_t reached = 0;
  for (const Named* tensor : tensors) {
    const SafetensorsEntry& entry = tensor->second;
    if (entry.begin != reached) {
      raise<ValueError>("{}: {}: data_offsets {} {}: expected to begin at {}", file, shown(*tensor),
                        Extents{entry.begin, entry.end},
                        std::string_view(entry.begin < reached ? "overlap what lies before" : "leave a hole"), reached);
    }
    reached = entry.end;
  }
  if (static_cast<std::uint64_t>(reached) != data_bytes) {
    raise<ValueError>("{}: {} bytes of data, expected the {} that the tensors take", file, data_bytes, reached);
  }
}

void check_name(std::string_view name, std::string_view file) {
  if (name.find('\0') == std::string_view::npos) return;
  raise<ValueError>("{}: tensor '{}': a zero byte in a name", file, safetensors_printable(name));
}

std::string quoted(std::string_view text, std::string_view what, std::string_view file) {
  std::optional<std::string> quoted = json_quoted(text);
  if (!quoted) raise<ValueError>("{}: {} '{}' is not UTF-8", file, what, safetensors_printable(text));
  return *std::move(quoted);
}

}  // namespace

std::string_view safetensors_name(Dtype dtype) noexcept {
  for (const auto& [known, name] : kNames) {
    if (known == dtype) return name;
  }
  return {};
}

std::optional<Dtype> dtype_of_safetensors(std::string_view name) noexcept {
  for (const auto& [dtype, known] : kNames) {
    if (known == name) return dtype;
  }
  return std::nullopt;
}

std::size_t safetensors_header_length(std::span<const std::byte> prefix, std::uint64_t file_bytes,
                                      std::string_view file) {
  if (prefix.size() < kSafetensorsPrefix) {
    raise<ValueError>("{}: {} bytes, expected at least {} for the length of a header", file, prefix.size(),
                      kSafetensorsPrefix);
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kSafetensorsPrefix; ++i) length |= std::to_integer<std::uint64_t>(prefix[i]) << (8 * i);
  if (length > kSafetensorsMaxHeader) {
    raise<ValueError>("{}: a header of {} bytes, expected at most {}: no safetensors file?", file, length,
                      kSafetensorsMaxHeader);
  }
  if (length > file_bytes - kSafetensorsPrefix) {
    raise<ValueError>("{}: a header of {} bytes, expected at most the {} that follow its length", file, length,
                      file_bytes - kSafetensorsPrefix);
  }
  return static_cast<std::size_t>(length);
}

SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes, std::string_view file) {
  if (!json.starts_with('{')) {
    raise<ValueError>("{}: the header begins with '{}', expected '{{'", file, safetensors_printable(json.substr(0, 1)));
  }
  // To the JSON library a zero byte is the end of the text, whatever stands behind it.
  if (const std::size_t zero = json.find('\0'); zero != std::string_view::npos) {
    raise<ValueError>("{}: no valid JSON at byte {} of the header: a zero byte", file, zero);
  }
  SafetensorsHeader header = read_safetensors_json(json, file);
  for (const Named& tensor : header.tensors) {
    check_name(tensor.first, file);
    check_bytes(tensor, file);
  }
  check_layout(header, data_bytes, file);
  return header;
}

std::string safetensors_header_text(const SafetensorsHeader& header, std::string_view file) {
  std::string text = "{";
  const auto separate = [&text] { text += text.back() == '{' ? "" : ","; };
  if (!header.metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : header.metadata) {
      separate();
      text += quoted(key, "metadata key", file) + ":" + quoted(value, "metadata", file);
    }
    text += "}";
  }
  for (const auto& [name, entry] : header.tensors) {
    check_name(name, file);
    separate();
    text += quoted(name, "tensor", file) + ":{\"dtype\":" + quoted(entry.dtype, "dtype", file) +
            ",\"shape\":" + to_string(entry.shape) + ",\"data_offsets\":" + to_string({entry.begin, entry.end}) + "}";
  }
  text += "}";
  while ((kSafetensorsPrefix + text.size()) % 8 != 0) text += ' ';
  if (text.size() > kSafetensorsMaxHeader) {
    raise<ValueError>("{}: a header of {} bytes, expected at most {}", file, text.size(), kSafetensorsMaxHeader);
  }
  return text;
}

}  // namespace qkv
