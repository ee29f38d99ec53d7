#ifndef QKV_RUNTIME_H_
#define QKV_RUNTIME_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/export.h"

namespace qkv {

/// "0.1.0"
QKV_API std::string_view version() noexcept;

/// Threads that one call may use, the caller's among them. The default, in this order: QKV_NUM_THREADS,
/// OMP_NUM_THREADS, the CPUs that this process may run on. @throws ValueError below 1.
QKV_API void set_num_threads(int num_threads);
/// What set_num_threads or the default says. @throws ValueError if an environment variable is no number of threads.
QKV_API int num_threads();

/// Runs task(0) .. task(count - 1), each exactly once and in any order, and returns when all are done; calls
/// none after that.
using Executor = std::function<void(std::size_t count, const std::function<void(std::size_t)>& task)>;

/// Hands parallel work to the embedder's own threads instead of the library's; an empty Executor takes it back.
/// num_threads() still says into how many pieces work is cut. Set it while no call is running.
QKV_API void set_executor(Executor executor);

/// Instruction sets that this build and this CPU both have, best first, e.g. {"avx2", "sse4", "scalar", "reference"}.
QKV_API std::vector<std::string> available_targets();
/// The one in use: the best, or what QKV_TARGET or set_target forced. Rotations (qkv/position.h) and the rounding of caches
/// take the best in any case: they have the same bits on all.
QKV_API std::string target();
/// @throws ValueError for a name that is not available; "" goes back to the best. Set it while no call is running.
QKV_API void set_target(std::string_view name);

/// How this library was built and where it runs.
struct Config {
  std::string version;               ///< version()
  std::string target;                ///< target()
  std::vector<std::string> targets;  ///< available_targets()
  int threads = 0;                   ///< num_threads()
  std::string compiler;              ///< name and version
  std::string build_type;            ///< CMake's, "Release"
  std::string cpu;                   ///< as the CPU calls itself, "unknown" where it does not
  std::string highway;               ///< version of Google Highway
};
/// A snapshot of it all. @throws ValueError as num_threads() and target() do.
QKV_API Config config();

}  // namespace qkv

#endif  // QKV_RUNTIME_H_
