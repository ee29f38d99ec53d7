#if defined(QKV_SRC_KERNELS_LOGIT_TERMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_LOGIT_TERMS_INL_H_
#undef QKV_SRC_KERNELS_LOGIT_TERMS_INL_H_
#else
#define QKV_SRC_KERNELS_LOGIT_TERMS_INL_H_
#endif

#include <limits>

#include "kernels/element.h"
#include "kernels/row_block.h"
#include "kernels/storage-inl.h"
#include "kernels/tile-inl.h"
// After highway_targets.h, which says what is built.
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

// What a logit has beside the product: scale, softcap, bias, ALiBi, in this order.

/// c * tanh(x / c), NaN for NaN.
HWY_INLINE VF cap(VF x, float softcap) {
  const VF c = hn::Set(kF32, softcap);
  const VF capped = hn::Mul(c, hn::CallTanh(kF32, hn::Div(x, c)));
  return hn::IfThenElse(hn::Eq(x, x), capped, x);
}

template <class T>
HWY_INLINE VF load_bias_of(const RowBlock& block, const T* bias, std::int64_t key) {
  const std::int64_t stride = block.problem.bias.col;
  const std::int64_t end = block.problem.kv_len;
  if (stride == 0) return hn::Set(kF32, static_cast<float>(*bias));
  if (stride == 1 && key + kLanes <= end) return load(bias + key);
  float staged[kLanes] = {};
  for (int i = 0; i < kLanes && key + i < end; ++i) staged[i] = static_cast<float>(bias[(key + i) * stride]);
  return load(staged);
}

/// Bias of the vector of keys from `key` on, 0 beyond the last.
HWY_INLINE VF load_bias(const RowBlock& block, const Row& row, std::int64_t key) {
  return visit_storage(block.problem.bias.dtype,
                       [&]<class T>(T) HWY_ATTR { return load_bias_of(block, static_cast<const T*>(row.bias), key); });
}

/// |p - j| for the keys j from `key` on. Exact to 2^24; beyond, rounded like any other operand.
HWY_INLINE VF distances(const Row& row, std::int64_t key) {
  const double first = static_cast<double>(row.keys.position) - static_cast<double>(key);
  return hn::Abs(hn::Sub(hn::Set(kF32, static_cast<float>(first)), hn::Iota(kF32, 0.0f)));
}

/// x - slope |p - j|, fused.
HWY_INLINE VF add_alibi(const RowBlock& block, const Row& row, std::int64_t key, VF x) {
  if (!block.problem.alibi_slopes) return x;
  return hn::NegMulAdd(hn::Set(kF32, row.slope), distances(row, key), x);
}

/// The general formula for one vector: softcap, bias, ALiBi. `visible` loses the keys that the bias hides.
HWY_INLINE VF form_logit(const RowBlock& block, const Row& row, std::int64_t key, VF scaled, MF& visible) {
  VF x = scaled;
  if (block.formula.softcap > 0) x = cap(x, block.formula.softcap);
  if (row.bias != nullptr) {
    const VF bias = load_bias(block, row, key);
    // Not Ne: on x86 that is false for NaN, which would hide it.
    visible = hn::AndNot(hn::Eq(bias, hn::Set(kF32, -std::numeric_limits<float>::infinity())), visible);
    x = hn::Add(x, bias);
  }
  return add_alibi(block, row, key, x);
}

/// x = r q'k + bias - slope |p - j|, the general formula without a softcap.
template <int kR, int kW>
HWY_INLINE void add_terms(const RowBlock& block, const Row* rows, std::int64_t key, Accumulators<kR, kW>& acc) {
  const ForwardProblem& problem = block.problem;
  const VF residual = hn::Set(kF32, static_cast<float>(block.formula.residual));
  const bool whole =
      problem.bias.col == 1 && problem.bias.dtype == Dtype::kFloat32 && key + kW * kLanes <= problem.kv_len;
  HWY_UNROLL(8)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(8)
    for (int w = 0; w < kW; ++w) {
      VF x = hn::Mul(residual, acc.v[r][w]);
      const std::int64_t first = key + w * kLanes;
      if (whole) {
        x = hn::Add(x, load(static_cast<const float*>(rows[r].bias) + first));
      } else if (rows[r].bias != nullptr) {
        x = hn::Add(x, load_bias(block, rows[r], first));
      }
      acc.v[r][w] = add_alibi(block, rows[r], first, x);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
