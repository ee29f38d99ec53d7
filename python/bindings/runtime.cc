#include "qkv/runtime.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "bindings/arguments.h"
#include "bindings/bindings.h"

namespace qkv::python {
namespace {

nb::dict config_as_dict() {
  const Config found = config();
  nb::dict result;
  result["version"] = found.version;
  result["target"] = found.target;
  result["targets"] = found.targets;
  result["threads"] = found.threads;
  result["compiler"] = found.compiler;
  result["build_type"] = found.build_type;
  result["cpu"] = found.cpu;
  result["highway"] = found.highway;
  return result;
}

void set_num_threads_clamped(nb::handle count) {
  using Limits = std::numeric_limits<int>;
  set_num_threads(
      static_cast<int>(std::clamp<std::int64_t>(to_int64(count, "num_threads"), Limits::min(), Limits::max())));
}

void set_target_by_name(nb::handle name) { set_target(to_text(name, "name")); }

}  // namespace

void bind_runtime(nb::module_& m) {
  m.def("version", [] { return std::string(version()); });
  m.def("num_threads", &num_threads);
  m.def("set_num_threads", &set_num_threads_clamped, nb::arg().none(),
        nb::sig("def set_num_threads(num_threads: int, /) -> None"));
  m.def("available_targets", &available_targets);
  m.def("target", &target);
  m.def("set_target", &set_target_by_name, nb::arg().none(), nb::sig("def set_target(name: str, /) -> None"));
  m.def("config", &config_as_dict, nb::sig("def config() -> dict[str, object]"));
}

}  // namespace qkv::python
