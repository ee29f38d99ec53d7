#include "qkv/backward.h"

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "base/text.h"
#include "bindings/arguments.h"
#include "bindings/attention_operands.h"
#include "bindings/bindings.h"
#include "bindings/text.h"
#include "qkv/error.h"

namespace qkv::python {
namespace {

using Function = void (*)(const AttentionInputs&, const AttentionSaved&, const AttentionGradients&,
                          const AttentionOptions&);
using VarlenFunction = void (*)(const AttentionInputs&, const AttentionSaved&, const AttentionGradients&,
                                const VarlenOptions&);

/// What a gradient can be of, in the order of qkv.Gradients.
enum Of : std::size_t { kOfQ, kOfK, kOfV, kOfBias, kOfSinks, kNumGradients };
constexpr const char* kNames[] = {"q", "k", "v", "bias", "sinks"};
static_assert(std::size(kNames) == kNumGradients);
constexpr const char* kExpected = R"("q", "k", "v", "bias" or "sinks")";

using Needed = std::array<bool, kNumGradients>;

std::size_t gradient_named(nb::handle name) {
  if (PyUnicode_Check(name.ptr()) == 0) {
    throw nb::type_error(format_text("need: expected {} in the sequence, got {}", kExpected, described(name)).c_str());
  }
  for (std::size_t i = 0; i < kNumGradients; ++i) {
    if (PyUnicode_CompareWithASCIIString(name.ptr(), kNames[i]) == 0) return i;
  }
  throw ValueError(format_text("need: expected {}, got \"{}\"", kExpected, to_text(name, "need")));
}

// A str is a sequence too, and "qk" would be read as two names.
Needed to_needed(nb::handle object) {
  if (PyTuple_Check(object.ptr()) == 0 && PyList_Check(object.ptr()) == 0 && PyAnySet_Check(object.ptr()) == 0) {
    throw nb::type_error(format_text("need: expected a tuple of names, got {}", described(object)).c_str());
  }
  Needed needed = {};
  for (const nb::handle name : object) needed[gradient_named(name)] = true;
  return needed;
}

/// What the way back has of its own beside the arguments of attention.
struct Upstream {
  nb::handle grad_out;
  nb::handle out;
  nb::handle lse;
};

/// qkv.Gradients, made once somebody asks; the reference lives as long as the process.
nb::handle gradients_class() {
  static PyObject* kept = nullptr;
  if (kept == nullptr) kept = nb::object(nb::module_::import_("qkv._types").attr("Gradients")).release().ptr();
  return kept;
}

class BackwardCall : public AttentionOperands {
 public:
  BackwardCall(const Arguments& arguments, const Upstream& upstream)
      : AttentionOperands(arguments),
        grad_out_(of_result_kind(upstream.grad_out, "grad_out"), {"grad_out", kFloatDtypes}),
        out_(of_result_kind(upstream.out, "out"), {"out", kFloatDtypes}),
        lse_(of_result_kind(upstream.lse, "lse"), {"lse", kStatsDtypes}) {
    gradients_.grad_out = grad_out_.view();
    read_row(kGradLse, "grad_lse", grad_lse_, gradients_.grad_lse);
    read_row(kGradEntropy, "grad_entropy", grad_entropy_, gradients_.grad_entropy);
    make_gradients();
  }

  nb::object run(Function function) {
    read_lengths(q().extent_from_end(4));
    compute(is_tiny(), [&] { function(inputs(), saved(), gradients_, options_); });
    return answer();
  }

  nb::object run_varlen(VarlenFunction function, nb::handle cu_seqlens_q, nb::handle cu_seqlens_k) {
    const VarlenOptions varlen = read_ragged(cu_seqlens_q, cu_seqlens_k);
    compute(is_tiny(), [&] { function(inputs(), saved(), gradients_, varlen); });
    return answer();
  }

 private:
  static constexpr const char* kStatsDtypes = "float32 or float64";

  AttentionInputs inputs() const { return {q().view(), k().view(), v().view()}; }
  AttentionSaved saved() const { return {out_.view(), of_row(lse_)}; }

  // Results for a DLPack object are NumPy arrays, and here they come back.
  nb::handle of_result_kind(nb::handle object, const char* name) const {
    if (kind() == Kind::kDlpack && array_type_of(object).kind == Kind::kNumpy) return object;
    return of_kind(object, name);
  }

  // Of a q that is one row alone, lse is one number, without axes.
  static ConstTensorView of_row(const Array& array) { return with_rank(array.view(), 1); }

  void read_row(Argument which, const char* name, MaybeArray& array, std::optional<ConstTensorView>& view) const {
    if (argument(which).is_none()) return;
    view = of_row(array.emplace(of_result_kind(argument(which), name), Parameter{name, kStatsDtypes}));
  }

  void make_gradients() {
    const Needed needed = to_needed(argument(kNeed));
    const std::array<const Array*, kNumGradients> of = {&q(), &k(), &v(), bias() ? &*bias() : nullptr,
                                                        sinks() ? &*sinks() : nullptr};
    const std::array<std::optional<TensorView>*, kNumGradients> views = {
        &gradients_.grad_q, &gradients_.grad_k, &gradients_.grad_v, &gradients_.grad_bias, &gradients_.grad_sinks};
    for (std::size_t i = 0; i < kNumGradients; ++i) {
      if (!needed[i]) continue;
      if (of[i] == nullptr)
        throw ValueError(format_text("need: \"{0}\" is asked for, but {0}= is not given", kNames[i]));
      make(made_[i], of[i]->view().shape(), of[i]->dtype());
      *views[i] = made_[i]->view();
    }
  }

  nb::object answer() const {
    const auto made = [&](Of which) { return made_[which] ? made_[which]->object() : nb::none(); };
    return gradients_class()(made(kOfQ), made(kOfK), made(kOfV), made(kOfBias), made(kOfSinks));
  }

  Array grad_out_, out_, lse_;
  MaybeArray grad_lse_, grad_entropy_;
  std::array<MaybeArray, kNumGradients> made_;
  AttentionGradients gradients_;
};

template <Function function>
nb::object differentiate(nb::handle grad_out, nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
                         const nb::dict& options) {
  const Arguments arguments = arguments_of("attention_backward", q, k, v, options, kBackwardOptions);
  return BackwardCall(arguments, {grad_out, out, lse}).run(function);
}

template <VarlenFunction function>
nb::object differentiate_varlen(nb::handle grad_out, nb::handle q, nb::handle k, nb::handle v, nb::handle out,
                                nb::handle lse, nb::handle cu_seqlens_q, nb::handle cu_seqlens_k,
                                const nb::dict& options) {
  const Arguments arguments = arguments_of("attention_varlen_backward", q, k, v, options, kBackwardOptions);
  return BackwardCall(arguments, {grad_out, out, lse}).run_varlen(function, cu_seqlens_q, cu_seqlens_k);
}

}  // namespace

void bind_backward(nb::module_& m) {
  const auto any = [] { return nb::arg().none(); };
  const auto def = [&](const char* name, auto function, const nb::sig& signature) {
    m.def(name, function, any(), any(), any(), any(), any(), any(), nb::arg(), signature);
  };
  def("attention_backward", &differentiate<qkv::attention_backward>,
      nb::sig("def attention_backward(grad_out: object, q: object, k: object, v: object, out: object, lse: object, "
              "options: dict[str, typing.Any], /) -> typing.Any"));
  def("reference_attention_backward", &differentiate<reference::attention_backward>,
      nb::sig("def reference_attention_backward(grad_out: object, q: object, k: object, v: object, out: object, "
              "lse: object, options: dict[str, typing.Any], /) -> typing.Any"));
  const auto def_varlen = [&](const char* name, auto function, const nb::sig& signature) {
    m.def(name, function, any(), any(), any(), any(), any(), any(), any(), any(), nb::arg(), signature);
  };
  def_varlen("attention_varlen_backward", &differentiate_varlen<qkv::attention_varlen_backward>,
             nb::sig("def attention_varlen_backward(grad_out: object, q: object, k: object, v: object, out: object, "
                     "lse: object, cu_seqlens_q: object, cu_seqlens_k: object, options: dict[str, typing.Any], /) -> "
                     "typing.Any"));
  def_varlen("reference_attention_varlen_backward", &differentiate_varlen<reference::attention_varlen_backward>,
             nb::sig("def reference_attention_varlen_backward(grad_out: object, q: object, k: object, v: object, "
                     "out: object, lse: object, cu_seqlens_q: object, cu_seqlens_k: object, "
                     "options: dict[str, typing.Any], /) -> typing.Any"));
}

}  // namespace qkv::python
