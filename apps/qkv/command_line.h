#ifndef QKV_APPS_COMMAND_LINE_H_
#define QKV_APPS_COMMAND_LINE_H_

namespace qkv::cli {

/// The whole program: reads the arguments, runs the verb, reports errors as one line. Returns the exit status.
int run(int argc, const char* const* argv);

}  // namespace qkv::cli

#endif  // QKV_APPS_COMMAND_LINE_H_
