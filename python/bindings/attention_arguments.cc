#include "bindings/attention_arguments.h"

#include <iterator>

#include "base/text.h"
#include "bindings/text.h"

namespace qkv::python {
namespace {

// In the order of Argument.
constexpr const char* kNames[] = {
    "q",
    "k",
    "v",
    "grad_lse",
    "grad_entropy",
    "need",
    "mask",
    "bias",
    "causal",
    "query_offset",
    "window",
    "scale",
    "softcap",
    "sinks",
    "alibi_slopes",
    "kv_lens",
    "dropout",
    "seed",
    "return_lse",
    "return_weights",
    "return_logits",
    "return_stats",
    "stats_keys",
    "out",
};
static_assert(std::size(kNames) == kNumArguments);

// Made once; the objects live as long as the process.
struct Signature {
  Arguments names;  // interned, as the names in a caller's code are: the addresses tell most of them apart
  Arguments defaults;
};

Signature make_signature() {
  Signature made;
  for (std::size_t i = 0; i < kNumArguments; ++i) made.names[i] = interned(kNames[i]);
  made.defaults.fill(Py_None);
  for (const Argument flag : {kCausal, kReturnLse, kReturnWeights, kReturnStats}) made.defaults[flag] = Py_False;
  made.defaults[kNeed] = Py_BuildValue("(sss)", "q", "k", "v");
  made.defaults[kSoftcap] = made.defaults[kDropout] = PyFloat_FromDouble(0);
  return made;
}

std::size_t place_of(nb::handle name, const Arguments& names, OptionRange range, const char* function) {
  for (std::size_t i = range.first; i < range.end; ++i) {
    if (names[i].is(name)) return i;
  }
  for (std::size_t i = range.first; i < range.end; ++i) {
    if (PyUnicode_Compare(names[i].ptr(), name.ptr()) == 0) return i;
  }
  throw nb::type_error(
      format_text("{}() got an unexpected keyword argument {}", function, text_of(nb::repr(name))).c_str());
}

}  // namespace

Arguments arguments_of(const char* function, nb::handle q, nb::handle k, nb::handle v, const nb::dict& options,
                       OptionRange range) {
  static const Signature signature = make_signature();
  Arguments arguments = signature.defaults;
  arguments[kQ] = q;
  arguments[kK] = k;
  arguments[kV] = v;
  Py_ssize_t at = 0;
  PyObject* name = nullptr;
  PyObject* value = nullptr;
  while (PyDict_Next(options.ptr(), &at, &name, &value) != 0)
    arguments[place_of(name, signature.names, range, function)] = value;
  return arguments;
}

}  // namespace qkv::python
