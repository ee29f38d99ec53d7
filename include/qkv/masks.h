#ifndef QKV_MASKS_H_
#define QKV_MASKS_H_

#include <cstdint>
#include <optional>
#include <span>

#include "qkv/export.h"
#include "qkv/tensor.h"

namespace qkv {

/// Which of kv_len padded positions are real: bool [batch, 1, 1, kv_len], true where j < lengths[b].
/// `AttentionOptions::kv_lens` says the same without the memory. @throws ValueError if a length is not in 0..kv_len.
QKV_API Tensor padding_mask(std::span<const std::int64_t> lengths, std::int64_t kv_len);

/// bool [q_len, kv_len], true where j <= query_offset + i; the default offset is kv_len - q_len (bottom-right), as in
/// attention. `AttentionOptions::causal` says the same without the memory. @throws ValueError if a length is negative.
QKV_API Tensor causal_mask(std::int64_t q_len, std::int64_t kv_len, std::optional<std::int64_t> query_offset = {});

}  // namespace qkv

#endif  // QKV_MASKS_H_
