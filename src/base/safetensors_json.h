#ifndef QKV_SRC_BASE_SAFETENSORS_JSON_H_
#define QKV_SRC_BASE_SAFETENSORS_JSON_H_

#include <optional>
#include <string>
#include <string_view>

#include "base/safetensors_header.h"

namespace qkv {

/// The header as its JSON has it: every member present once and of its type, numbers within 63 bits. Whether the
/// numbers fit together is not looked at. Errors are those of parse_safetensors_header.
SafetensorsHeader read_safetensors_json(std::string_view json, std::string_view file);

/// A JSON string with its quotes; nothing if the text is not UTF-8.
std::optional<std::string> json_quoted(std::string_view text);

}  // namespace qkv

#endif  // QKV_SRC_BASE_SAFETENSORS_JSON_H_
