#ifndef QKV_SRC_BASE_SAFETENSORS_HEADER_H_
#define QKV_SRC_BASE_SAFETENSORS_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "qkv/dtype.h"
#include "qkv/tensor.h"

namespace qkv {

// A safetensors file is the length of its header (8 bytes, little-endian), the header in JSON, and the data. Here is
// the header, apart from any file, so that it can be tested and fuzzed from memory. Nothing in it is trusted; what is
// wrong is a ValueError that begins with `file`, the name to call it by. Memory grows with the header alone: a dozen
// times its bytes, at worst, for millions of the shortest metadata.

/// Bytes of the length, before the header.
inline constexpr std::size_t kSafetensorsPrefix = 8;
/// Most bytes of a header: the limit of the reference implementation.
inline constexpr std::uint64_t kSafetensorsMaxHeader = 100'000'000;
/// Most bytes of a path that errors show: what Linux opens is shorter.
inline constexpr std::size_t kSafetensorsMaxPath = 4096;

/// What the header says of one tensor.
struct SafetensorsEntry {
  std::string dtype;      ///< as it stands there, "F32"
  Extents shape;          ///< its first kMaxRank extents
  std::int64_t rank = 0;  ///< may be more than a view can have
  std::int64_t elements = 0;
  std::int64_t begin = 0;  ///< first byte, counted from the begin of the data
  std::int64_t end = 0;    ///< one past its last byte
};

/// Names may be anything in UTF-8, the empty name too, but hold no zero byte: to C, two of them could be the same.
struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::map<std::string, SafetensorsEntry, std::less<>> tensors;
};

/// "F32"
std::string_view safetensors_name(Dtype dtype) noexcept;
/// Empty for what is no dtype of qkv, "U32" or "F8_E4M3".
std::optional<Dtype> dtype_of_safetensors(std::string_view name) noexcept;

/// The length of the header in a file of this many bytes; the prefix is its first 8 bytes, or all that it has.
std::size_t safetensors_header_length(std::span<const std::byte> prefix, std::uint64_t file_bytes,
                                      std::string_view file);

/// What the header says, checked: the tensors lie in the `data_bytes` that follow it one after the other, without holes
/// and overlaps, and have the bytes that their dtype and shape need. A dtype that qkv does not know may be any text and
/// of any size. Unknown members of a tensor are passed over.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes, std::string_view file);

/// The header as JSON, without the length. Blanks behind it let the data begin at a multiple of 8.
/// @throws ValueError for text that is not UTF-8, a name with a zero byte, a header beyond the limit.
std::string safetensors_header_text(const SafetensorsHeader& header, std::string_view file);

/// A name or path of any bytes as an error may show it: valid UTF-8 without control characters, and "..." for what is
/// beyond so many bytes.
std::string safetensors_printable(std::string_view text, std::size_t limit = 100);

}  // namespace qkv

#endif  // QKV_SRC_BASE_SAFETENSORS_HEADER_H_
