#ifndef QKV_TESTS_SUPPORT_GRADIENT_PART_H_
#define QKV_TESTS_SUPPORT_GRADIENT_PART_H_

#include "support/gradients.h"
#include "support/part.h"

namespace qkv::support {

/// Part of a backward call.
class GradientPart : public Part {
 public:
  explicit GradientPart(const BackwardCall& of) : Part(of.call), of_(of) {}

  /// Fails unless the part alone gives every bit of grad_q that the whole call gave it; and, where the part has all rows,
  /// of grad_k and grad_v.
  void expect_gradient_bits_of(const Gradients& whole, const Saved& saved) {
    const AttentionInputs inputs{query(*of_.call.q), key(*of_.call.k), key(*of_.call.v)};
    const Guarded q(inputs.q.shape(), of_.call.q->dtype());
    const Guarded k(inputs.k.shape(), of_.call.k->dtype());
    const Guarded v(inputs.v.shape(), of_.call.v->dtype());
    AttentionGradients gradients;
    gradients.grad_out = query(*of_.grad_out);
    if (of_.grad_lse) gradients.grad_lse = query(*of_.grad_lse);
    if (of_.grad_entropy) gradients.grad_entropy = query(*of_.grad_entropy);
    gradients.grad_q = q.view();
    gradients.grad_k = k.view();
    gradients.grad_v = v.view();
    attention_backward(inputs, {query(saved.out), query(saved.lse)}, gradients, options());
    EXPECT_TRUE(same_bits(q, query(*whole.q))) << "grad_q";
    if (rows_.size() < of_.call.q_len) return;
    EXPECT_TRUE(same_bits(k, key(*whole.k))) << "grad_k";
    EXPECT_TRUE(same_bits(v, key(*whole.v))) << "grad_v";
  }

 private:
  const BackwardCall& of_;
};

}  // namespace qkv::support

#endif  // QKV_TESTS_SUPPORT_GRADIENT_PART_H_
