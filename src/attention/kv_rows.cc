#include "attention/kv_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/element.h"

namespace qkv::attention_detail {
namespace {

constexpr double kMostWhole = 127;

/// The scale that brings numbers of at most this size into -127 .. 127.
float scale_of(double largest) {
  auto scale = static_cast<float>(largest / kMostWhole);
  // A scale that is subnormal is coarse: rounded down it would cut the largest numbers off.
  if (static_cast<double>(scale) * (kMostWhole + 0.5) < largest) {
    scale = std::nextafter(scale, std::numeric_limits<float>::infinity());
  }
  // And one of the largest floats, rounded up, would make infinity of 127.
  if (static_cast<double>(scale) * kMostWhole > static_cast<double>(std::numeric_limits<float>::max())) {
    scale = std::nextafter(scale, 0.0f);
  }
  return scale;
}

/// A row of any real dtype to what is stored; through doubles, which hold every such number.
template <class To>
void convert(const double* from, std::int64_t count, To* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(from[i]);
}

}  // namespace

float quantize(const double* from, std::int64_t count, std::int8_t* to) {
  double largest = 0;
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    const double size = std::fabs(from[i]);
    largest = std::max(largest, size);
    finite &= size <= static_cast<double>(std::numeric_limits<float>::max());
  }
  if (!finite) {
    std::fill_n(to, count, std::int8_t{0});
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float scale = scale_of(largest);
  const double inverse = scale > 0 ? 1 / static_cast<double>(scale) : 0;
  constexpr double kToNearest = 0x1.8p52;  // adding it leaves no fraction
  for (std::int64_t i = 0; i < count; ++i) {
    const double whole = (std::clamp(from[i] * inverse, -kMostWhole, kMostWhole) + kToNearest) - kToNearest;
    to[i] = static_cast<std::int8_t>(whole);
  }
  return scale;
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

void KVRows::write(const KVSlots& to, const ConstTensorView& rows, std::int64_t first) {
  const std::int64_t columns = numbers_.view().extent(3);
  const Dtype dtype = numbers_.dtype();
  const bool as_they_are = rows.dtype() == dtype && rows.stride(2) == 1;
  const auto item = static_cast<std::int64_t>(size_of(rows.dtype()));
  std::vector<double> numbers(as_they_are ? 0 : static_cast<std::size_t>(columns));
  for (std::int64_t head = 0; head < rows.extent(0); ++head) {
    for (std::int64_t i = 0; i < to.count; ++i) {
      const std::int64_t offset = head * rows.stride(0) + (first + i) * rows.stride(1);
      const void* from = static_cast<const char*>(rows.data()) + offset * item;
      const std::int64_t at = row(to.entry, head, to.slot + i);
      void* slot = numbers_.as<char>() + at * row_bytes();
      if (as_they_are) {
        std::memcpy(slot, from, static_cast<std::size_t>(columns * item));
        continue;
      }
      read_numbers(from, rows.dtype(), rows.stride(2), columns, numbers.data());
      if (dtype == Dtype::kInt8) {
        scales_.as<float>()[at] = quantize(numbers.data(), columns, static_cast<std::int8_t*>(slot));
      } else {
        visit_real(dtype, [&]<class T>(T) { convert(numbers.data(), columns, static_cast<T*>(slot)); });
      }
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
