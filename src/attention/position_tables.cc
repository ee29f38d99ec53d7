#include <cmath>
#include <cstring>

#include "attention/arguments.h"
#include "attention/rope_angles.h"
#include "base/element.h"
#include "base/shape.h"
#include "qkv/position.h"

namespace qkv {
namespace {

using attention_detail::Arguments;
using attention_detail::Axes;
using attention_detail::kFarthestPosition;

constexpr Axes kTableAxes{"[size, dim]", 2, 2};
constexpr Axes kIdAxes{"[n] or [batch, n]", 1, 2};
constexpr Axes kRowAxes{"[n, dim] or [batch, n, dim]", 2, 3};

char* address(const TensorView& view, std::int64_t offset) {
  return static_cast<char*>(view.data()) + offset * static_cast<std::int64_t>(size_of(view.dtype()));
}

const char* address(const ConstTensorView& view, std::int64_t offset) {
  return static_cast<const char*>(view.data()) + offset * static_cast<std::int64_t>(size_of(view.dtype()));
}

std::int64_t id_at(const ConstTensorView& ids, std::int64_t b, std::int64_t i) {
  const std::int64_t at = b * ids.stride(0) + i * ids.stride(1);
  return ids.dtype() == Dtype::kInt32 ? ids.as<std::int32_t>()[at] : ids.as<std::int64_t>()[at];
}

/// A table of learned rows and where they go, checked, with all axes.
struct Lookup {
  ConstTensorView table;
  ConstTensorView ids;  ///< [batch, n]
  TensorView out;       ///< [batch, n, dim]
};

Lookup check_lookup(const ConstTensorView& table, const ConstTensorView& ids, const TensorView& out) {
  Arguments arguments("qkv::learned_positions");
  Lookup lookup;
  lookup.table = arguments.read("table", table, kTableAxes);
  arguments.expect_real("table", table);
  lookup.ids = arguments.read("ids", ids, kIdAxes);
  if (ids.dtype() != Dtype::kInt32 && ids.dtype() != Dtype::kInt64) {
    arguments.refuse<DtypeError>("ids", "expected int32 or int64, got {}", ids.dtype());
  }
  lookup.out = arguments.written("out", out, kRowAxes);
  arguments.expect_dtype("out", out, table.dtype());
  arguments.expect_shape("out", out, lookup.out, {lookup.ids.extent(0), lookup.ids.extent(1), table.extent(1)},
                         "[batch, n, dim]");
  for (std::int64_t b = 0; b < lookup.ids.extent(0); ++b) {
    for (std::int64_t i = 0; i < lookup.ids.extent(1); ++i) {
      const std::int64_t id = id_at(lookup.ids, b, i);
      if (id >= 0 && id < table.extent(0)) continue;
      arguments.refuse<ValueError>("ids", "the table has {} positions, 0 to {}; got {} at [{}, {}]", table.extent(0),
                                   table.extent(0) - 1, id, b, i);
    }
  }
  return lookup;
}

void copy_row(const ConstTensorView& table, std::int64_t id, const TensorView& out, std::int64_t to) {
  const std::size_t item = size_of(table.dtype());
  const std::int64_t from = id * table.stride(0);
  for (std::int64_t c = 0; c < table.extent(1); ++c) {
    std::memcpy(address(out, to + c * out.stride(2)), address(table, from + c * table.stride(1)), item);
  }
}

void check_sinusoidal(const TensorView& out, const SinusoidalOptions& options) {
  Arguments arguments("qkv::sinusoidal_positions");
  arguments.written("out", out, {"[n, dim]", 2, 2});
  arguments.expect_real("out", out);
  if (!std::isfinite(options.base) || options.base <= 1) {
    arguments.refuse<ValueError>("base", "expected a finite number above 1, got {}", options.base);
  }
  if (out.extent(0) == 0) return;
  if (options.first < -kFarthestPosition || options.first > kFarthestPosition - (out.extent(0) - 1)) {
    arguments.refuse<ValueError>("first", "expected positions from -2^53 to 2^53, got {} rows from {} on",
                                 out.extent(0), options.first);
  }
}

}  // namespace

void sinusoidal_positions(TensorView out, const SinusoidalOptions& options) {
  check_sinusoidal(out, options);
  const std::int64_t dim = out.extent(1);
  for (std::int64_t c = 0; c < dim; ++c) {
    // In double the rounded exponent, times ln(base), would show.
    const long double exponent = static_cast<long double>(c - c % 2) / static_cast<long double>(dim);
    const auto frequency = static_cast<double>(1 / std::pow(static_cast<long double>(options.base), exponent));
    for (std::int64_t i = 0; i < out.extent(0); ++i) {
      const double angle = static_cast<double>(options.first + i) * frequency;
      const double value = c % 2 == 0 ? std::sin(angle) : std::cos(angle);
      put_number(value, address(out, i * out.stride(0) + c * out.stride(1)), out.dtype());
    }
  }
}

void learned_positions(ConstTensorView table, ConstTensorView ids, TensorView out) {
  const Lookup lookup = check_lookup(table, ids, out);
  for (std::int64_t b = 0; b < lookup.ids.extent(0); ++b) {
    for (std::int64_t i = 0; i < lookup.ids.extent(1); ++i) {
      copy_row(lookup.table, id_at(lookup.ids, b, i), lookup.out, b * lookup.out.stride(0) + i * lookup.out.stride(1));
    }
  }
}

}  // namespace qkv
