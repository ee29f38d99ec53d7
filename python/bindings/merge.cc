#include "qkv/merge.h"

#include <nanobind/nanobind.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/text.h"
#include "bindings/array.h"
#include "bindings/bindings.h"
#include "bindings/text.h"
#include "qkv/error.h"

namespace qkv::python {
namespace {

// The items of one of the two lists, as arrays of the kind of the first out.
std::deque<Array> read_list(nb::handle list, const std::string& name, std::optional<Kind>& kind) {
  if (!nb::isinstance<nb::list>(list) && !nb::isinstance<nb::tuple>(list)) {
    throw nb::type_error(format_text("{}: expected a list or tuple of arrays, got {}", name, described(list)).c_str());
  }
  std::deque<Array> arrays;
  for (std::size_t i = 0; i < nb::len(list); ++i) {
    const nb::object item = list[i];
    const std::string item_name = format_text("{}[{}]", name, i);
    if (kind) {
      require_kind(item, item_name.c_str(), *kind, "outs[0]");
    } else {
      kind = require_first_array(item, item_name.c_str());
    }
    arrays.emplace_back(item, Parameter{item_name.c_str(), kFloatDtypes});
  }
  return arrays;
}

std::vector<std::int64_t> shape_of(const Array& array) {
  return {array.view().shape().begin(), array.view().shape().end()};
}

nb::tuple merge(nb::handle outs_list, nb::handle lses_list, nb::handle sinks_object) {
  std::optional<Kind> kind;
  const std::deque<Array> outs = read_list(outs_list, "outs", kind);
  const std::deque<Array> lses = read_list(lses_list, "lses", kind);
  if (outs.empty()) throw ValueError("outs: expected at least one array, got none");
  if (outs.size() != lses.size()) {
    throw ValueError(format_text("lses: {} arrays, expected {} as outs has", lses.size(), outs.size()));
  }
  std::optional<Array> sinks;
  if (!sinks_object.is_none()) {
    require_kind(sinks_object, "sinks", *kind, "outs[0]");
    sinks.emplace(sinks_object, Parameter{"sinks", kFloatDtypes});
  }
  const Array out(new_array(*kind, shape_of(outs.front()), outs.front().dtype()), kResult, Array::Access::kNew);
  const Array lse(new_array(*kind, shape_of(lses.front()), lses.front().dtype()), kResult, Array::Access::kNew);
  std::vector<PartialAttention> parts;
  for (std::size_t i = 0; i < outs.size(); ++i) {
    parts.push_back({with_rank(outs[i].view(), 4), with_rank(lses[i].view(), 3)});
  }
  const std::optional<ConstTensorView> sinks_view =
      sinks ? std::optional<ConstTensorView>(sinks->view()) : std::nullopt;
  {
    const nb::gil_scoped_release unlocked;
    merge_states(parts, with_rank(out.view(), 4), with_rank(lse.view(), 3), sinks_view);
  }
  return nb::make_tuple(out.object(), lse.object());
}

}  // namespace

void bind_merge(nb::module_& m) {
  m.def("merge_states", &merge, nb::arg().none(), nb::arg().none(), nb::arg().none(),
        nb::sig("def merge_states(outs: object, lses: object, sinks: object, /) -> tuple[typing.Any, typing.Any]"));
}

}  // namespace qkv::python
