#ifndef QKV_SRC_ATTENTION_ROPE_FREQUENCIES_H_
#define QKV_SRC_ATTENTION_ROPE_FREQUENCIES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "qkv/position.h"

namespace qkv::attention_detail {

/// The options with every default filled in. @throws ValueError naming the one that is wrong
RopeOptions checked_rope_options(std::int64_t head_dim, const RopeOptions& options);

/// Radians a position, of each pair. `options` are checked; a sequence is at least max_position long, if that is given.
std::vector<double> rope_frequencies(const RopeOptions& options, std::optional<std::int64_t> seq_len);

/// Of the scaling; 1 but for YaRN.
double attention_factor_of(const RopeOptions& options);

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_ROPE_FREQUENCIES_H_
