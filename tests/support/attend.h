#ifndef QKV_TESTS_SUPPORT_ATTEND_H_
#define QKV_TESTS_SUPPORT_ATTEND_H_

#include <gtest/gtest.h>

#include "qkv/attention.h"
#include "support/results.h"

namespace qkv::support {

/// qkv::attention or qkv::reference::attention.
using Attention = void (*)(ConstTensorView, ConstTensorView, ConstTensorView, TensorView, const AttentionOptions&,
                           const AttentionOutputs&);

/// Calls `attention` on operands of four axes, with every output, and checks that it writes nothing else. Without the
/// other outputs kernels have ways of their own to `out`: they have to lead to the same bits.
inline Results attend(Attention attention, const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                      const AttentionOptions& options = {}, const Wanted& wanted = {}) {
  Results results(q, k, v, wanted);
  attention(q, k, v, results.out, options, results.outputs());
  EXPECT_TRUE(results.intact()) << "something outside of an output was written";
  if (attention == Attention{&qkv::attention}) {
    const Guarded alone(results.out.view().shape(), results.out.view().dtype(), wanted.layout);
    attention(q, k, v, alone, options, {});
    EXPECT_TRUE(same_bits(alone, results.out)) << "out alone";
    EXPECT_TRUE(alone.intact());
  }
  return results;
}

}  // namespace qkv::support

#endif  // QKV_TESTS_SUPPORT_ATTEND_H_
