// Headers of safetensors files. Whatever comes is refused with a ValueError or is a header that can be relied on; and
// what is read can be written and read again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "base/safetensors_header.h"
#include "qkv/error.h"

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "safetensors_fuzz: %s\n", what);
  std::abort();
}

/// What readers of tensors take for granted.
void check_promises(const qkv::SafetensorsHeader& header, std::uint64_t data_bytes) {
  std::uint64_t total = 0;
  for (const auto& [name, entry] : header.tensors) {
    require(0 <= entry.begin && entry.begin <= entry.end, "offsets are not in order");
    require(static_cast<std::uint64_t>(entry.end) <= data_bytes, "offsets beyond the data");
    const auto bytes = static_cast<std::uint64_t>(entry.end - entry.begin);
    total += bytes;
    if (const auto dtype = qkv::dtype_of_safetensors(entry.dtype)) {
      require(bytes == static_cast<std::uint64_t>(entry.elements) * qkv::size_of(*dtype),
              "bytes differ from the shape's");
      if (entry.rank <= qkv::kMaxRank) {
        const qkv::ConstTensorView view(nullptr, *dtype, entry.shape, qkv::dense_strides(entry.shape));
        require(view.num_elements() == entry.elements, "elements differ from the shape's");
      }
    }
  }
  require(total == data_bytes, "tensors overlap or leave holes");
}

bool fits_views(const qkv::SafetensorsHeader& header) {
  for (const auto& [name, entry] : header.tensors) {
    if (entry.rank > qkv::kMaxRank) return false;
  }
  return true;
}

void check_round_trip(const qkv::SafetensorsHeader& header, std::uint64_t data_bytes) {
  const std::string text = qkv::safetensors_header_text(header, "f");
  const qkv::SafetensorsHeader again = qkv::parse_safetensors_header(text, data_bytes, "f");
  require(again.metadata == header.metadata, "metadata change on their way");
  require(qkv::safetensors_header_text(again, "f") == text, "tensors change on their way");
}

void try_header(std::string_view json, std::uint64_t data_bytes) {
  qkv::SafetensorsHeader header;
  try {
    header = qkv::parse_safetensors_header(json, data_bytes, "f");
  } catch (const qkv::ValueError&) {
    return;
  }
  check_promises(header, data_bytes);
  if (fits_views(header)) check_round_trip(header, data_bytes);
}

void try_file(std::span<const std::byte> bytes) {
  std::size_t length = 0;
  try {
    const auto prefix = bytes.first(std::min(bytes.size(), qkv::kSafetensorsPrefix));
    length = qkv::safetensors_header_length(prefix, bytes.size(), "f");
  } catch (const qkv::ValueError&) {
    return;
  }
  const auto rest = bytes.subspan(qkv::kSafetensorsPrefix);
  try_header({reinterpret_cast<const char*>(rest.data()), length}, rest.size() - length);
}

}  // namespace

/// As a whole file, and as a header whose data have as many bytes as its first byte says: the length before a header
/// would have to grow with each byte that is put into it, which chance seldom does.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try_file(std::as_bytes(std::span(data, size)));
  if (size > 0) try_header({reinterpret_cast<const char*>(data) + 1, size - 1}, data[0]);
  return 0;
}
