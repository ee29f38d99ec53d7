#include "bindings/frameworks.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <utility>

#include "bindings/element_type.h"
#include "bindings/numpy_array.h"
#include "bindings/text.h"
#include "qkv/tensor.h"

namespace qkv::python {
namespace {

// References that live as long as the process: releasing them when static objects are destroyed would be after the
// interpreter's end.
using Immortal = PyObject*;

Immortal keep(nb::object object) { return object.release().ptr(); }

// One dtype object for each qkv::Dtype that results have.
struct ResultDtypes {
  Immortal float32 = nullptr;
  Immortal float64 = nullptr;
  Immortal float16 = nullptr;
  Immortal bfloat16 = nullptr;
  Immortal int64 = nullptr;

  PyObject* of(Dtype dtype) const {
    switch (dtype) {
      case Dtype::kFloat64:
        return float64;
      case Dtype::kFloat16:
        return float16;
      case Dtype::kBFloat16:
        return bfloat16;
      case Dtype::kInt64:
        return int64;
      default:
        return float32;
    }
  }
};

// What load() finds, the first time. Not a static with an initialiser: loading may let go of the interpreter lock, and
// a second thread would then wait for the initialiser while holding it. Here both load, and one result is kept.
template <class Found>
const Found& once(Found (*load)()) {
  static const Found* kept = nullptr;
  if (kept == nullptr) {
    auto found = std::make_unique<Found>(load());
    if (kept == nullptr) kept = found.release();
  }
  return *kept;
}

struct Numpy {
  Immortal ndarray;
  NumpyNew make;
};

nb::object numpy_table() {
  nb::module_::import_("numpy");  // where there is none, this is its own error
  for (const char* name : kNumpyModules) {
    const nb::object module = nb::steal(PyImport_ImportModule(name));
    if (module.is_valid()) return module.attr(kNumpyTable);
    drop_error(PyExc_ModuleNotFoundError);
  }
  throw nb::import_error("qkv: NumPy has no table of C functions");
}

Numpy load_numpy() {
  const nb::object capsule = numpy_table();
  auto** const table = static_cast<void**>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (table == nullptr) nb::raise_python_error();
  const unsigned int abi = reinterpret_cast<NumpyAbiVersion>(table[kNumpyAbiVersion])();
  if (abi >> 24 > kNewestNumpyAbi) throw nb::import_error("qkv: this NumPy is newer than this version of qkv");
  return {keep(nb::module_::import_("numpy").attr("ndarray")), reinterpret_cast<NumpyNew>(table[kNumpyNew])};
}

// The bfloat16 that ml_dtypes adds to NumPy.
struct MlDtypes {
  int type_num;
};

MlDtypes load_ml_dtypes() {
  const nb::object module = nb::steal(PyImport_ImportModule("ml_dtypes"));
  if (!module.is_valid()) {
    drop_error(PyExc_ImportError);
    throw nb::import_error("qkv: a NumPy array of bfloat16 needs the package ml_dtypes: pip install ml_dtypes");
  }
  const nb::object dtype = nb::module_::import_("numpy").attr("dtype")(module.attr("bfloat16"));
  return {nb::cast<int>(dtype.attr("num"))};
}

struct Torch {
  Immortal empty;
  Immortal empty_keywords;
  Immortal cpu;
  Immortal is_grad_enabled;
  Immortal is_tracing;
  Immortal num_dispatch_modes;
  Immortal dispatch_mode;  // asked with proxy_key; null where this PyTorch has none
  Immortal proxy_key;
  Immortal forward_ad;  // the module torch.autograd.forward_ad
  Immortal forward_ad_globals;
  ResultDtypes dtypes;
};

Torch load_torch() {
  const nb::module_ module = nb::module_::import_("torch");
  const nb::module_ forward_ad = nb::module_::import_("torch.autograd.forward_ad");
  const nb::object internals = module.attr("_C");
  const nb::object mode_keys = nb::getattr(internals, "_TorchDispatchModeKey", nb::none());
  return {keep(module.attr("empty")),
          keep(nb::make_tuple("size", "dtype", "device")),
          keep(module.attr("device")("cpu")),
          keep(module.attr("is_grad_enabled")),
          keep(nb::getattr(internals, "_is_tracing", nb::object())),
          keep(nb::getattr(internals, "_len_torch_dispatch_stack", nb::object())),
          keep(nb::getattr(internals, "_get_dispatch_mode", nb::object())),
          keep(nb::getattr(mode_keys, "PROXY", nb::object())),
          keep(nb::borrow(forward_ad)),
          keep(forward_ad.attr("__dict__")),
          {keep(module.attr("float32")), keep(module.attr("float64")), keep(module.attr("float16")),
           keep(module.attr("bfloat16")), keep(module.attr("int64"))}};
}

// A member of a module that somebody else has imported; null where nobody has, or where it has none.
nb::object member_if_imported(const char* module_name, const char* name) {
  const nb::object module = nb::steal(PyImport_GetModule(nb::str(module_name).ptr()));
  if (!module.is_valid()) {
    PyErr_Clear();
    return {};
  }
  return nb::getattr(module, name, nb::object());
}

bool is_subclass(PyTypeObject* type, const nb::object& base) {
  return base.is_valid() && PyType_Check(base.ptr()) != 0 &&
         PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(base.ptr())) != 0;
}

const DlpackExchangeApi* exchange_api(nb::handle type) {
  const nb::object capsule = nb::getattr(type, kDlpackExchangeAttribute, nb::object());
  if (!capsule.is_valid() || PyCapsule_IsValid(capsule.ptr(), kDlpackExchangeCapsule) == 0) return nullptr;
  auto* header = static_cast<DlpackExchangeHeader*>(PyCapsule_GetPointer(capsule.ptr(), kDlpackExchangeCapsule));
  while (header != nullptr && header->version.major != kDlpackExchangeMajor) header = header->prev_api;
  const auto* api = reinterpret_cast<const DlpackExchangeApi*>(header);
  return api != nullptr && api->dltensor_from_py_object_no_sync != nullptr ? api : nullptr;
}

ArrayType classify(PyTypeObject* type) {
  const nb::handle object(reinterpret_cast<PyObject*>(type));
  if (is_subclass(type, nb::borrow(once(load_numpy).ndarray))) {
    if (is_subclass(type, member_if_imported("numpy.ma", "MaskedArray"))) return {};
    return {Kind::kNumpy};
  }
  if (is_subclass(type, member_if_imported("torch", "Tensor"))) {
    // PyTorch warns on standard error when somebody looks for the memory of a fake tensor.
    const bool fake = is_subclass(type, member_if_imported("torch._subclasses.fake_tensor", "FakeTensor"));
    return {Kind::kTorch, exchange_api(object), !fake};
  }
  if (nb::hasattr(object, "__dlpack__")) return {Kind::kDlpack};
  return {};
}

int numpy_type_num(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64:
      return kNumpyDouble;
    case Dtype::kFloat16:
      return kNumpyHalf;
    case Dtype::kBFloat16:
      return once(load_ml_dtypes).type_num;
    case Dtype::kInt64:
      return sizeof(long) == 8 ? kNumpyLong : kNumpyLongLong;
    default:
      return kNumpyFloat;
  }
}

PyObject* new_numpy_array(std::span<const std::int64_t> shape, Dtype dtype) {
  const Numpy& found = once(load_numpy);
  std::array<Py_ssize_t, kMaxRank> extents = {};
  std::copy(shape.begin(), shape.end(), extents.begin());
  return found.make(reinterpret_cast<PyTypeObject*>(found.ndarray), static_cast<int>(shape.size()), extents.data(),
                    numpy_type_num(dtype), nullptr, nullptr, 0, 0, nullptr);
}

PyObject* new_tensor(std::span<const std::int64_t> shape, Dtype dtype) {
  const nb::object extents = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  if (!extents.is_valid()) return nullptr;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    PyTuple_SetItem(extents.ptr(), static_cast<Py_ssize_t>(axis), PyLong_FromLongLong(shape[axis]));
  }
  const Torch& found = once(load_torch);
  PyObject* const arguments[] = {extents.ptr(), found.dtypes.of(dtype), found.cpu};
  // By its name: of a positional size PyTorch first asks whether it is a number, which takes a quarter of the call.
  return PyObject_Vectorcall(found.empty, arguments, 0, found.empty_keywords);
}

}  // namespace

const char* describe(Kind kind) noexcept {
  switch (kind) {
    case Kind::kNumpy:
      return "a NumPy array";
    case Kind::kTorch:
      return "a PyTorch tensor";
    case Kind::kDlpack:
      return "a DLPack object";
    case Kind::kNone:
      break;
  }
  return "not an array";
}

ArrayType array_type_of(nb::handle object) {
  // Guarded by the interpreter lock, as everything here.
  struct Known {
    PyTypeObject* type = nullptr;  // a reference of its own, so that the address stays this type's
    ArrayType array;
  };
  static std::array<Known, 16> known;
  static std::size_t num_known = 0;

  PyTypeObject* type = Py_TYPE(object.ptr());
  for (std::size_t i = 0; i < num_known; ++i) {
    if (known[i].type == type) return known[i].array;
  }
  const ArrayType found = classify(type);
  if (found.kind != Kind::kNone && num_known < known.size()) {
    Py_INCREF(reinterpret_cast<PyObject*>(type));
    known[num_known++] = {type, found};
  }
  return found;
}

bool is_masked_array(nb::handle object) {
  return is_subclass(Py_TYPE(object.ptr()), member_if_imported("numpy.ma", "MaskedArray"));
}

bool is_bfloat16(const NumpyDescr& descr) {
  // Types that NumPy knows itself have numbers below 256; whoever made this array has imported the other's package.
  constexpr int kFirstUserType = 256;
  if (descr.type_num < kFirstUserType) return false;
  const nb::object type = member_if_imported("ml_dtypes", "bfloat16");
  return type.is_valid() && type.ptr() == reinterpret_cast<PyObject*>(descr.scalar_type);
}

bool torch_grad_enabled() { return nb::handle(once(load_torch).is_grad_enabled)().is(nb::handle(Py_True)); }

bool torch_has_tangent(nb::handle tensor) {
  static PyObject* name = interned("_current_level");
  static PyObject* no_level = PyLong_FromLong(-1);  // Python has one object for it
  const Torch& found = once(load_torch);
  // Outside of every level, which is nearly always, no tensor has a tangent and unpack_dual need not be asked.
  if (PyDict_GetItemWithError(found.forward_ad_globals, name) == no_level) return false;
  return !nb::handle(found.forward_ad).attr("unpack_dual")(tensor).attr("tangent").is_none();
}

bool torch_is_transformed(nb::handle tensor) {
  const nb::object functorch = member_if_imported("torch._C", "_functorch");
  const auto answers = [&](const nb::object& function) {
    return function.is_valid() && function(tensor).is(nb::handle(Py_True));
  };
  return answers(member_if_imported("torch", "_is_functional_tensor")) ||
         (functorch.is_valid() && answers(nb::getattr(functorch, "is_functorch_wrapped_tensor", nb::object())));
}

bool torch_is_tracing() {
  const Torch& found = once(load_torch);
  const nb::handle tracing(found.is_tracing);
  if (tracing.is_valid() && tracing().is(nb::handle(Py_True))) return true;
  const nb::handle mode(found.dispatch_mode);
  const nb::handle key(found.proxy_key);
  if (!mode.is_valid() || !key.is_valid()) return false;
  // Nearly always there are none, which is quicker to learn than whether one of them is make_fx's.
  const nb::handle num_modes(found.num_dispatch_modes);
  if (num_modes.is_valid() && nb::cast<int>(num_modes()) == 0) return false;
  return !mode(key).is_none();
}

void torch_mark_written(nb::handle tensor) {
  if (nb::cast<bool>(tensor.attr("is_inference")())) return;  // has no version counter
  nb::module_::import_("torch").attr("autograd").attr("graph").attr("increment_version")(tensor);
}

nb::object new_array(Kind kind, std::span<const std::int64_t> shape, Dtype dtype) {
  PyObject* const result = kind == Kind::kTorch ? new_tensor(shape, dtype) : new_numpy_array(shape, dtype);
  if (result == nullptr) nb::raise_python_error();
  return nb::steal(result);
}

}  // namespace qkv::python
