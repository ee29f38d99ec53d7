#include "qkv/attention.h"

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "bindings/arguments.h"
#include "bindings/attention_arguments.h"
#include "bindings/attention_call.h"
#include "bindings/bindings.h"
#include "bindings/kv_cache.h"
#include "bindings/text.h"
#include "qkv/error.h"

namespace qkv::python {
namespace {

using Function = void (*)(ConstTensorView, ConstTensorView, ConstTensorView, TensorView, const AttentionOptions&,
                          const AttentionOutputs&);

using CacheFunction = void (*)(ConstTensorView, const KVView&, TensorView, const AttentionOptions&,
                               const AttentionOutputs&);

class Call : public AttentionCall {
 public:
  explicit Call(const Arguments& arguments) : AttentionCall(arguments) {
    make_results(k().extent_from_end(2), v().extent_from_end(1));
  }

  Call(const Arguments& arguments, const BoundCache& cache) : AttentionCall(arguments, Keys::kCache) {
    std::int64_t kv_len = 0;
    std::int64_t value_dim = 0;
    {
      const auto lock = locked<std::shared_lock<std::shared_mutex>>(cache);
      kv_len = cache.kv_len();
      value_dim = cache.value_dim();
    }
    make_results(kv_len, value_dim);
  }

  nb::object run(Function function) const {
    return AttentionCall::run([&] { function(q().view(), k().view(), v().view(), out_->view(), options_, outputs_); });
  }

  // No code of Python's runs while the cache is locked.
  nb::object run(CacheFunction function, const BoundCache& cache) const {
    return AttentionCall::run([&] {
      const std::shared_lock<std::shared_mutex> lock(cache.users());
      function(q().view(), cache.view(), out_->view(), options_, outputs_);
    });
  }

 private:
  void make_results(std::int64_t kv_len, std::int64_t value_dim) {
    kv_len_ = kv_len;
    read_lengths(q().extent_from_end(4));
    make_out(of_rank(shape_with(value_dim)));
    const Shape rows = shape_with(1);
    make_rows(std::span(rows).first(3).last(static_cast<std::size_t>(q().rank() - 1)), 3);
    make_logits();
    make_weights();
  }

  using Shape = std::array<std::int64_t, 4>;

  // [batch, num_heads, q_len, columns]
  Shape shape_with(std::int64_t columns) const {
    return {q().extent_from_end(4), q().extent_from_end(3), q().extent_from_end(2), columns};
  }

  // Without the leading axes that q lacks.
  std::span<const std::int64_t> of_rank(const Shape& shape) const {
    return std::span(shape).last(static_cast<std::size_t>(q().rank()));
  }

  void make_logits() {
    if (argument(kReturnLogits).is_none()) return;
    const LogitsStage stage = to_logits_stage(argument(kReturnLogits));
    make(logits_, of_rank(shape_with(kv_len_)), stats_dtype(q().dtype()));
    outputs_.logits = Logits{with_rank(logits_->view(), 4), stage};
  }

  void make_weights() {
    Weights chosen;
    if (is_flag(argument(kReturnWeights))) {
      if (!to_flag(argument(kReturnWeights), "return_weights")) return;
    } else {
      chosen.heads = selection("heads", 3);
      chosen.rows = selection("rows", 2);
    }
    Shape shape = shape_with(kv_len_);
    if (chosen.heads) shape[1] = static_cast<std::int64_t>(chosen.heads->size());
    if (chosen.rows) shape[2] = static_cast<std::int64_t>(chosen.rows->size());
    make(weights_, of_rank(shape), stats_dtype(q().dtype()));
    chosen.out = with_rank(weights_->view(), 4);
    outputs_.weights = std::move(chosen);
  }

  // One member of a qkv.Select, which chooses along the axis of q at this place from the end.
  std::optional<std::vector<std::int64_t>> selection(const char* member, int place) const {
    const nb::handle select = argument(kReturnWeights);
    const nb::object list = nb::steal(PyObject_GetAttrString(select.ptr(), member));
    if (!list.is_valid()) {
      drop_error(PyExc_AttributeError);
      throw nb::type_error(
          format_text("return_weights: expected a bool or a qkv.Select, got {}", described(select)).c_str());
    }
    if (list.is_none()) return std::nullopt;
    if (q().rank() < place) {
      throw ShapeError(format_text("return_weights: Select.{} chooses along an axis that q of shape {} does not have",
                                   member, to_string(q().view().shape())));
    }
    return to_int64_list(list, format_text("return_weights: Select.{}", member).c_str());
  }

  std::int64_t kv_len_ = 0;
};

template <Function function, CacheFunction cache_function>
nb::object attend(nb::handle q, nb::handle k, nb::handle v, const nb::dict& options) {
  const Arguments arguments = arguments_of("attention", q, k, v, options);
  if (v.is_none()) {
    if (const BoundCache* cache = cache_of(k)) return Call(arguments, *cache).run(cache_function, *cache);
  }
  return Call(arguments).run(function);
}

nb::tuple ints(nb::handle name, nb::handle values) {
  nb::list result;
  for (const std::int64_t value : to_int64_list(values, to_text(name, "name").c_str())) result.append(value);
  return nb::tuple(result);
}

}  // namespace

void bind_attention(nb::module_& m) {
  const auto def = [&m](const char* name, auto function, const nb::sig& signature) {
    m.def(name, function, nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(), signature);
  };
  def("attention", &attend<qkv::attention, qkv::attention>,
      nb::sig("def attention(q: object, k: object, v: object, options: dict[str, typing.Any], /) -> typing.Any"));
  def("reference_attention", &attend<reference::attention, reference::attention>,
      nb::sig(
          "def reference_attention(q: object, k: object, v: object, options: dict[str, typing.Any], /) -> typing.Any"));
  // What qkv.Select holds: the checks and texts of the other arguments that are lists of ints.
  m.def("ints", &ints, nb::arg().none(), nb::arg().none(),
        nb::sig("def ints(name: str, values: object, /) -> tuple[int, ...]"));
}

}  // namespace qkv::python
