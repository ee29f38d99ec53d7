#ifndef QKV_SRC_KERNELS_PREFETCH_H_
#define QKV_SRC_KERNELS_PREFETCH_H_

#include <cstdint>

#include "kernels/forward_problem.h"
#include "kernels/visibility.h"

namespace qkv::kernels {

/// The kv head that this thread computes next. While it computes the one before, it asks memory for a share of the next
/// one's q, k, v and out with each group of rows: short heads wait for memory otherwise.
class NextHead {
 public:
  NextHead() = default;  ///< nothing follows
  NextHead(const ForwardProblem& problem, std::int64_t batch, std::int64_t kv_head, KeyRange range);

  /// Asks for the part [begin, end) of `whole`: as much of the next head as has been done of this one.
  void prefetch(std::int64_t begin, std::int64_t end, std::int64_t whole) const;

 private:
  const ForwardProblem* problem_ = nullptr;
  std::int64_t batch_ = 0;
  std::int64_t kv_head_ = 0;
  KeyRange range_ = {};
};

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_PREFETCH_H_
