#include "qkv/masks.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "bindings/arguments.h"
#include "bindings/bindings.h"

namespace qkv::python {
namespace {

using BoolArray = nb::ndarray<nb::numpy, bool>;

// A NumPy array that owns the tensor's memory.
BoolArray to_numpy(Tensor mask) {
  auto owned = std::make_unique<Tensor>(std::move(mask));
  const nb::capsule owner(owned.get(), [](void* tensor) noexcept { delete static_cast<Tensor*>(tensor); });
  Tensor* tensor = owned.release();
  std::array<std::size_t, kMaxRank> shape = {};
  std::size_t rank = 0;
  for (const std::int64_t extent : tensor->shape()) shape[rank++] = static_cast<std::size_t>(extent);
  return BoolArray(tensor->as<bool>(), rank, shape.data(), owner);
}

[[noreturn]] void raise_no_memory(const char* names, std::int64_t rows, std::int64_t columns) {
  const std::string text = format_text("{}: no memory for a mask of {} times {} bytes", names, rows, columns);
  PyErr_SetString(PyExc_MemoryError, text.c_str());
  nb::raise_python_error();
}

BoolArray padding(nb::handle lengths, nb::handle kv_len) {
  const std::vector<std::int64_t> batch = to_int64s(lengths, "lengths");
  const std::int64_t columns = to_int64(kv_len, "n");
  try {
    return to_numpy(padding_mask(batch, columns));
  } catch (const std::bad_alloc&) {
    raise_no_memory("lengths, n", static_cast<std::int64_t>(batch.size()), columns);
  }
}

BoolArray causal(nb::handle q_len, nb::handle kv_len, nb::handle query_offset) {
  std::optional<std::int64_t> offset;
  if (!query_offset.is_none()) offset = to_int64(query_offset, "query_offset");
  const std::int64_t rows = to_int64(q_len, "q_len");
  const std::int64_t columns = to_int64(kv_len, "kv_len");
  try {
    return to_numpy(causal_mask(rows, columns, offset));
  } catch (const std::bad_alloc&) {
    raise_no_memory("q_len, kv_len", rows, columns);
  }
}

}  // namespace

void bind_masks(nb::module_& m) {
  m.def("padding_mask", &padding, nb::arg().none(), nb::arg().none(),
        nb::sig("def padding_mask(lengths: object, n: int, /) -> numpy.typing.NDArray[numpy.bool_]"));
  m.def("causal_mask", &causal, nb::arg().none(), nb::arg().none(), nb::arg().none(),
        nb::sig("def causal_mask(q_len: int, kv_len: int, query_offset: int | None, /) -> "
                "numpy.typing.NDArray[numpy.bool_]"));
}

}  // namespace qkv::python
