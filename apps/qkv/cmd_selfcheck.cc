#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "qkv/attention.h"
#include "qkv/error.h"
#include "qkv/runtime.h"
#include "selfcheck.h"
#include "selfcheck_report.h"
#include "verb.h"

namespace qkv::cli {
namespace {

struct Arguments {
  std::uint64_t seed = SelfcheckPlan().seed;
  std::optional<std::string> target;
  bool quick = false;
};

/// All targets, or the one asked for. @throws ValueError if there is no such target.
std::vector<std::string> chosen_targets(const std::optional<std::string>& name) {
  const std::vector<std::string> available = available_targets();
  if (!name) return available;
  if (std::find(available.begin(), available.end(), *name) == available.end()) {
    throw ValueError(fmt::format("--target: expected one of {}, got '{}'", fmt::join(available, ", "), *name));
  }
  return {*name};
}

/// Read here and not by CLI11, which takes -1 for a large number.
std::uint64_t parse_seed(const std::string& text) {
  std::uint64_t seed = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, seed);
  if (error != std::errc() || stop != end) {
    throw CLI::ValidationError("--seed", fmt::format("expected a whole number from 0 to 2^64 - 1, got '{}'", text));
  }
  return seed;
}

int run_selfcheck(const Arguments& arguments, const Context& context) {
  const SelfcheckPlan plan = {
      .seed = arguments.seed, .targets = chosen_targets(arguments.target), .quick = arguments.quick};
  return report_selfcheck(plan, [](const auto&... call) { qkv::attention(call...); }, context);
}

}  // namespace

Verb add_selfcheck(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand("selfcheck", "Check attention on this machine, every option on every target");
  verb->add_option_function<std::string>(
          "--seed", [arguments](const std::string& text) { arguments->seed = parse_seed(text); },
          "Seed of the random inputs (default 42)")
      ->type_name("N");
  verb->add_option("--target", arguments->target, "One target instead of all that qkv info lists")->type_name("NAME");
  verb->add_flag("--quick", arguments->quick, "Only float32, without the long sequences");
  verb->footer(R"(Three kinds of checks, a line each:
  accuracy   every option alone and together, each with all outputs, against the double-precision reference. The
             number is the worst error, in epsilons of the dtype times the size of what is computed.
  bits       the same rows computed in two ways, such as with 1 and 2 threads, or with NaN in the hidden keys. The
             number is how many elements differ; it must be 0.
  module     multi-head attention, 512 wide with 8 heads, on random [2, 32, 512]: shape, finite, accuracy.

Exit status: 0 if all passed, 1 if one failed.

Examples:
  qkv selfcheck
  qkv selfcheck --quick --target avx2
  qkv selfcheck --seed 7 --json > selfcheck.json)");
  return {verb, [arguments](const Context& context) { return run_selfcheck(*arguments, context); }};
}

}  // namespace qkv::cli
