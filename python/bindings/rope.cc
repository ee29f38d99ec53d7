#include "bindings/rope.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <iterator>
#include <string>
#include <utility>
#include <variant>

#include "base/text.h"
#include "bindings/arguments.h"
#include "qkv/error.h"
#include "qkv/position.h"

namespace qkv::python {
namespace {

/// Reads the parameters of a scaling, whose names python/qkv/_rope.py has checked.
class ScalingReader {
 public:
  explicit ScalingReader(const nb::dict& parameters) : parameters_(parameters) {}

  RopeScaling read(const std::string& type) const {
    if (type == "linear") return LinearScaling{number("factor")};
    if (type == "dynamic") return DynamicScaling{number("factor")};
    if (type == "yarn") return yarn();
    if (type == "llama3") {
      return Llama3Scaling{.factor = number("factor"),
                           .low_freq_factor = number("low_freq_factor"),
                           .high_freq_factor = number("high_freq_factor"),
                           .original_max_position = original()};
    }
    return {};
  }

 private:
  RopeScaling yarn() const {
    YarnScaling yarn{.factor = number("factor"), .original_max_position = original()};
    yarn.attention_factor = optional_number("attention_factor");
    // As in Hugging Face's configurations, 0 is "not given".
    if (const auto fast = optional_number("beta_fast"); fast.value_or(0) != 0) yarn.beta_fast = *fast;
    if (const auto slow = optional_number("beta_slow"); slow.value_or(0) != 0) yarn.beta_slow = *slow;
    yarn.mscale = optional_number("mscale");
    yarn.mscale_all_dim = optional_number("mscale_all_dim");
    if (parameters_.contains("truncate")) yarn.truncate = to_flag(parameters_["truncate"], "scaling.truncate");
    return yarn;
  }
  double number(const char* name) const {
    return to_double(parameters_[name], format_text("scaling.{}", std::string_view(name)).c_str());
  }
  std::optional<double> optional_number(const char* name) const {
    if (!parameters_.contains(name)) return std::nullopt;
    return number(name);
  }
  std::int64_t original() const {
    constexpr const char* kName = "original_max_position_embeddings";
    return to_int64(parameters_[kName], format_text("scaling.{}", std::string_view(kName)).c_str());
  }

  const nb::dict& parameters_;
};

RopeLayout to_layout(nb::handle object) {
  const std::string layout = to_text(object, "layout");
  if (layout == "half") return RopeLayout::kHalf;
  if (layout == "interleaved") return RopeLayout::kInterleaved;
  throw ValueError(format_text("layout: expected \"half\" or \"interleaved\", got \"{}\"", layout));
}

std::optional<std::int64_t> optional_int(nb::handle object, const char* name) {
  if (object.is_none()) return std::nullopt;
  return to_int64(object, name);
}

void make_rope(Rope* self, const nb::tuple& sizes, nb::handle base, nb::handle layout, const std::string& type,
               const nb::dict& parameters) {
  RopeOptions options;
  options.base = to_double(base, "base");
  options.layout = to_layout(layout);
  options.rotary_dim = optional_int(sizes[1], "rotary_dim");
  options.max_position = optional_int(sizes[2], "max_position");
  options.scaling = ScalingReader(parameters).read(type);
  new (self) Rope(to_int64(sizes[0], "head_dim"), options);
}

RopePass to_pass(nb::handle inverse, nb::handle backward) {
  const bool undo = to_flag(inverse, "inverse");
  const bool gradient = to_flag(backward, "backward");
  if (undo && gradient) throw ValueError("backward: given beside inverse; they differ by the attention factor");
  if (undo) return RopePass::kInverse;
  return gradient ? RopePass::kBackward : RopePass::kForward;
}

/// Where the rows are: (positions or None, first).
class RowPositions {
 public:
  RowPositions(const nb::tuple& given, Kind kind) : first_(to_int64(given[1], "first")) {
    if (given[0].is_none()) return;
    if (first_ != 0) throw ValueError("first: given beside positions, which say where every row is");
    ids_.emplace(given[0], "positions", kind, "x");
  }
  Positions positions() const { return ids_ ? Positions(ids_->view()) : Positions(first_); }

 private:
  std::int64_t first_;
  std::optional<IntArray> ids_;
};

nb::object apply(const Rope& self, nb::handle x_object, const nb::tuple& where, const nb::tuple& pass,
                 nb::handle seq_len, nb::handle out_object) {
  const Kind kind = require_first_array(x_object, "x");
  const Array x(x_object, {"x", kFloatDtypes});
  const RowPositions rows(where, kind);
  const RopeCall call{.pass = to_pass(pass[0], pass[1]), .seq_len = optional_int(seq_len, "seq_len")};
  const bool given = !out_object.is_none();
  std::optional<Array> out;
  if (given) {
    require_kind(out_object, "out", kind, "x");
    out.emplace(out_object, Parameter{"out", kFloatDtypes}, Array::Access::kWrite);
  } else {
    const std::vector<std::int64_t> shape(x.view().shape().begin(), x.view().shape().end());
    out.emplace(new_array(kind, shape, x.dtype()), kResult, Array::Access::kNew);
  }
  {
    constexpr std::int64_t kFew = 1 << 12;  // turned in less time than the interpreter lock takes to hand over
    std::optional<nb::gil_scoped_release> unlocked;
    if (!x.has_at_most(kFew)) unlocked.emplace();
    self.apply(x.view(), rows.positions(), out->view(), call);
  }
  if (given && kind == Kind::kTorch) torch_mark_written(out->object());
  return out->object();
}

/// As "rope_type" of a Hugging Face configuration.
std::string scaling_name(const Rope& self) {
  constexpr const char* kNames[] = {"default", "linear", "dynamic", "yarn", "llama3"};
  static_assert(std::variant_size_v<RopeScaling> == std::size(kNames));
  return kNames[self.options().scaling.index()];
}

/// Writes what ScalingReader reads.
struct ScalingWriter {
  nb::dict parameters;

  void operator()(const std::monostate&) {}
  void operator()(const LinearScaling& linear) { parameters["factor"] = linear.factor; }
  void operator()(const DynamicScaling& dynamic) { parameters["factor"] = dynamic.factor; }
  void operator()(const YarnScaling& yarn) {
    parameters["factor"] = yarn.factor;
    parameters["original_max_position_embeddings"] = yarn.original_max_position;
    parameters["attention_factor"] = *yarn.attention_factor;  // filled in when the rope was made
    parameters["beta_fast"] = yarn.beta_fast;
    parameters["beta_slow"] = yarn.beta_slow;
    parameters["truncate"] = yarn.truncate;
  }
  void operator()(const Llama3Scaling& llama) {
    parameters["factor"] = llama.factor;
    parameters["low_freq_factor"] = llama.low_freq_factor;
    parameters["high_freq_factor"] = llama.high_freq_factor;
    parameters["original_max_position_embeddings"] = llama.original_max_position;
  }
};

nb::dict scaling_parameters(const Rope& self) {
  ScalingWriter writer;
  std::visit(writer, self.options().scaling);
  return writer.parameters;
}

nb::list frequencies(const Rope& self, nb::handle seq_len) {
  nb::list list;
  for (const double frequency : self.frequencies(optional_int(seq_len, "seq_len"))) list.append(frequency);
  return list;
}

}  // namespace

IntArray::IntArray(nb::handle object, const char* name, Kind kind, const char* first_name) {
  if (array_type_of(object).kind == Kind::kNone) {
    values_ = to_int64_list(object, name);
    return;
  }
  require_kind(object, name, kind, first_name);
  array_.emplace(object, Parameter{name, kIndexDtypes});
}

ConstTensorView IntArray::view() const {
  if (array_) return array_->view();
  return qkv::view(values_.data(), {static_cast<std::int64_t>(values_.size())});
}

void bind_rope(nb::module_& m) {
  // For the parameters of a scaling that others follow from, so that they are refused as all arguments are.
  m.def(
      "number", [](nb::handle object, const std::string& name) { return to_double(object, name.c_str()); },
      nb::arg().none(), nb::arg(), nb::sig("def number(value: object, name: str, /) -> float"));
  m.def(
      "integer", [](nb::handle object, const std::string& name) { return to_int64(object, name.c_str()); },
      nb::arg().none(), nb::arg(), nb::sig("def integer(value: object, name: str, /) -> int"));
  nb::class_<Rope> type(m, "Rope");
  type.def("__init__", &make_rope, nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(),
           nb::sig("def __init__(self, sizes: tuple[object, ...], base: float, layout: object, scaling: str, "
                   "parameters: dict[str, object], /) -> None"));
  type.def(nb::init<const Rope&>(), nb::sig("def __init__(self, same: Rope, /) -> None"));
  type.def("apply", &apply, nb::arg().none(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(),
           nb::sig("def apply(self, x: object, where: tuple[object, ...], how: tuple[object, ...], seq_len: object, "
                   "out: object, /) -> typing.Any"));
  type.def("frequencies", &frequencies, nb::arg().none(),
           nb::sig("def frequencies(self, seq_len: object, /) -> list[float]"));
  type.def_prop_ro("attention_factor", &Rope::attention_factor);
  type.def_prop_ro("head_dim", &Rope::head_dim);
  type.def_prop_ro("rotary_dim", [](const Rope& self) { return *self.options().rotary_dim; });
  type.def_prop_ro("base", [](const Rope& self) { return self.options().base; });
  type.def_prop_ro("scaling", &scaling_name, nb::sig("def scaling(self) -> str"));
  type.def_prop_ro("scaling_parameters", &scaling_parameters,
                   nb::sig("def scaling_parameters(self) -> dict[str, float]"));
  type.def_prop_ro("max_position", [](const Rope& self) { return self.options().max_position; });
  type.def_prop_ro("layout", [](const Rope& self) {
    return std::string(self.options().layout == RopeLayout::kHalf ? "half" : "interleaved");
  });
}

}  // namespace qkv::python
