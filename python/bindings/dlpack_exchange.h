#ifndef QKV_PYTHON_BINDINGS_DLPACK_EXCHANGE_H_
#define QKV_PYTHON_BINDINGS_DLPACK_EXCHANGE_H_

#include <nanobind/ndarray.h>

#include <cstdint>

/// The C function table of DLPack 1.3 that a tensor type offers as `__dlpack_c_exchange_api__`: the layout alone, with
/// the members that are not called here left untyped. It gives shape, strides and address of a tensor in some 60 ns,
/// where `__dlpack__()` takes two microseconds.
namespace qkv::python {

struct DlpackVersion {
  std::uint32_t major;
  std::uint32_t minor;
};

struct DlpackExchangeHeader {
  DlpackVersion version;
  DlpackExchangeHeader* prev_api;  ///< the same table in an older version, or null
};

/// Valid where header.version.major is 1.
struct DlpackExchangeApi {
  DlpackExchangeHeader header;
  void (*managed_tensor_allocator)();
  void (*managed_tensor_from_py_object_no_sync)();
  void (*managed_tensor_to_py_object_no_sync)();
  /// Describes a tensor that stays the property of py_object: shape and strides live as long as it does. Returns 0, or
  /// -1 with a Python exception set. May be null.
  int (*dltensor_from_py_object_no_sync)(void* py_object, nanobind::dlpack::dltensor* out);
  void (*current_work_stream)();
};

inline constexpr const char* kDlpackExchangeAttribute = "__dlpack_c_exchange_api__";
inline constexpr const char* kDlpackExchangeCapsule = "dlpack_exchange_api";
inline constexpr std::uint32_t kDlpackExchangeMajor = 1;

}  // namespace qkv::python

#endif  // QKV_PYTHON_BINDINGS_DLPACK_EXCHANGE_H_
