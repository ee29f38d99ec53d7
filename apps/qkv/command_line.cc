#include "command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "exit_code.h"
#include "output.h"
#include "qkv/error.h"
#include "qkv/runtime.h"
#include "verb.h"

namespace qkv::cli {
namespace {

constexpr const char* kFooter = R"(Examples:
  qkv info                     what this build is and which instruction set it uses here
  qkv selfcheck                check every instruction set of this machine against the reference
  qkv selfcheck --json         the same as one JSON document
  qkv selfcheck --help         more about one verb

Environment: QKV_TARGET forces an instruction set, QKV_NUM_THREADS the number of threads, NO_COLOR turns colours off.
Exit status: 0 all is well, 1 a check failed or the output could not be written, 2 a wrong argument.)";

/// Says in one line what went wrong, whatever the text looks like.
int fail(ExitCode code, std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  // Where nobody can be told, the exit status has to do.
  static_cast<void>(std::fputs(("qkv: " + text + "\n").c_str(), stderr));
  return code;
}

class CommandLine {
 public:
  CommandLine() : app_("Exact attention on CPUs, the same bits every time.", "qkv"), verbs_() {
    app_.get_formatter()->label("SUBCOMMAND", "VERB");
    app_.require_subcommand(0, 1);  // at most one; that one is missing is said below, with their names
    app_.add_flag("--version", version_, "Print the version and exit");
    app_.footer(kFooter);
    verbs_ = {add_info(app_), add_selfcheck(app_)};
    add_json(app_);
    for (const Verb& verb : verbs_) {
      verb.app->group("Verbs");
      add_json(*verb.app);
    }
  }

  int run(int argc, const char* const* argv) {
    Output out(stdout);
    Output err(stderr);
    try {
      app_.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
      out.write(app_.help());
      return kExitOk;
    } catch (const CLI::ParseError& error) {
      return fail(kExitUsage, fmt::format("{} (try 'qkv{} --help')", error.what(), verb_in_use()));
    }
    const Context context = {.json = json_, .out = out, .err = err};
    if (version_) return print_version(context);
    for (const Verb& verb : verbs_) {
      if (verb.app->parsed()) return verb.run(context);
    }
    return fail(kExitUsage, fmt::format("a verb is missing, one of: {} (try 'qkv --help')", verb_names()));
  }

 private:
  /// It may stand before the verb or after it.
  void add_json(CLI::App& app) { app.add_flag("--json", json_, "Print one JSON document instead of text"); }

  static int print_version(const Context& context) {
    if (context.json) {
      context.out.write(nlohmann::json{{"version", version()}}.dump() + "\n");
    } else {
      context.out.write(fmt::format("qkv {}\n", version()));
    }
    return kExitOk;
  }

  std::string verb_in_use() const {
    for (const Verb& verb : verbs_) {
      if (verb.app->parsed()) return " " + verb.app->get_name();
    }
    return "";
  }

  std::string verb_names() const {
    std::string names;
    for (const Verb& verb : verbs_) names += (names.empty() ? "" : ", ") + verb.app->get_name();
    return names;
  }

  CLI::App app_;
  std::vector<Verb> verbs_;
  bool json_ = false;
  bool version_ = false;
};

}  // namespace

int run(int argc, const char* const* argv) {
  try {
    return CommandLine().run(argc, argv);
  } catch (const Error& error) {
    return fail(kExitUsage, error.what());
  } catch (const OutputError& error) {
    // Nobody reads any more, as in `qkv selfcheck | head`: there is nothing to say, and nobody to say it to.
    return error.is_broken_pipe() ? kExitFailure : fail(kExitFailure, error.what());
  } catch (const std::exception& error) {
    return fail(kExitFailure, error.what());
  }
}

}  // namespace qkv::cli
