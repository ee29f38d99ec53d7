#ifndef QKV_SRC_KERNELS_TILE_SHAPE_H_
#define QKV_SRC_KERNELS_TILE_SHAPE_H_

#include <cstdint>

namespace qkv::kernels {

/// Query rows of the register tile, on every target: 6 x 4 accumulators, 4 loads and a broadcast fit 32 registers; 6 x 2
/// fit 16.
inline constexpr int kTileRows = 6;
/// Floats of the widest vector that a kernel uses: what layouts that do not depend on the target are padded to.
inline constexpr std::int64_t kMostLanes = 16;

/// Calls visit(first row, number of rows) for groups of nearly equal size: 7 rows are 4 + 3, not 6 + 1.
template <class Visit>
void for_each_group(std::int64_t num_rows, const Visit& visit) {
  const std::int64_t groups = (num_rows + kTileRows - 1) / kTileRows;
  std::int64_t first = 0;
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::int64_t size = num_rows / groups + (g < num_rows % groups ? 1 : 0);
    visit(first, size);
    first += size;
  }
}

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_TILE_SHAPE_H_
