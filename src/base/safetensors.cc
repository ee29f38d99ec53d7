#include "base/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <optional>

#include "base/raise.h"

namespace qkv {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian, and read as they are");

/// A bool that is neither 0 nor 1 may count as both at once.
void check_bools(std::span<const std::byte> bytes, std::string_view file, std::string_view tensor) {
  const auto bad = std::find_if(bytes.begin(), bytes.end(), [](std::byte byte) { return byte > std::byte{1}; });
  if (bad == bytes.end()) return;
  raise<ValueError>("{}: tensor '{}': element {} is {}, expected 0 or 1 for bool", file, safetensors_printable(tensor),
                    bad - bytes.begin(), std::to_integer<int>(*bad));
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), name_(safetensors_printable(path.native(), kSafetensorsMaxPath)) {
  std::array<std::byte, kSafetensorsPrefix> prefix = {};
  const std::size_t got = file_.read(0, prefix);
  const std::size_t length = safetensors_header_length(std::span(prefix).first(got), file_.size(), name_);
  std::string json(length, '\0');
  const std::size_t read = file_.read(kSafetensorsPrefix, std::as_writable_bytes(std::span(json)));
  if (read < length) raise<ValueError>("{}: ends after {} bytes of its header, expected {}", name_, read, length);
  data_begin_ = kSafetensorsPrefix + length;
  header_ = parse_safetensors_header(json, file_.size() - data_begin_, name_);
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  names.reserve(header_.tensors.size());
  for (const auto& [name, entry] : header_.tensors) names.push_back(name);
  return names;
}

const SafetensorsEntry& SafetensorsFile::entry(std::string_view name) const {
  const auto found = header_.tensors.find(name);
  if (found == header_.tensors.end()) {
    raise<ValueError>("{}: no tensor '{}' among its {}", name_, safetensors_printable(name), header_.tensors.size());
  }
  return found->second;
}

Dtype SafetensorsFile::dtype(std::string_view name) const {
  const std::string& text = entry(name).dtype;
  const std::optional<Dtype> dtype = dtype_of_safetensors(text);
  if (!dtype) {
    raise<ValueError>("{}: tensor '{}': dtype '{}', expected F64, F32, F16, BF16, I64, I32, I16, I8, U8 or BOOL", name_,
                      safetensors_printable(name), safetensors_printable(text));
  }
  return *dtype;
}

Extents SafetensorsFile::shape(std::string_view name) const {
  const SafetensorsEntry& found = entry(name);
  if (found.rank > kMaxRank) {
    raise<ValueError>("{}: tensor '{}' has {} axes, expected at most {}", name_, safetensors_printable(name),
                      found.rank, kMaxRank);
  }
  return found.shape;
}

Tensor SafetensorsFile::read(std::string_view name) const {
  const SafetensorsEntry& found = entry(name);
  Tensor tensor(shape(name), dtype(name));
  const std::span bytes(static_cast<std::byte*>(tensor.view().data()),
                        static_cast<std::size_t>(found.end - found.begin));
  const std::size_t got = file_.read(data_begin_ + static_cast<std::uint64_t>(found.begin), bytes);
  if (got < bytes.size()) {
    raise<ValueError>("{}: tensor '{}': {} bytes, expected {}: the file became shorter after it was opened", name_,
                      safetensors_printable(name), got, bytes.size());
  }
  if (tensor.dtype() == Dtype::kBool) check_bools(bytes, name_, name);
  return tensor;
}

}  // namespace qkv
