#include "random_tensor.h"

#include <functional>

namespace qkv::cli {
namespace {

Tensor filled(const Extents& shape, Dtype dtype, const std::function<double()>& next) {
  Tensor tensor(shape, dtype);
  const std::int64_t count = tensor.num_elements();
  for (std::int64_t i = 0; i < count; ++i) set_element(tensor, i, next());
  return tensor;
}

double number_at(const ConstTensorView& view, std::int64_t offset) {
  return visit_real(view.dtype(), [&]<class T>(T) { return static_cast<double>(view.as<T>()[offset]); });
}

/// Where, counted in elements from the first, the row-major element number `index` of a view lies.
std::int64_t offset_of(const ConstTensorView& view, std::int64_t index) {
  std::int64_t offset = 0;
  for (int axis = view.rank() - 1; axis >= 0; --axis) {
    offset += index % view.extent(axis) * view.stride(axis);
    index /= view.extent(axis);
  }
  return offset;
}

}  // namespace

Tensor Random::normal(const Extents& shape, Dtype dtype) {
  std::normal_distribution<double> distribution;
  return filled(shape, dtype, [&] { return distribution(engine_); });
}

Tensor Random::uniform(const Extents& shape, Dtype dtype, double low, double high) {
  return filled(shape, dtype, [&] { return uniform(low, high); });
}

Tensor Random::coins(const Extents& shape, double probability) {
  Tensor tensor(shape, Dtype::kBool);
  const std::int64_t count = tensor.num_elements();
  for (std::int64_t i = 0; i < count; ++i) tensor.as<bool>()[i] = uniform(0, 1) < probability;
  return tensor;
}

Tensor to_float64(const ConstTensorView& view) {
  Tensor copy(view.shape(), Dtype::kFloat64);
  const std::int64_t count = copy.num_elements();
  for (std::int64_t i = 0; i < count; ++i) {
    copy.as<double>()[i] = number_at(view, offset_of(view, i));
  }
  return copy;
}

Tensor to_dtype(const Tensor& float64, Dtype dtype) {
  std::int64_t next = 0;
  return filled(float64.shape(), dtype, [&] { return float64.as<double>()[next++]; });
}

double element(const Tensor& tensor, std::int64_t index) { return number_at(tensor, index); }

void set_element(Tensor& tensor, std::int64_t index, double value) {
  visit_real(tensor.dtype(), [&]<class T>(T) { tensor.as<T>()[index] = static_cast<T>(value); });
}

}  // namespace qkv::cli
