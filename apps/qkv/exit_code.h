#ifndef QKV_APPS_EXIT_CODE_H_
#define QKV_APPS_EXIT_CODE_H_

namespace qkv::cli {

/// What the program says to a script.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,  ///< a check failed, or the output could not be written
  kExitUsage = 2,    ///< a wrong argument or environment variable; one line on standard error says which
};

}  // namespace qkv::cli

#endif  // QKV_APPS_EXIT_CODE_H_
