#ifndef QKV_SRC_KERNELS_HIGHWAY_TARGETS_H_
#define QKV_SRC_KERNELS_HIGHWAY_TARGETS_H_

// Include before any other header of Highway. The instruction sets that kernels are compiled for: a target that f32
// arithmetic gains nothing from only costs build time, and scalable vectors (SVE, RVV) cannot lie in the arrays that
// the register tile is made of; such machines run NEON or scalar code.
#ifdef QKV_LIMIT_TARGETS
#define QKV_OPTIONAL_TARGETS (HWY_SSE4 | HWY_AVX3)
#else
#define QKV_OPTIONAL_TARGETS 0
#endif
#define HWY_DISABLED_TARGETS                                                                                          \
  (QKV_OPTIONAL_TARGETS | HWY_SSSE3 | HWY_AVX3_DL | HWY_AVX3_ZEN4 | HWY_AVX3_SPR | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | \
   HWY_SVE2_128 | HWY_RVV)

#include "hwy/detect_targets.h"

// Names that Highway 1.0 does not know.
#ifndef HWY_AVX3_ZEN4
#define HWY_AVX3_ZEN4 0
#endif
#ifndef HWY_AVX3_SPR
#define HWY_AVX3_SPR 0
#endif
#ifndef HWY_SSE2
#define HWY_SSE2 0
#endif

#endif  // QKV_SRC_KERNELS_HIGHWAY_TARGETS_H_
