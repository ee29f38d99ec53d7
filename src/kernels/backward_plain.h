#ifndef QKV_SRC_KERNELS_BACKWARD_PLAIN_H_
#define QKV_SRC_KERNELS_BACKWARD_PLAIN_H_

#include <cstdint>

#include "kernels/backward_problem.h"
#include "kernels/key_range.h"

namespace qkv::kernels {

// The double-precision kernel of the way back, for any storage type: all of a float64 call, and of others the rows and
// keys whose numbers leave the range of f32. Portable C++, no SIMD. A row's sum goes over its keys in order, a key's
// over the query rows of its group, head by head.

/// grad_q of one query row.
void plain_grad_q(const BackwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row);

/// grad_k and grad_v, those asked for, of keys [key_begin, key_end) of one kv head.
void plain_grad_kv(const BackwardProblem& problem, std::int64_t batch, std::int64_t kv_head, std::int64_t key_begin,
                   std::int64_t key_end);

/// Adds the gradients of one query row's logits at some keys to `sums`, which lies as grad_bias does: float32 or float64.
void plain_grad_bias(const BackwardProblem& problem, const Result& sums, std::int64_t batch, std::int64_t head,
                     std::int64_t row, KeyRange keys);

/// The gradient that one query row adds to its sink's.
double plain_grad_sink(const BackwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row);

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_BACKWARD_PLAIN_H_
