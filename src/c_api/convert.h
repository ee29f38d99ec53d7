#ifndef QKV_SRC_C_API_CONVERT_H_
#define QKV_SRC_C_API_CONVERT_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>

#include "base/raise.h"
#include "qkv/attention.h"
#include "qkv/qkv.h"
#include "qkv/tensor.h"
#include "qkv/varlen.h"

namespace qkv::c_api {

// From the C structures to the C++ ones. All of these throw ShapeError, DtypeError or ValueError, and `name` is what
// the text calls the argument.

/// @throws ValueError if pointer is null.
void require(const void* pointer, const char* name);

/// Whether size bytes at data are all 0.
bool is_zero(const void* data, std::size_t size) noexcept;

/// A structure that the caller may have compiled against an older or newer header, in this library's size.
/// @throws ValueError if it is null, if struct_size cannot be right, or if a member unknown to this library is set.
template <class Struct>
Struct read_struct(const Struct* given, std::size_t smallest, const char* name) {
  // Structures grow by a member now and then: a size beyond this is memory that nobody has initialised.
  constexpr std::size_t kLargest = 4096;
  require(given, name);
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  if (size < smallest || size > kLargest || size % alignof(Struct) != 0) {
    raise<ValueError>("{}: struct_size is {}, expected {}; has it been initialised?", name, size, sizeof(Struct));
  }
  if (size > sizeof(Struct) && !is_zero(reinterpret_cast<const char*>(given) + sizeof(Struct), size - sizeof(Struct))) {
    raise<ValueError>("{}: struct_size is {}, and a member that this version does not know is set", name, size);
  }
  Struct known = {};
  std::memcpy(&known, given, std::min(size, sizeof(Struct)));
  return known;
}

/// What is behind a descriptor that must be there. @throws ValueError if it or its data is null.
ConstTensorView operand(const qkv_tensor* tensor, const char* name);
TensorView result(const qkv_tensor* tensor, const char* name);

/// The same for one that may be missing: null gives an empty one.
std::optional<ConstTensorView> optional_operand(const qkv_tensor* tensor, const char* name);
std::optional<TensorView> optional_result(const qkv_tensor* tensor, const char* name);

/// Null gives the defaults.
AttentionOptions attention_options(const qkv_attention_options* options);
AttentionOutputs attention_outputs(const qkv_attention_outputs* outputs);
/// The lengths must be there.
VarlenOptions varlen_options(const qkv_varlen_options* options);

}  // namespace qkv::c_api

#endif  // QKV_SRC_C_API_CONVERT_H_
