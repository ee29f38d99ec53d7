#include "attention/kv_rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/element.h"
#include "kernels/narrow.h"

namespace qkv::attention_detail {
namespace {

/// Numbers of any real dtype, `stride` apart, as floats or doubles.
template <class Number>
void read_row(const void* from, Dtype dtype, std::int64_t stride, std::vector<Number>& to) {
  visit_real(dtype, [&]<class T>(T) {
    const T* numbers = static_cast<const T*>(from);
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i] = static_cast<Number>(numbers[static_cast<std::int64_t>(i) * stride]);
    }
  });
}

}  // namespace

KVRounding::KVRounding(const ConstTensorView& rows, Dtype to)
    : columns_(rows.extent(3)), stride_(rows.stride(3)), from_(rows.dtype()), to_(to) {
  const bool side_by_side = stride_ == 1;
  as_they_are_ = from_ == to_ && side_by_side;
  if (as_they_are_) return;
  // Two roundings, by way of float32, are not one; a whole number is none the better for it.
  through_doubles_ = to_ == Dtype::kFloat64 || (from_ == Dtype::kFloat64 && to_ != Dtype::kInt8);
  if (through_doubles_) {
    doubles_.resize(static_cast<std::size_t>(columns_));
  } else if (from_ != Dtype::kFloat32 || !side_by_side) {
    floats_.resize(static_cast<std::size_t>(columns_));
  }
}

float KVRounding::operator()(const void* from, void* to) noexcept {
  if (as_they_are_) {
    std::memcpy(to, from, static_cast<std::size_t>(columns_) * size_of(to_));
    return 0;
  }
  if (through_doubles_) {
    const bool in_place = from_ == Dtype::kFloat64 && stride_ == 1;
    if (!in_place) read_row(from, from_, stride_, doubles_);
    narrow_doubles(in_place ? static_cast<const double*>(from) : doubles_.data(), to);
    return 0;
  }
  if (floats_.empty()) return narrowed(static_cast<const float*>(from), to);
  read_row(from, from_, stride_, floats_);
  return narrowed(floats_.data(), to);
}

void KVRounding::narrow_doubles(const double* from, void* to) const {
  switch (to_) {
    case Dtype::kBFloat16:
      return kernels::narrow(from, columns_, static_cast<BFloat16*>(to));
    case Dtype::kFloat16:
      return kernels::narrow(from, columns_, static_cast<Float16*>(to));
    case Dtype::kFloat64:
      std::copy_n(from, columns_, static_cast<double*>(to));
      return;
    default:
      std::transform(from, from + columns_, static_cast<float*>(to), [](double x) { return static_cast<float>(x); });
  }
}

float KVRounding::narrowed(const float* from, void* to) const {
  switch (to_) {
    case Dtype::kInt8:
      return kernels::narrow(from, columns_, static_cast<std::int8_t*>(to));
    case Dtype::kBFloat16:
      kernels::narrow(from, columns_, static_cast<BFloat16*>(to));
      return 0;
    case Dtype::kFloat16:
      kernels::narrow(from, columns_, static_cast<Float16*>(to));
      return 0;
    default:
      std::copy_n(from, columns_, static_cast<float*>(to));
      return 0;
  }
}

KVRows::KVRows(const Extents& shape, Dtype dtype) : numbers_(shape, dtype) {
  if (dtype == Dtype::kInt8) scales_ = Tensor({shape[0], shape[1], shape[2]}, Dtype::kFloat32);
}

std::int64_t KVRows::row(std::int64_t entry, std::int64_t head, std::int64_t slot) const {
  const Extents& shape = numbers_.shape();
  return (entry * shape[1] + head) * shape[2] + slot;
}

std::int64_t KVRows::row_bytes() const {
  return numbers_.shape()[3] * static_cast<std::int64_t>(size_of(numbers_.dtype()));
}

void KVRows::write(const KVSlots& to, const ConstTensorView& rows, std::int64_t first, KVRounding& round) noexcept {
  if (to.count == 0 || numbers_.shape()[3] == 0) return;  // nothing is there, and strides may be anything
  const bool scaled = numbers_.dtype() == Dtype::kInt8;
  const auto item = static_cast<std::int64_t>(size_of(rows.dtype()));
  for (std::int64_t head = 0; head < rows.extent(0); ++head) {
    for (std::int64_t i = 0; i < to.count; ++i) {
      const std::int64_t offset = head * rows.stride(0) + (first + i) * rows.stride(1);
      const std::int64_t at = row(to.entry, head, to.slot + i);
      const float scale =
          round(static_cast<const char*>(rows.data()) + offset * item, numbers_.as<char>() + at * row_bytes());
      if (scaled) scales_.as<float>()[at] = scale;
    }
  }
}

void KVRows::copy(const KVSlots& to, const KVRows& other, const KVSlots& from) {
  if (to.count == 0 || numbers_.shape()[3] == 0) return;
  const auto bytes = static_cast<std::size_t>(to.count * row_bytes());
  for (std::int64_t head = 0; head < numbers_.shape()[1]; ++head) {
    const std::int64_t target = row(to.entry, head, to.slot);
    const std::int64_t source = other.row(from.entry, head, from.slot);
    std::memcpy(numbers_.as<char>() + target * row_bytes(), other.numbers_.as<char>() + source * row_bytes(), bytes);
    if (numbers_.dtype() != Dtype::kInt8) continue;
    std::copy_n(other.scales_.as<float>() + source, to.count, scales_.as<float>() + target);
  }
}

KVRows::Place KVRows::place_of(const KVSlots& slots) noexcept {
  const Extents& shape = numbers_.shape();
  return {numbers_.as<char>() + row(slots.entry, 0, slots.slot) * row_bytes(), shape[2] * shape[3]};
}

std::optional<ConstTensorView> KVRows::scales() const {
  if (numbers_.dtype() != Dtype::kInt8) return std::nullopt;
  return scales_.view();
}

std::int64_t KVRows::nbytes() const noexcept {
  const auto bytes_of = [](const Tensor& tensor) {
    return tensor.shape().size() == 0 ? 0 : tensor.num_elements() * static_cast<std::int64_t>(size_of(tensor.dtype()));
  };
  return bytes_of(numbers_) + bytes_of(scales_);
}

}  // namespace qkv::attention_detail
