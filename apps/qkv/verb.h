#ifndef QKV_APPS_VERB_H_
#define QKV_APPS_VERB_H_

#include <CLI/CLI.hpp>
#include <functional>

#include "output.h"

namespace qkv::cli {

/// What every verb is run with.
struct Context {
  bool json = false;  ///< one JSON document on `out`, and nothing else there
  Output& out;
  Output& err;  ///< for progress; errors are thrown
};

/// A word after "qkv": how it stands on the command line, and what it does. `run` returns the exit status.
struct Verb {
  CLI::App* app;
  std::function<int(const Context&)> run;
};

// Each of these adds its verb, with its options and its help, to the command line. One cmd_<verb>.cc each.
Verb add_info(CLI::App& app);
Verb add_selfcheck(CLI::App& app);

}  // namespace qkv::cli

#endif  // QKV_APPS_VERB_H_
