#ifndef QKV_TESTS_SUPPORT_SAFETENSORS_BYTES_H_
#define QKV_TESTS_SUPPORT_SAFETENSORS_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace qkv::support {

inline std::string little_endian(std::uint64_t number, std::size_t bytes = 8) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) text += static_cast<char>(number >> (8 * i) & 0xffU);
  return text;
}

/// A safetensors file put together by hand: whatever the header and the data are.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  return little_endian(header.size()).append(header).append(data);
}

}  // namespace qkv::support

#endif  // QKV_TESTS_SUPPORT_SAFETENSORS_BYTES_H_
