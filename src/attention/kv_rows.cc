#include "attention/kv_rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/element.h"
#include "kernels/narrow.h"

namespace qkv::attention_detail {
namespace {

/// Rows of one dtype and stride as floats or, where floats do not hold them, as doubles.
template <class Number>
void read_row(const void* from, const ConstTensorView& rows, Number* to) {
  visit_real(rows.dtype(), [&]<class T>(T) {
    const T* numbers = static_cast<const T*>(from);
    const std::int64_t stride = rows.stride(2);
    for (std::int64_t i = 0; i < rows.extent(2); ++i) to[i] = static_cast<Number>(numbers[i * stride]);
  });
}

/// A row on its way into the cache: memory for its numbers, so that every row of a call uses the same.
class RowWriter {
 public:
  RowWriter(const ConstTensorView& rows, Dtype dtype)
      : rows_(rows), dtype_(dtype), as_they_are_(rows.dtype() == dtype && rows.stride(2) == 1) {
    const auto columns = static_cast<std::size_t>(rows.extent(2));
    if (as_they_are_) return;
    doubles_.resize(through_doubles() ? columns : 0);
    floats_.resize(rows.dtype() == Dtype::kFloat32 && rows.stride(2) == 1 ? 0 : columns);
  }

  /// @return the scale, where the slot is of int8
  float write(const void* from, void* to) {
    const std::int64_t columns = rows_.extent(2);
    if (as_they_are_) {
      std::memcpy(to, from, static_cast<std::size_t>(columns) * size_of(dtype_));
      return 0;
    }
    if (through_doubles()) {
      read_row(from, rows_, doubles_.data());
      for (std::int64_t i = 0; i < columns; ++i) {
        put_number(doubles_[static_cast<std::size_t>(i)], static_cast<char*>(to) + i * item(), dtype_);
      }
      return 0;
    }
    return narrow_floats(floats(from), columns, to);
  }

 private:
  std::int64_t item() const { return static_cast<std::int64_t>(size_of(dtype_)); }

  /// Two roundings, by way of float32, are not one.
  bool through_doubles() const {
    return dtype_ == Dtype::kFloat64 || (rows_.dtype() == Dtype::kFloat64 && dtype_ != Dtype::kInt8);
  }

  const float* floats(const void* from) {
    if (floats_.empty()) return static_cast<const float*>(from);
    read_row(from, rows_, floats_.data());
    return floats_.data();
  }

  float narrow_floats(const float* from, std::int64_t columns, void* to) const {
    switch (dtype_) {
      case Dtype::kInt8:
        return kernels::narrow(from, columns, static_cast<std::int8_t*>(to));
      case Dtype::kBFloat16:
        kernels::narrow(from, columns, static_cast<BFloat16*>(to));
        return 0;
      case Dtype::kFloat16:
        kernels::narrow(from, columns, static_cast<Float16*>(to));
        return 0;
      default:
        std::copy_n(from, columns, static_cast<float*>(to));
        return 0;
    }
  }

  const ConstTensorView& rows_;
  Dtype dtype_;
  bool as_they_are_;
  std::vector<double> doubles_;
  std::vector<float> floats_;
};

}  // namespace

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

void KVRows::write(const KVSlots& to, const ConstTensorView& rows, std::int64_t first) {
  RowWriter writer(rows, numbers_.dtype());
  const bool scaled = numbers_.dtype() == Dtype::kInt8;
  const auto item = static_cast<std::int64_t>(size_of(rows.dtype()));
  for (std::int64_t head = 0; head < rows.extent(0); ++head) {
    for (std::int64_t i = 0; i < to.count; ++i) {
      const std::int64_t offset = head * rows.stride(0) + (first + i) * rows.stride(1);
      const std::int64_t at = row(to.entry, head, to.slot + i);
      const float scale =
          writer.write(static_cast<const char*>(rows.data()) + offset * item, numbers_.as<char>() + at * row_bytes());
      if (scaled) scales_.as<float>()[at] = scale;
    }
  }
}

void KVRows::copy(const KVSlots& to, const KVRows& other, const KVSlots& from) {
  const auto bytes = static_cast<std::size_t>(to.count * row_bytes());
  for (std::int64_t head = 0; head < numbers_.shape()[1]; ++head) {
    const std::int64_t target = row(to.entry, head, to.slot);
    const std::int64_t source = other.row(from.entry, head, from.slot);
    std::memcpy(numbers_.as<char>() + target * row_bytes(), other.numbers_.as<char>() + source * row_bytes(), bytes);
    if (numbers_.dtype() != Dtype::kInt8) continue;
    std::copy_n(other.scales_.as<float>() + source, to.count, scales_.as<float>() + target);
  }
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
