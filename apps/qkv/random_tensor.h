#ifndef QKV_APPS_RANDOM_TENSOR_H_
#define QKV_APPS_RANDOM_TENSOR_H_

#include <cstdint>
#include <random>

#include "base/element.h"
#include "qkv/tensor.h"

namespace qkv::cli {

/// Random numbers that depend on a seed and on what they are for, so that checks do not depend on their order.
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t stream) {
    std::seed_seq seeds = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                           static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)};
    engine_.seed(seeds);
  }

  /// Uniform in low..high, both included.
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  double uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(engine_); }

  /// Standard normal numbers of any real dtype, rounded to it.
  Tensor normal(const Extents& shape, Dtype dtype);
  /// The same, uniform in low..high.
  Tensor uniform(const Extents& shape, Dtype dtype, double low, double high);
  /// bool, true with this probability.
  Tensor coins(const Extents& shape, double probability);

 private:
  std::mt19937_64 engine_;
};

/// A dense float64 copy of a view of real numbers, any strides. The conversion is exact.
Tensor to_float64(const ConstTensorView& view);

/// The same numbers in a dense tensor of any real dtype, rounded.
Tensor to_dtype(const Tensor& float64, Dtype dtype);

/// Element number `index`, in row-major order, of a tensor of real numbers.
double element(const Tensor& tensor, std::int64_t index);
void set_element(Tensor& tensor, std::int64_t index, double value);

}  // namespace qkv::cli

#endif  // QKV_APPS_RANDOM_TENSOR_H_
