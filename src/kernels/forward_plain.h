#ifndef QKV_SRC_KERNELS_FORWARD_PLAIN_H_
#define QKV_SRC_KERNELS_FORWARD_PLAIN_H_

#include <cstdint>

#include "kernels/forward_problem.h"

namespace qkv::kernels {

/// The double-precision kernel, one row at a time, for any storage type: it computes f64 attention, and the rows of f32
/// attention whose numbers leave the range of f32 on the way to a result that does not. Portable C++, no SIMD; blocks
/// and chunks of keys as in key_order.h. Writes out and whatever else is asked for of query rows
/// [row_begin, row_end) of one head, logits at a stage apart.
void plain_rows(const ForwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row_begin,
                std::int64_t row_end);

/// Forms those columns of a row's out again, in double, that are not finite.
void plain_repair_out(const ForwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row);

/// Forms those of a row's problem.logits again, in double, that are not finite though no option hides their key.
void plain_repair_logits(const ForwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row);

/// Writes problem.logits for query rows [row_begin, row_end) of one head.
void plain_logits(const ForwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row_begin,
                  std::int64_t row_end);

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_FORWARD_PLAIN_H_
