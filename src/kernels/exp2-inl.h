#if defined(QKV_SRC_KERNELS_EXP2_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_EXP2_INL_H_
#undef QKV_SRC_KERNELS_EXP2_INL_H_
#else
#define QKV_SRC_KERNELS_EXP2_INL_H_
#endif

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

/// 2^x for x <= 64 or so, relative error below 1.8e-7 (1.7e-7 where multiply-add is fused): what a softmax meets after
/// its maximum is subtracted.
/// Exactly 1 at 0 (a rescale by an unchanged maximum changes no bit), exactly 0 below -126.5, a rounded denormal between
/// there and -126, NaN for NaN. The scaling by 2^n is a multiplication: adding n to the exponent's bits would
/// turn some NaNs into numbers.
/// Polynomial: minimax of degree 5 on [-1/2, 1/2] with the constant held at 1.
HWY_INLINE VF exp2_nonpositive(VF x) {
  // Adding 1.5 * 2^23 rounds to an integer, kept in the low mantissa bits; 127 more makes it a biased exponent.
  const VF magic = hn::Set(kF32, 12582912.0f + 127.0f);
  const VF bounded = max_or_nan(hn::Set(kF32, -127.0f), x);
  const VF shifted = hn::Add(bounded, magic);
  const VF fraction = hn::Sub(bounded, hn::Sub(shifted, magic));
  VF p = hn::Set(kF32, 1.326472731307149e-3f);
  p = hn::MulAdd(p, fraction, hn::Set(kF32, 9.671512991189957e-3f));
  p = hn::MulAdd(p, fraction, hn::Set(kF32, 5.550733581185341e-2f));
  p = hn::MulAdd(p, fraction, hn::Set(kF32, 2.402224242687225e-1f));
  p = hn::MulAdd(p, fraction, hn::Set(kF32, 6.931470036506653e-1f));
  p = hn::MulAdd(p, fraction, hn::Set(kF32, 1.0f));
  const VF power = hn::BitCast(kF32, hn::ShiftLeft<23>(hn::BitCast(kI32, shifted)));
  return hn::Mul(p, power);
}

HWY_INLINE float exp2_nonpositive(float x) { return hn::GetLane(exp2_nonpositive(hn::Set(kF32, x))); }

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
