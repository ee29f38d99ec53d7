#ifndef QKV_SRC_KERNELS_HIGHWAY_TARGETS_H_
#define QKV_SRC_KERNELS_HIGHWAY_TARGETS_H_

// Include before any other header of Highway. The instruction sets that kernels are compiled for: a target that the
// arithmetic gains nothing from only costs build time, and scalable vectors (SVE, RVV) cannot lie in the arrays that
// the register tile is made of; such machines run NEON or scalar code.
//
// Products of bfloat16 pairs (avx512bf16) have a target of their own in late versions of Highway only. Every CPU that has
// them but Cooper Lake has what AVX3_DL stands for: a file that defines QKV_WITH_PAIRS compiles that target with them
// (simd-inl.h), and runs it where the CPU has both. Other files leave it out. With compiler flags that promise the one
// without the other (icelake-server) there is no such target.
#if defined(QKV_WITH_PAIRS) && (defined(__AVX512BF16__) || !defined(__AVX512VBMI2__))
#define HWY_WANT_AVX3_DL
#define QKV_WITHOUT_PAIRS 0
#else
#define QKV_WITHOUT_PAIRS HWY_AVX3_DL
#endif
#ifdef QKV_LIMIT_TARGETS
#define QKV_OPTIONAL_TARGETS (HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)
#else
#define QKV_OPTIONAL_TARGETS 0
#endif
#define HWY_DISABLED_TARGETS                                                                                  \
  (QKV_OPTIONAL_TARGETS | QKV_WITHOUT_PAIRS | HWY_SSSE3 | HWY_AVX3_ZEN4 | HWY_AVX3_SPR | HWY_SVE | HWY_SVE2 | \
   HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

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

// QKV_TARGETS_ABOVE_BASELINE(X): X(namespace, name in this library, bit) for each instruction set that is compiled beside
// the one of the compiler's flags, best first.
#if (HWY_TARGETS & HWY_AVX3_DL) && HWY_STATIC_TARGET != HWY_AVX3_DL
#define QKV_IF_AVX512_BF16(X) X(N_AVX3_DL, "avx512_bf16", HWY_AVX3_DL)
#else
#define QKV_IF_AVX512_BF16(X)
#endif
#if (HWY_TARGETS & HWY_AVX3) && HWY_STATIC_TARGET != HWY_AVX3
#define QKV_IF_AVX512(X) X(N_AVX3, "avx512", HWY_AVX3)
#else
#define QKV_IF_AVX512(X)
#endif
#if (HWY_TARGETS & HWY_AVX2) && HWY_STATIC_TARGET != HWY_AVX2
#ifdef QKV_EMULATE_PAIRS
#define QKV_IF_AVX2(X) X(N_AVX2, "avx2_bf16", HWY_AVX2)
#else
#define QKV_IF_AVX2(X) X(N_AVX2, "avx2", HWY_AVX2)
#endif
#else
#define QKV_IF_AVX2(X)
#endif
#if (HWY_TARGETS & HWY_SSE4) && HWY_STATIC_TARGET != HWY_SSE4
#define QKV_IF_SSE4(X) X(N_SSE4, "sse4", HWY_SSE4)
#else
#define QKV_IF_SSE4(X)
#endif
#define QKV_TARGETS_ABOVE_BASELINE(X) QKV_IF_AVX512_BF16(X) QKV_IF_AVX512(X) QKV_IF_AVX2(X) QKV_IF_SSE4(X)

#endif  // QKV_SRC_KERNELS_HIGHWAY_TARGETS_H_
