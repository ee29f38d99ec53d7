#ifndef QKV_SRC_KERNELS_BACKWARD_F32_H_
#define QKV_SRC_KERNELS_BACKWARD_F32_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/backward_block.h"

namespace qkv::kernels {

/// The way back in f32 for one instruction set.
struct BackwardKernelF32 {
  std::string_view target;  ///< "avx2"

  /// What is known of the rows before they meet a key.
  void (*begin)(BackwardHead& head);

  /// Writes grad_k and grad_v of a block of keys, and adds what they give to grad_q and the sums of a bias. Blocks of a
  /// head may run on several threads, if each is begun after the one before.
  void (*run)(BackwardHead& head, std::int64_t key_block);

  /// Writes grad_q of rows [row_begin, row_end), after all blocks.
  void (*finish)(BackwardHead& head, std::int64_t row_begin, std::int64_t row_end);
};

/// The kernel of a target, or the best of those below it that there is one of.
const BackwardKernelF32& backward_kernel_f32(std::string_view target);

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_BACKWARD_F32_H_
