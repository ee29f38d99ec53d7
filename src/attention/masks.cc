#include "qkv/masks.h"

#include <algorithm>

#include "base/checked.h"
#include "base/raise.h"

namespace qkv {

Tensor padding_mask(std::span<const std::int64_t> lengths, std::int64_t kv_len) {
  if (kv_len < 0) raise<ValueError>("qkv::padding_mask: kv_len: expected at least 0, got {}", kv_len);
  const auto batch = static_cast<std::int64_t>(lengths.size());
  if (!checked_mul(batch, kv_len)) {
    raise<ShapeError>("qkv::padding_mask: kv_len: [{}, 1, 1, {}] has more elements than 63 bits can count", batch,
                      kv_len);
  }
  Tensor mask({batch, 1, 1, kv_len}, Dtype::kBool);
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t length = lengths[static_cast<std::size_t>(b)];
    if (length < 0 || length > kv_len) {
      raise<ValueError>("qkv::padding_mask: lengths: expected 0 to kv_len = {}, got {} for batch {}", kv_len, length,
                        b);
    }
    std::fill_n(mask.as<bool>() + b * kv_len, length, true);
  }
  return mask;
}

Tensor causal_mask(std::int64_t q_len, std::int64_t kv_len, std::optional<std::int64_t> query_offset) {
  if (q_len < 0) raise<ValueError>("qkv::causal_mask: q_len: expected at least 0, got {}", q_len);
  if (kv_len < 0) raise<ValueError>("qkv::causal_mask: kv_len: expected at least 0, got {}", kv_len);
  if (!checked_mul(q_len, kv_len)) {
    raise<ShapeError>("qkv::causal_mask: q_len, kv_len: [{}, {}] has more elements than 63 bits can count", q_len,
                      kv_len);
  }
  const std::int64_t offset = query_offset.value_or(kv_len - q_len);
  Tensor mask({q_len, kv_len}, Dtype::kBool);
  for (std::int64_t i = 0; i < q_len; ++i) {
    bool* row = mask.as<bool>() + i * kv_len;
    // j - i, unlike offset + i, fits whatever the offset.
    for (std::int64_t j = 0; j < kv_len; ++j) row[j] = j - i <= offset;
  }
  return mask;
}

}  // namespace qkv
