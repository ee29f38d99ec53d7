#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string>

#include "exit_code.h"
#include "qkv/runtime.h"
#include "verb.h"

namespace qkv::cli {
namespace {

std::string as_json(const Config& config) {
  const nlohmann::ordered_json document = {
      {"version", config.version},       {"target", config.target},   {"targets", config.targets},
      {"threads", config.threads},       {"cpu", config.cpu},         {"compiler", config.compiler},
      {"build_type", config.build_type}, {"highway", config.highway},
  };
  return document.dump(2) + "\n";
}

std::string as_text(const Config& config) {
  std::string text;
  const auto line = [&text](const char* name, const std::string& value) {
    text += fmt::format("{:<11}{}\n", name, value);
  };
  line("version", config.version);
  line("target", config.target);
  line("targets", fmt::format("{}", fmt::join(config.targets, ", ")));
  line("threads", std::to_string(config.threads));
  line("cpu", config.cpu);
  line("compiler", config.compiler);
  line("build", config.build_type);
  line("highway", config.highway);
  return text;
}

int run_info(const Context& context) {
  const Config config = qkv::config();
  context.out.write(context.json ? as_json(config) : as_text(config));
  return kExitOk;
}

}  // namespace

Verb add_info(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("info", "Version, build, and what is used of this machine");
  verb->footer(R"(The target is the instruction set in use. It is the best of those listed; QKV_TARGET forces another.
The threads are those of one call: QKV_NUM_THREADS, else OMP_NUM_THREADS, else the CPUs that the process may run on.

Examples:
  qkv info
  qkv info --json
  QKV_TARGET=reference qkv info)");
  return {verb, run_info};
}

}  // namespace qkv::cli
