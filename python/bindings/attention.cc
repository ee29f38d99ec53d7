#include "qkv/attention.h"

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "bindings/arguments.h"
#include "bindings/array.h"
#include "bindings/attention_arguments.h"
#include "bindings/bindings.h"
#include "bindings/text.h"
#include "qkv/error.h"

namespace qkv::python {
namespace {

using Function = void (*)(ConstTensorView, ConstTensorView, ConstTensorView, TensorView, const AttentionOptions&,
                          const AttentionOutputs&);

// One call: reads the arguments into views and options, makes the arrays for the results, runs, and answers.
class Call {
 public:
  explicit Call(const Arguments& arguments)
      : arguments_(arguments),
        kind_(require_first_array(arguments[kQ], "q")),
        q_(arguments[kQ], {"q", kFloatDtypes}),
        k_(of_kind(kK, "k"), {"k", kFloatDtypes}),
        v_(of_kind(kV, "v"), {"v", kFloatDtypes}) {
    check_q();
    read_numbers();
    read_arrays();
    make_out();
    make_lse();
    make_logits();
    make_weights();
    make_stats();
  }

  nb::object run(Function function) const {
    {
      std::optional<nb::gil_scoped_release> unlocked;
      if (!is_tiny()) unlocked.emplace();
      function(q_.view(), k_.view(), v_.view(), out_->view(), options_, outputs_);
    }
    if (kind_ == Kind::kTorch && !arguments_[kOut].is_none()) torch_mark_written(out_->object());
    return answer();
  }

 private:
  using MaybeArray = std::optional<Array>;

  // Numbers of one kind for each batch: an array of the caller, or values given as plain ints.
  struct Indices {
    MaybeArray array;
    std::vector<std::int64_t> values;
  };

  nb::handle of_kind(Argument argument, const char* name) const {
    require_kind(arguments_[argument], name, kind_, "q");
    return arguments_[argument];
  }

  // Whether other threads would gain less by the lock than handing it over costs. Chosen weights may repeat a row as
  // often as they like.
  bool is_tiny() const {
    constexpr std::int64_t kMostElements = 64;  // of each array: at most 64 rows of 64 keys
    const auto tiny = [](const Array& array) { return array.has_at_most(kMostElements); };
    return tiny(q_) && tiny(k_) && tiny(v_) && !outputs_.weights;
  }

  // Results are made before the library looks at q, so what they are made from is checked here.
  void check_q() const {
    const Dtype dtype = q_.dtype();
    if (dtype != Dtype::kFloat32 && dtype != Dtype::kFloat64 && dtype != Dtype::kFloat16 && dtype != Dtype::kBFloat16) {
      raise_dtype({"q", kFloatDtypes}, std::string(name_of(dtype)),
                  format_text("; convert it with {}", kind_ == Kind::kTorch ? ".float()" : ".astype(numpy.float32)"));
    }
    for (const auto& [array, name] : {std::pair(&q_, "q"), std::pair(&k_, "k"), std::pair(&v_, "v")}) {
      if (array->rank() < 1 || array->rank() > 4) {
        throw ShapeError(format_text("{}: shape {}, expected 1 to 4 axes", name, to_string(array->view().shape())));
      }
    }
  }

  void read_numbers() {
    options_.causal = to_flag(arguments_[kCausal], "causal");
    options_.window = to_window(arguments_[kWindow]);
    if (!arguments_[kScale].is_none()) options_.scale = to_double(arguments_[kScale], "scale");
    options_.softcap = to_double(arguments_[kSoftcap], "softcap");
    options_.dropout.p = to_double(arguments_[kDropout], "dropout");
    if (!arguments_[kSeed].is_none()) options_.dropout.seed = to_uint64(arguments_[kSeed], "seed");
  }

  void read_arrays() {
    read_option(kMask, {"mask", "bool"}, mask_, options_.mask);
    read_option(kBias, {"bias", kFloatDtypes}, bias_, options_.bias);
    read_option(kSinks, {"sinks", kFloatDtypes}, sinks_, options_.sinks);
    read_option(kAlibiSlopes, {"alibi_slopes", kFloatDtypes}, alibi_slopes_, options_.alibi_slopes);
    if (!arguments_[kKvLens].is_none()) options_.kv_lens = read_indices(kKvLens, "kv_lens", kv_lens_);
    const nb::handle offset = arguments_[kQueryOffset];
    if (offset.is_none()) return;
    if (array_type_of(offset).kind == Kind::kNone && PyIndex_Check(offset.ptr()) != 0) {
      options_.query_offset = to_int64(offset, "query_offset");
    } else {
      options_.query_offset = read_indices(kQueryOffset, "query_offset", query_offset_);
    }
  }

  void read_option(Argument argument, const Parameter& parameter, MaybeArray& array,
                   std::optional<ConstTensorView>& option) const {
    if (arguments_[argument].is_none()) return;
    option = array.emplace(of_kind(argument, parameter.name), parameter).view();
  }

  // From an array, from a list, or from one int for all batches.
  ConstTensorView read_indices(Argument argument, const char* name, Indices& indices) const {
    const nb::handle object = arguments_[argument];
    if (array_type_of(object).kind != Kind::kNone) {
      return indices.array.emplace(of_kind(argument, name), Parameter{name, kIndexDtypes}).view();
    }
    indices.values = to_int64s(object, name);
    if (PyIndex_Check(object.ptr()) != 0) {
      indices.values.resize(static_cast<std::size_t>(q_.extent_from_end(4)), indices.values.front());
    }
    return qkv::view(std::as_const(indices.values).data(), {static_cast<std::int64_t>(indices.values.size())});
  }

  void make_out() {
    if (arguments_[kOut].is_none()) {
      make(out_, shape_with(v_.extent_from_end(1)), q_.dtype());
    } else {
      out_.emplace(of_kind(kOut, "out"), Parameter{"out", kFloatDtypes}, Array::Access::kWrite);
    }
  }

  void make_lse() {
    if (!to_flag(arguments_[kReturnLse], "return_lse")) return;
    make_per_row(lse_, stats_dtype(q_.dtype()));
    outputs_.lse = with_rank(lse_->view(), 3);
  }

  void make_logits() {
    if (arguments_[kReturnLogits].is_none()) return;
    const LogitsStage stage = to_logits_stage(arguments_[kReturnLogits]);
    make(logits_, shape_with(k_.extent_from_end(2)), stats_dtype(q_.dtype()));
    outputs_.logits = Logits{with_rank(logits_->view(), 4), stage};
  }

  void make_weights() {
    Weights chosen;
    if (is_flag(arguments_[kReturnWeights])) {
      if (!to_flag(arguments_[kReturnWeights], "return_weights")) return;
    } else {
      chosen.heads = selection("heads", 3);
      chosen.rows = selection("rows", 2);
    }
    Shape shape = shape_with(k_.extent_from_end(2));
    if (chosen.heads) shape[1] = static_cast<std::int64_t>(chosen.heads->size());
    if (chosen.rows) shape[2] = static_cast<std::int64_t>(chosen.rows->size());
    make(weights_, shape, stats_dtype(q_.dtype()));
    chosen.out = with_rank(weights_->view(), 4);
    outputs_.weights = std::move(chosen);
  }

  // One member of a qkv.Select, which chooses along the axis of q at this place from the end.
  std::optional<std::vector<std::int64_t>> selection(const char* member, int place) const {
    const nb::object list = nb::steal(PyObject_GetAttrString(arguments_[kReturnWeights].ptr(), member));
    if (!list.is_valid()) {
      drop_error(PyExc_AttributeError);
      throw nb::type_error(
          format_text("return_weights: expected a bool or a qkv.Select, got {}", described(arguments_[kReturnWeights]))
              .c_str());
    }
    if (list.is_none()) return std::nullopt;
    if (q_.rank() < place) {
      throw ShapeError(format_text("return_weights: Select.{} chooses along an axis that q of shape {} does not have",
                                   member, to_string(q_.view().shape())));
    }
    return to_int64_list(list, format_text("return_weights: Select.{}", member).c_str());
  }

  void make_stats() {
    if (!to_flag(arguments_[kReturnStats], "return_stats")) {
      if (!arguments_[kStatsKeys].is_none()) throw ValueError("stats_keys: given without return_stats=True");
      return;
    }
    Stats& stats = outputs_.stats.emplace();
    const std::array<std::optional<TensorView>*, kNumStats> members = {
        &stats.max_raw, &stats.max_logit, &stats.max_key, &stats.max_weight, &stats.entropy, &stats.key_weight};
    for (std::size_t i = 0; i < members.size(); ++i) {
      make_per_row(stats_[i], members[i] == &stats.max_key ? Dtype::kInt64 : stats_dtype(q_.dtype()));
      *members[i] = with_rank(stats_[i]->view(), 3);
    }
    if (!arguments_[kStatsKeys].is_none()) stats.keys = to_int64s(arguments_[kStatsKeys], "stats_keys");
  }

  using Shape = std::array<std::int64_t, 4>;

  // [batch, num_heads, q_len, columns]
  Shape shape_with(std::int64_t columns) const {
    return {q_.extent_from_end(4), q_.extent_from_end(3), q_.extent_from_end(2), columns};
  }

  // A result without the leading axes that q lacks.
  void make(MaybeArray& result, const Shape& shape, Dtype dtype) const {
    const auto axes = std::span(shape).last(static_cast<std::size_t>(q_.rank()));
    result.emplace(new_array(kind_, axes, dtype), kResult, Array::Access::kNew);
  }

  void make_per_row(MaybeArray& result, Dtype dtype) const {
    const Shape shape = shape_with(1);
    const auto axes = std::span(shape).first(3).last(static_cast<std::size_t>(q_.rank() - 1));
    result.emplace(new_array(kind_, axes, dtype), kResult, Array::Access::kNew);
  }

  nb::object answer() const {
    if (!lse_ && !logits_ && !weights_ && !outputs_.stats) return out_->object();
    nb::list results;
    for (const MaybeArray* array : {&out_, &lse_, &logits_, &weights_}) {
      if (*array) results.append((*array)->object());
    }
    if (outputs_.stats) {
      const nb::object structure = nb::module_::import_("qkv._types").attr("Stats");
      results.append(structure(stats_[0]->object(), stats_[1]->object(), stats_[2]->object(), stats_[3]->object(),
                               stats_[4]->object(), stats_[5]->object()));
    }
    return nb::tuple(results);
  }

  static constexpr std::size_t kNumStats = 6;

  const Arguments& arguments_;
  Kind kind_;
  Array q_, k_, v_;
  MaybeArray mask_, bias_, sinks_, alibi_slopes_;
  Indices kv_lens_, query_offset_;
  MaybeArray out_, lse_, logits_, weights_;
  std::array<MaybeArray, kNumStats> stats_;
  AttentionOptions options_;
  AttentionOutputs outputs_;
};

template <Function function>
nb::object attend(nb::handle q, nb::handle k, nb::handle v, const nb::dict& options) {
  return Call(arguments_of(q, k, v, options)).run(function);
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
  def("attention", &attend<qkv::attention>,
      nb::sig("def attention(q: object, k: object, v: object, options: dict[str, typing.Any], /) -> typing.Any"));
  def("reference_attention", &attend<reference::attention>,
      nb::sig(
          "def reference_attention(q: object, k: object, v: object, options: dict[str, typing.Any], /) -> typing.Any"));
  // What qkv.Select holds: the checks and texts of the other arguments that are lists of ints.
  m.def("ints", &ints, nb::arg().none(), nb::arg().none(),
        nb::sig("def ints(name: str, values: object, /) -> tuple[int, ...]"));
}

}  // namespace qkv::python
