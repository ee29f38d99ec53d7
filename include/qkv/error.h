#ifndef QKV_ERROR_H_
#define QKV_ERROR_H_

#include <stdexcept>

#include "qkv/export.h"

namespace qkv {

/// Base of every error that bad input raises. The text names the argument, what was seen and what was expected.
class QKV_API Error : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// Ranks, extents or strides that do not fit together.
class QKV_API ShapeError : public Error {
 public:
  using Error::Error;
};

/// An element type that the operation does not take, or two that must agree and do not. Python: TypeError.
class QKV_API DtypeError : public Error {
 public:
  using Error::Error;
};

/// A number out of its range: a negative length, a NaN scale, an unknown target.
class QKV_API ValueError : public Error {
 public:
  using Error::Error;
};

}  // namespace qkv

#endif  // QKV_ERROR_H_
