#ifndef QKV_PYTHON_BINDINGS_ARRAY_H_
#define QKV_PYTHON_BINDINGS_ARRAY_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>

#include "bindings/element_type.h"
#include "bindings/frameworks.h"
#include "qkv/tensor.h"

/// From Python's arrays to views: the memory as it lies, with the strides that it has. Nothing is ever copied; what
/// cannot be read in place is refused, with the way out in the text.
namespace qkv::python {

/// The kind of an array argument. @throws nb::type_error for anything that is not an array.
Kind require_array(nb::handle object, const char* name);

/// The same for the first array of a call, which says of what kind the others are. @throws ValueError in a trace, too
Kind require_first_array(nb::handle object, const char* name);

/// @throws nb::type_error unless object is of the kind that `first_name` has.
void require_kind(nb::handle object, const char* name, Kind kind, const char* first_name);

/// One array for the length of a call: its memory as a view, and what keeps that memory in place while the interpreter
/// lock is released. Some 300 bytes, made where it stays.
class Array {
 public:
  /// kNew: an array that this call made for a result.
  enum class Access : std::uint8_t { kRead, kWrite, kNew };

  /// @throws DtypeError, ShapeError, ValueError, nb::type_error: naming the argument and what to do.
  Array(nb::handle object, const Parameter& parameter, Access access = Access::kRead);
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() = default;

  Kind kind() const noexcept { return kind_; }
  const nb::object& object() const noexcept { return object_; }
  const TensorView& view() const noexcept { return view_; }
  Dtype dtype() const noexcept { return view_.dtype(); }
  int rank() const noexcept { return view_.rank(); }
  /// The extent of an axis counted from the last (1 = last); axes that the array lacks are 1.
  std::int64_t extent_from_end(int place) const noexcept { return place <= rank() ? view_.extent(rank() - place) : 1; }
  /// Whether it certainly has no more elements than that.
  bool has_at_most(std::int64_t most) const noexcept;

 private:
  void read_numpy(const Parameter& parameter, Access access);
  void read_torch(const Parameter& parameter, const DlpackExchangeApi* exchange);
  void read_torch_methods(const Parameter& parameter);
  void read_dlpack(nb::handle exporter, const Parameter& parameter, Access access);
  void set_view(const nb::dlpack::dltensor& tensor, const Parameter& parameter);

  nb::object object_;
  Kind kind_ = Kind::kNone;
  TensorView view_;
  nb::ndarray<nb::ro> dlpack_;  // held for a DLPack object
};

/// The same memory with leading axes of extent 1 until there are `rank` axes.
TensorView with_rank(const TensorView& view, int rank);

}  // namespace qkv::python

#endif  // QKV_PYTHON_BINDINGS_ARRAY_H_
