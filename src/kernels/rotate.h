#ifndef QKV_SRC_KERNELS_ROTATE_H_
#define QKV_SRC_KERNELS_ROTATE_H_

#include <cstdint>

#include "qkv/dtype.h"

namespace qkv::kernels {

// Rows whose pairs of numbers are turned: (x, y) becomes (x cos - y sin, y cos + x sin). In f64 from float32 and float64,
// in f32 from 16 bits, without fused steps: the same bits on every target.

/// Which numbers of which type make pairs.
struct PairLayout {
  Dtype dtype = Dtype::kFloat32;
  bool interleaved = false;  ///< 2i and 2i + 1; else i and pairs + i
  std::int64_t pairs = 0;

  /// Bytes of the cosines and sines of a row.
  std::int64_t turn_bytes() const noexcept {
    return 2 * pairs * static_cast<std::int64_t>(size_of(dtype) > 2 ? sizeof(double) : sizeof(float));
  }
};

/// The turn by two angles, one after the other: their cosines, then their sines, for each pair.
struct TurnProduct {
  const double* first = nullptr;
  const double* second = nullptr;
  double cosine_factor = 1;  ///< the products are multiplied by these
  double sine_factor = 1;
};

/// Writes layout.turn_bytes() for rotate. Their order is the affair of the two.
void make_turn(const PairLayout& layout, const TurnProduct& product, void* turn);

/// Rows to be turned; elements of a row lie side by side. `to` may be `from`.
struct Rotation {
  PairLayout layout;
  /// layout.dtype, or what pairs are turned in, before they are rounded: float32 from 16 bits, float64 from float32.
  Dtype to_dtype = Dtype::kFloat32;
  std::int64_t columns = 0;  ///< those behind the pairs are copied
  std::int64_t rows = 0;
  const void* turns = nullptr;  ///< of make_turn
  bool alike = false;           ///< all rows turn alike; else each has a turn of its own
  const void* from = nullptr;
  std::int64_t from_stride = 0;  ///< from row to row, in elements
  void* to = nullptr;
  std::int64_t to_stride = 0;
  std::int64_t from_next = 0;  ///< what will be turned next lies so many elements behind these rows; 0: not known
  std::int64_t to_next = 0;
};

void rotate(const Rotation& rotation);

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_ROTATE_H_
