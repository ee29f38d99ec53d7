#ifndef QKV_TESTS_SUPPORT_RANDOM_H_
#define QKV_TESTS_SUPPORT_RANDOM_H_

#include <cmath>
#include <cstdint>
#include <numbers>

#include "qkv/tensor.h"
#include "support/elements.h"

namespace qkv::support {

/// Reproducible on every platform, unlike the distributions of <random>. Print the seed with SCOPED_TRACE.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {  // SplitMix64
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  /// In [low, high).
  double uniform(double low = 0, double high = 1) {
    return low + (high - low) * (static_cast<double>(bits() >> 11) * 0x1p-53);
  }
  /// In [low, high], both included.
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(double probability) { return uniform() < probability; }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

  void fill_normal(const TensorView& view, double deviation = 1) {
    for_each_index(view.shape(), [&](const Extents& index) { write(view, index, deviation * normal()); });
  }
  void fill_bool(const TensorView& view, double share_true) {
    for_each_index(view.shape(), [&](const Extents& index) { write(view, index, chance(share_true) ? 1 : 0); });
  }
  Tensor normal_tensor(const Extents& shape, Dtype dtype, double deviation = 1) {
    Tensor tensor(shape, dtype);
    fill_normal(tensor, deviation);
    return tensor;
  }
  Tensor bool_tensor(const Extents& shape, double share_true) {
    Tensor tensor(shape, Dtype::kBool);
    fill_bool(tensor, share_true);
    return tensor;
  }

 private:
  std::uint64_t state_;
};

}  // namespace qkv::support

#endif  // QKV_TESTS_SUPPORT_RANDOM_H_
