#ifndef QKV_SRC_KERNELS_CHUNK_STATE_H_
#define QKV_SRC_KERNELS_CHUNK_STATE_H_

#include <cstdint>
#include <vector>

namespace qkv::kernels {

/// What one chunk of keys makes of the few rows of a head, on its way from the thread that has read the chunk to the one
/// that merges all of them: the members of RowBlock and SoftmaxState that are a row's.
struct ChunkState {
  struct Row {
    float max = 0;
    float sum = 0;
    float divisor = 0;
    float entropy = 0;
    float chosen = 0;
    float max_logit = 0;
    float max_raw = 0;
    std::int64_t max_key = -1;
    bool seen = false;
    bool careful = false;
  };

  std::vector<Row> rows;
  std::vector<float> values;  ///< [rows][value_stride]
};

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_CHUNK_STATE_H_
