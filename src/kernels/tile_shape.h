#ifndef QKV_SRC_KERNELS_TILE_SHAPE_H_
#define QKV_SRC_KERNELS_TILE_SHAPE_H_

#include <cstdint>

namespace qkv::kernels {

/// Query rows of the register tile, on every target: 6 x 4 accumulators, 4 loads and a broadcast fit 32 registers; 6 x 2
/// fit 16.
inline constexpr int kTileRows = 6;
/// Floats of the widest vector that a kernel uses: what layouts that do not depend on the target are padded to.
inline constexpr std::int64_t kMostLanes = 16;

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_TILE_SHAPE_H_
