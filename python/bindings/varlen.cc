#include "qkv/varlen.h"

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>

#include "base/text.h"
#include "bindings/arguments.h"
#include "bindings/attention_call.h"
#include "bindings/bindings.h"
#include "qkv/error.h"

namespace qkv::python {
namespace {

using Function = void (*)(ConstTensorView, ConstTensorView, ConstTensorView, TensorView, const VarlenOptions&,
                          const AttentionOutputs&);

class VarlenCall : public AttentionCall {
 public:
  VarlenCall(const Arguments& arguments, nb::handle cu_seqlens_q, nb::handle cu_seqlens_k)
      : AttentionCall(arguments), varlen_(read_ragged(cu_seqlens_q, cu_seqlens_k)) {
    refuse_matrices();
    const std::array<std::int64_t, 3> out = {q().view().extent(0), q().view().extent(1), v().view().extent(2)};
    const std::array<std::int64_t, 2> row = {out[1], out[0]};
    make_out(out);
    make_rows(row, 2);
  }

  nb::object run(Function function) const {
    return AttentionCall::run([&] { function(q().view(), k().view(), v().view(), out_->view(), varlen_, outputs_); });
  }

 private:
  void refuse_matrices() const {
    const auto refuse = [](const char* name) {
      throw ValueError(format_text("{}: a ragged batch takes none: rows of unequal length have no common shape", name));
    };
    if (!argument(kReturnWeights).is(nb::handle(Py_False))) refuse("return_weights");
    if (!argument(kReturnLogits).is_none()) refuse("return_logits");
  }

  VarlenOptions varlen_;
};

template <Function function>
nb::object attend(nb::handle q, nb::handle k, nb::handle v, nb::handle cu_seqlens_q, nb::handle cu_seqlens_k,
                  const nb::dict& options) {
  return VarlenCall(arguments_of("attention_varlen", q, k, v, options), cu_seqlens_q, cu_seqlens_k).run(function);
}

}  // namespace

void bind_varlen(nb::module_& m) {
  const auto def = [&m](const char* name, auto function, const nb::sig& signature) {
    m.def(name, function, nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(),
          nb::arg(), signature);
  };
  def("attention_varlen", &attend<qkv::attention_varlen>,
      nb::sig("def attention_varlen(q: object, k: object, v: object, cu_seqlens_q: object, cu_seqlens_k: object, "
              "options: dict[str, typing.Any], /) -> typing.Any"));
  def("reference_attention_varlen", &attend<reference::attention_varlen>,
      nb::sig("def reference_attention_varlen(q: object, k: object, v: object, cu_seqlens_q: object, "
              "cu_seqlens_k: object, options: dict[str, typing.Any], /) -> typing.Any"));
}

}  // namespace qkv::python
