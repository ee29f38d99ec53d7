#ifndef QKV_SRC_ATTENTION_ROPE_METADATA_H_
#define QKV_SRC_ATTENTION_ROPE_METADATA_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "qkv/position.h"

namespace qkv::attention_detail {

// The options of a Rope as the metadata of a file, "rope.base" and so on: read back, they are the same to the bit.

using Metadata = std::map<std::string, std::string>;

void add_rope(const Rope& rope, Metadata& metadata);

/// What add_rope has written, or nothing where there is none.
/// @throws ValueError naming what is missing, no number or unknown, and what Rope itself refuses
std::optional<Rope> rope_in(const Metadata& metadata, std::int64_t head_dim);

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_ROPE_METADATA_H_
