#ifndef QKV_SRC_BASE_PARALLEL_H_
#define QKV_SRC_BASE_PARALLEL_H_

#include <cstddef>
#include <functional>

namespace qkv {

/// Of one parallel_for, the caller among them, whatever num_threads() says.
inline constexpr int kMostThreads = 1024;

/// Runs task(0) .. task(count - 1), each exactly once, handed out dynamically in ascending order to at most
/// num_threads() threads, the caller among them; returns when all are done. After a task has thrown no further one is
/// begun; the first exception is rethrown here, when those under way have finished. Safe from several callers at once,
/// from inside a task of another (runs inline where that one uses several threads), and in a child after fork().
void parallel_for(std::size_t count, const std::function<void(std::size_t)>& task);

}  // namespace qkv

#endif  // QKV_SRC_BASE_PARALLEL_H_
