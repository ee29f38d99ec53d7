#ifndef QKV_TESTS_SUPPORT_ATTEND_H_
#define QKV_TESTS_SUPPORT_ATTEND_H_

#include <gtest/gtest.h>

#include "qkv/attention.h"
#include "support/results.h"

namespace qkv::support {

/// qkv::attention or qkv::reference::attention.
using Attention = void (*)(ConstTensorView, ConstTensorView, ConstTensorView, TensorView, const AttentionOptions&,
                           const AttentionOutputs&);

/// Calls `attention` on operands of four axes, with every output, and checks that it writes nothing else.
inline Results attend(Attention attention, const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                      const AttentionOptions& options = {}, const Wanted& wanted = {}) {
  Results results(q, k, v, wanted);
  attention(q, k, v, results.out, options, results.outputs());
  EXPECT_TRUE(results.intact()) << "something outside of an output was written";
  return results;
}

}  // namespace qkv::support

#endif  // QKV_TESTS_SUPPORT_ATTEND_H_
