#include "attention/arguments.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "base/shape.h"

namespace qkv::attention_detail {
namespace {

/// Whether the number of elements fits 63 bits; strides of 0 make views of any extent.
bool countable(const Extents& shape) {
  std::int64_t count = 1;
  return std::all_of(shape.begin(), shape.end(),
                     [&](std::int64_t extent) { return !__builtin_mul_overflow(count, extent, &count); });
}

Extents with_leading(const Extents& extents, int rank, std::int64_t value) {
  std::array<std::int64_t, kMaxRank> values = {};
  std::fill(values.begin(), values.begin() + rank, value);
  std::copy(extents.begin(), extents.end(), values.begin() + rank - extents.size());
  return Extents(std::span<const std::int64_t>(values.data(), static_cast<std::size_t>(rank)));
}

template <class View>
View lifted(const View& view, int rank) {
  if (view.rank() == rank) return view;
  return {view.data(), view.dtype(), with_leading(view.shape(), rank, 1), with_leading(view.strides(), rank, 0)};
}

}  // namespace

Arguments::Seen Arguments::check_alone(std::string_view name, const ConstTensorView& view, const Axes& axes) const {
  if (view.rank() < axes.least || view.rank() > axes.most) {
    const std::string count =
        axes.least == axes.most ? format_text("{}", axes.most) : format_text("{} to {}", axes.least, axes.most);
    refuse<ShapeError>(name, "expected {} {} {}, got {} in {}", count, axes.most == 1 ? "axis" : "axes", axes.names,
                       view.rank(), view.shape());
  }
  Seen seen{std::string(name), Footprint(view)};
  if (seen.memory.empty) return seen;
  if (!seen.memory.bounded || !countable(view.shape())) {
    refuse<ShapeError>(name, "{} with strides {} spans more than 63 bits can address", view.shape(), view.strides());
  }
  if (view.data() == nullptr) refuse<ValueError>(name, "the data pointer of {} is null", view.shape());
  if (reinterpret_cast<std::uintptr_t>(view.data()) % size_of(view.dtype()) != 0) {
    refuse<ValueError>(name, "the data pointer is not aligned to the {} bytes of {}", size_of(view.dtype()),
                       view.dtype());
  }
  return seen;
}

void Arguments::check_apart(const Seen& written, const Seen& other) const {
  if (share_memory(written.memory, other.memory)) {
    refuse<ValueError>(written.name, "{} shares memory with {} {}; give it memory of its own",
                       written.memory.view.shape(), other.name, other.memory.view.shape());
  }
}

ConstTensorView Arguments::read(std::string_view name, const ConstTensorView& view, const Axes& axes) {
  const Seen& seen = read_.emplace_back(check_alone(name, view, axes));
  for (const Seen& written : written_) check_apart(written, seen);
  return lifted(view, axes.most);
}

TensorView Arguments::written(std::string_view name, const TensorView& view, const Axes& axes) {
  Seen seen = check_alone(name, view, axes);
  if (has_internal_overlap(seen.memory)) {
    refuse<ValueError>(name, "two elements of {} with strides {} share one address", view.shape(), view.strides());
  }
  for (const Seen& other : read_) check_apart(seen, other);
  for (const Seen& other : written_) check_apart(seen, other);
  written_.push_back(std::move(seen));
  return lifted(view, axes.most);
}

ConstTensorView Arguments::read_per_head(std::string_view name, const ConstTensorView& view, Dtype dtype,
                                         std::int64_t batch, std::int64_t num_heads) {
  const ConstTensorView lifted = read(name, view, {"[num_heads] or [batch, num_heads]", 1, 2});
  expect_term_dtype(name, view, dtype);
  if (lifted.extent(1) != num_heads || (view.rank() == 2 && lifted.extent(0) != batch)) {
    refuse<ShapeError>(name, "expected [num_heads] = [{}] or [batch, num_heads] = [{}, {}], got {}", num_heads, batch,
                       num_heads, view.shape());
  }
  return lifted;
}

void Arguments::expect_dtype(std::string_view name, const ConstTensorView& view, Dtype expected) const {
  if (view.dtype() != expected) refuse<DtypeError>(name, "expected {}, got {}", expected, view.dtype());
}

void Arguments::expect_real(std::string_view name, const ConstTensorView& view) const {
  switch (view.dtype()) {
    case Dtype::kFloat32:
    case Dtype::kFloat64:
    case Dtype::kFloat16:
    case Dtype::kBFloat16:
      return;
    default:
      refuse<DtypeError>(name, "expected float32, float64, float16 or bfloat16, got {}", view.dtype());
  }
}

void Arguments::expect_term_dtype(std::string_view name, const ConstTensorView& view, Dtype dtype) const {
  if (size_of(dtype) > 2) return expect_dtype(name, view, dtype);
  if (view.dtype() == dtype || view.dtype() == Dtype::kFloat32) return;
  refuse<DtypeError>(name, "expected {} or float32, got {}", dtype, view.dtype());
}

void Arguments::expect_shape(std::string_view name, const ConstTensorView& view, const ConstTensorView& lifted,
                             const Extents& expected, std::string_view axes) const {
  if (lifted.shape() == expected) return;
  refuse<ShapeError>(name, "expected {} = {}, got {}", axes, expected, view.shape());
}

}  // namespace qkv::attention_detail
