#ifndef QKV_PYTHON_BINDINGS_NUMPY_ARRAY_H_
#define QKV_PYTHON_BINDINGS_NUMPY_ARRAY_H_

#include <nanobind/nanobind.h>

/// The part of NumPy's binary interface that is called here: the layout of an array, which the macros of NumPy's own
/// headers read as well, and two entries of its table of C functions. NumPy 1 and 2 agree in it, and building needs no
/// NumPy. The buffer protocol and numpy.empty in its place took a fifth of the time of a call that computes next to
/// nothing.
namespace qkv::python {

/// A numpy.dtype.
struct NumpyDescr {
  PyObject_HEAD PyTypeObject* scalar_type;
  char kind;
  char type;
  char byteorder;  ///< '<', '>', '=' (the machine's) or '|' (no matter)
  char flags_of_numpy1;
  int type_num;
};

/// A numpy.ndarray, or an object of a subclass.
struct NumpyArray {
  PyObject_HEAD char* data;
  int rank;
  Py_ssize_t* shape;
  Py_ssize_t* strides;  ///< in bytes
  PyObject* base;
  NumpyDescr* descr;
  unsigned int flags;
};

/// In NumpyArray::flags. An array with the second one is to become read-only in some later NumPy.
inline constexpr unsigned int kNumpyWriteable = 0x0400;
inline constexpr unsigned int kNumpyWarnOnWrite = 0x80000000;

/// NumpyDescr::type_num, which names C's types.
enum NumpyType : int {
  kNumpyBool = 0,
  kNumpyByte = 1,
  kNumpyUByte = 2,
  kNumpyShort = 3,
  kNumpyInt = 5,
  kNumpyLong = 7,
  kNumpyLongLong = 9,
  kNumpyFloat = 11,
  kNumpyDouble = 12,
  kNumpyHalf = 23,
};

/// Where the table is: the attribute _ARRAY_API, a capsule without a name, of one of these modules.
inline constexpr const char* kNumpyModules[] = {"numpy._core._multiarray_umath", "numpy.core._multiarray_umath"};
inline constexpr const char* kNumpyTable = "_ARRAY_API";

/// The version of the binary interface; its highest byte is NumPy's major version.
inline constexpr int kNumpyAbiVersion = 0;
using NumpyAbiVersion = unsigned int (*)();
inline constexpr unsigned int kNewestNumpyAbi = 2;

/// PyArray_New: without data it makes an uninitialised dense array. Returns null with an exception set.
inline constexpr int kNumpyNew = 93;
using NumpyNew = PyObject* (*)(PyTypeObject* type, int rank, const Py_ssize_t* shape, int type_num,
                               const Py_ssize_t* strides, void* data, int item_size, int flags, PyObject* base);

}  // namespace qkv::python

#endif  // QKV_PYTHON_BINDINGS_NUMPY_ARRAY_H_
