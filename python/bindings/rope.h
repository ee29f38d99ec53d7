#ifndef QKV_PYTHON_BINDINGS_ROPE_H_
#define QKV_PYTHON_BINDINGS_ROPE_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/array.h"

namespace qkv::python {

namespace nb = nanobind;

/// Ints of a call: an array of its kind, or anything that gives ints in an order.
class IntArray {
 public:
  IntArray(nb::handle object, const char* name, Kind kind, const char* first_name);

  ConstTensorView view() const;

 private:
  std::optional<Array> array_;
  std::vector<std::int64_t> values_;
};

/// qkv::Rope; bind_position calls it.
void bind_rope(nb::module_& m);

}  // namespace qkv::python

#endif  // QKV_PYTHON_BINDINGS_ROPE_H_
