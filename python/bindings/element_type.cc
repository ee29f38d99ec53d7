#include "bindings/element_type.h"

#include <bit>
#include <string_view>

#include "base/text.h"
#include "qkv/error.h"

namespace qkv::python {

std::optional<Dtype> dtype_of(const nb::dlpack::dtype& dtype) {
  using Code = nb::dlpack::dtype_code;
  if (dtype.lanes != 1) return std::nullopt;
  const auto is = [&](Code code, int bits) {
    return dtype.code == static_cast<std::uint8_t>(code) && dtype.bits == bits;
  };
  if (is(Code::Float, 32)) return Dtype::kFloat32;
  if (is(Code::Float, 64)) return Dtype::kFloat64;
  if (is(Code::Float, 16)) return Dtype::kFloat16;
  if (is(Code::Bfloat, 16)) return Dtype::kBFloat16;
  if (is(Code::Bool, 8)) return Dtype::kBool;
  if (is(Code::Int, 64)) return Dtype::kInt64;
  if (is(Code::Int, 32)) return Dtype::kInt32;
  if (is(Code::Int, 16)) return Dtype::kInt16;
  if (is(Code::Int, 8)) return Dtype::kInt8;
  if (is(Code::UInt, 8)) return Dtype::kUInt8;
  return std::nullopt;
}

std::optional<Dtype> dtype_of(const NumpyDescr& descr) {
  constexpr char kOtherOrder = std::endian::native == std::endian::little ? '>' : '<';
  if (descr.byteorder == kOtherOrder) return std::nullopt;
  switch (descr.type_num) {
    case kNumpyFloat:
      return Dtype::kFloat32;
    case kNumpyDouble:
      return Dtype::kFloat64;
    case kNumpyHalf:
      return Dtype::kFloat16;
    case kNumpyBool:
      return Dtype::kBool;
    case kNumpyByte:
      return Dtype::kInt8;
    case kNumpyUByte:
      return Dtype::kUInt8;
    case kNumpyShort:
      return Dtype::kInt16;
    case kNumpyInt:
      return Dtype::kInt32;
    case kNumpyLong:
      return sizeof(long) == 8 ? Dtype::kInt64 : Dtype::kInt32;
    case kNumpyLongLong:
      return Dtype::kInt64;
    default:
      return std::nullopt;
  }
}

std::optional<Dtype> dtype_named(std::string_view name) {
  for (const Dtype dtype : {Dtype::kBool, Dtype::kUInt8, Dtype::kInt8, Dtype::kInt16, Dtype::kInt32, Dtype::kInt64,
                            Dtype::kFloat16, Dtype::kBFloat16, Dtype::kFloat32, Dtype::kFloat64}) {
    if (name == name_of(dtype)) return dtype;
  }
  return std::nullopt;
}

void raise_dtype(const Parameter& parameter, const std::string& seen, const std::string& advice) {
  throw DtypeError(
      format_text("{}: dtype {} is not supported, expected {}{}", parameter.name, seen, parameter.dtypes, advice));
}

void raise_numpy_dtype(nb::handle array, const Parameter& parameter) {
  const nb::object dtype = array.attr("dtype");
  const std::string name = nb::str(dtype.attr("name")).c_str();
  if (!nb::cast<bool>(dtype.attr("isnative"))) {
    raise_dtype(parameter, format_text("{} with swapped bytes", name),
                format_text("; convert it with .astype(numpy.{})", name));
  }
  raise_dtype(parameter, name);
}

}  // namespace qkv::python
