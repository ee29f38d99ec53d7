#ifndef QKV_SRC_REFERENCE_BACKWARD_H_
#define QKV_SRC_REFERENCE_BACKWARD_H_

#include <cstdint>

#include "qkv/backward.h"

namespace qkv::reference {

/// The contract of qkv::attention_backward in scalar double precision, for operands that have passed validation. What
/// the forward call saved is not used: weights and sums are formed again, in double.
/// @param first_batch  dropout's number of batch 0
void backward(const AttentionInputs& inputs, const AttentionGradients& gradients, const AttentionOptions& options,
              std::int64_t first_batch = 0);

/// The same of qkv::attention_varlen_backward, one segment after the other.
void backward_varlen(const AttentionInputs& inputs, const AttentionGradients& gradients, const VarlenOptions& options);

}  // namespace qkv::reference

#endif  // QKV_SRC_REFERENCE_BACKWARD_H_
