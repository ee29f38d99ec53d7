#include "qkv/position.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/shape.h"
#include "base/text.h"
#include "bindings/arguments.h"
#include "bindings/array.h"
#include "bindings/bindings.h"
#include "bindings/rope.h"
#include "qkv/error.h"

namespace qkv::python {
namespace {

/// An extent of a new array.
std::int64_t to_extent(nb::handle object, const char* name, std::int64_t least = 0) {
  const std::int64_t extent = to_int64(object, name);
  if (extent < least) throw ValueError(format_text("{}: expected at least {}, got {}", name, least, extent));
  return extent;
}

/// The dtype and the kind of a table that depends on numbers alone: its name, and whether it is PyTorch's.
struct TableType {
  explicit TableType(const nb::tuple& given)
      : dtype(to_real_dtype(to_text(given[0], "dtype"))),
        kind(nb::cast<bool>(given[1]) ? Kind::kTorch : Kind::kNumpy) {}

  static Dtype to_real_dtype(const std::string& name) {
    for (const Dtype real : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16}) {
      if (name == name_of(real)) return real;
    }
    throw DtypeError(format_text("dtype: expected {}, got '{}'", std::string_view(kFloatDtypes), name));
  }

  Dtype dtype;
  Kind kind;
};

nb::object sinusoidal(nb::handle n, nb::handle dim, nb::handle first, nb::handle base, const nb::tuple& dtype) {
  const std::array<std::int64_t, 2> shape = {to_extent(n, "n"), to_extent(dim, "dim")};
  const SinusoidalOptions options{.first = to_int64(first, "first"), .base = to_double(base, "base")};
  const TableType type(dtype);
  const Array out(new_array(type.kind, shape, type.dtype), kResult, Array::Access::kNew);
  {
    const nb::gil_scoped_release unlocked;
    sinusoidal_positions(out.view(), options);
  }
  return out.object();
}

nb::object slopes(nb::handle num_heads, const nb::tuple& dtype) {
  const std::array<std::int64_t, 1> shape = {to_extent(num_heads, "num_heads", 1)};
  const TableType type(dtype);
  const Array out(new_array(type.kind, shape, type.dtype), kResult, Array::Access::kNew);
  alibi_slopes(out.view());
  return out.object();
}

nb::object learned(nb::handle table_object, nb::handle ids_object) {
  const Kind kind = require_first_array(table_object, "table");
  const Array table(table_object, {"table", kFloatDtypes});
  const IntArray ids(ids_object, "ids", kind, "table");
  const ConstTensorView places = ids.view();
  std::vector<std::int64_t> shape(places.shape().begin(), places.shape().end());
  shape.push_back(table.extent_from_end(1));
  const Array out(new_array(kind, shape, table.dtype()), kResult, Array::Access::kNew);
  {
    const nb::gil_scoped_release unlocked;
    learned_positions(table.view(), places, out.view());
  }
  return out.object();
}

T5Options t5_options(nb::handle bidirectional, nb::handle max_distance) {
  return {.bidirectional = to_flag(bidirectional, "bidirectional"),
          .max_distance = to_int64(max_distance, "max_distance")};
}

/// Buckets of an array of any shape and strides, one after the other in row-major order.
struct Buckets {
  ConstTensorView relative;
  std::int64_t num_buckets;
  const T5Options& options;
  std::int64_t* to;

  void fill() {
    if (has_no_elements(relative.shape())) return;
    if (relative.dtype() == Dtype::kInt32) return fill(0, relative.as<std::int32_t>());
    fill(0, relative.as<std::int64_t>());
  }

 private:
  template <class Int>
  void fill(int axis, const Int* from) {
    if (axis == relative.rank()) return put(*from);
    const std::int64_t count = relative.extent(axis);
    const std::int64_t stride = relative.stride(axis);
    if (axis + 1 == relative.rank()) {
      for (std::int64_t i = 0; i < count; ++i) put(from[i * stride]);
      return;
    }
    for (std::int64_t i = 0; i < count; ++i) fill(axis + 1, from + i * stride);
  }
  void put(std::int64_t distance) { *to++ = t5_bucket(distance, num_buckets, options); }
};

nb::object bucket(nb::handle relative, nb::handle bidirectional, nb::handle num_buckets, nb::handle max_distance) {
  const T5Options options = t5_options(bidirectional, max_distance);
  const std::int64_t buckets = to_int64(num_buckets, "num_buckets");
  if (array_type_of(relative).kind == Kind::kNone) {
    return nb::int_(t5_bucket(to_int64(relative, "relative"), buckets, options));
  }
  const Kind kind = require_first_array(relative, "relative");
  const Array given(relative, {"relative", kIndexDtypes});
  if (given.dtype() != Dtype::kInt32 && given.dtype() != Dtype::kInt64) {
    raise_dtype({"relative", kIndexDtypes}, std::string(name_of(given.dtype())));
  }
  t5_bucket(0, buckets, options);  // what is wrong with the options is said of an empty array, too
  const std::vector<std::int64_t> shape(given.view().shape().begin(), given.view().shape().end());
  const Array out(new_array(kind, shape, Dtype::kInt64), kResult, Array::Access::kNew);
  {
    const nb::gil_scoped_release unlocked;
    Buckets{given.view(), buckets, options, out.view().as<std::int64_t>()}.fill();
  }
  return out.object();
}

nb::object bias(nb::handle table_object, nb::handle q_len, nb::handle kv_len, nb::handle bidirectional,
                nb::handle max_distance, nb::handle query_offset) {
  const Kind kind = require_first_array(table_object, "table");
  const Array table(table_object, {"table", kFloatDtypes});
  T5Options options = t5_options(bidirectional, max_distance);
  options.query_offset = to_int64(query_offset, "query_offset");
  const std::array<std::int64_t, 3> shape = {table.extent_from_end(1), to_extent(q_len, "q_len"),
                                             to_extent(kv_len, "kv_len")};
  const Array out(new_array(kind, shape, table.dtype()), kResult, Array::Access::kNew);
  {
    const nb::gil_scoped_release unlocked;
    t5_bias(table.view(), out.view(), options);
  }
  return out.object();
}

}  // namespace

void bind_position(nb::module_& m) {
  const auto def = [&m](const char* name, auto function, const nb::sig& signature, auto... arguments) {
    m.def(name, function, arguments..., signature);
  };
  const auto any = nb::arg().none();
  def("sinusoidal", &sinusoidal,
      nb::sig("def sinusoidal(n: int, dim: int, first: int, base: float, dtype: tuple[str, bool], /) -> typing.Any"),
      any, any, any, any, nb::arg());
  def("learned", &learned, nb::sig("def learned(table: object, ids: object, /) -> typing.Any"), any, any);
  def("alibi_slopes", &slopes, nb::sig("def alibi_slopes(num_heads: int, dtype: tuple[str, bool], /) -> typing.Any"),
      any, nb::arg());
  def("t5_bucket", &bucket,
      nb::sig("def t5_bucket(relative: object, bidirectional: bool, num_buckets: int, max_distance: int, /) -> "
              "typing.Any"),
      any, any, any, any);
  def("t5_bias", &bias,
      nb::sig("def t5_bias(table: object, q_len: int, kv_len: int, bidirectional: bool, max_distance: int, "
              "query_offset: int, /) -> typing.Any"),
      any, any, any, any, any, any);
  bind_rope(m);
}

}  // namespace qkv::python
