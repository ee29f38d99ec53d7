#ifndef QKV_SRC_ATTENTION_USEFUL_THREADS_H_
#define QKV_SRC_ATTENTION_USEFUL_THREADS_H_

#include <algorithm>

#include "base/parallel.h"
#include "kernels/forward_problem.h"
#include "qkv/runtime.h"

namespace qkv::attention_detail {

/// Multiply-adds of the forward pass, if every row saw every key.
inline double multiply_adds(const kernels::ForwardProblem& call) {
  const double products = static_cast<double>(call.batch * call.num_heads) * static_cast<double>(call.q_len) *
                          static_cast<double>(call.kv_len);
  return products * static_cast<double>(call.head_dim + call.value_dim);
}

/// How many threads to use for so much work: one where waking another costs more than it saves.
inline int useful_threads(double work, double serial_work) {
  // Asked for in every call: a bad QKV_NUM_THREADS is refused by the smallest.
  const int threads = std::min(num_threads(), kMostThreads);
  return work < serial_work ? 1 : threads;
}

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_USEFUL_THREADS_H_
