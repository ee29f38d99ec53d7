// What the benchmarks measure outside Python, for qkv_bench/native.py: the floating-point limit of one thread, and the
// cost of a call from C++.
#include <ctime>

#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "native.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets the target of each pass.
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

inline constexpr int kChains = 12;

/// Operations of one call of fma_chains: two per lane and multiply-add.
double fma_operations(std::int64_t steps) {
  return 2.0 * kChains * static_cast<double>(kLanes) * static_cast<double>(steps);
}

/// Chains of multiply-adds that do not wait for each other: two units with a latency of up to 6 cycles are busy, and 12
/// sums and 2 factors fit 16 registers. Sums stay near 1; what is returned depends on all of them.
float fma_chains(std::int64_t steps, float seed) {
  const VF factor = hn::Set(kF32, 0.5F);
  const VF term = hn::Set(kF32, 0.5F * seed);
  VF sums[kChains];
  // No two alike, or the compiler would see one sum in twelve names.
  HWY_UNROLL(12)
  for (int chain = 0; chain < kChains; ++chain) sums[chain] = hn::Set(kF32, seed + 0.01F * static_cast<float>(chain));
  for (std::int64_t i = 0; i < steps; ++i) {
    HWY_UNROLL(12)
    for (int chain = 0; chain < kChains; ++chain) sums[chain] = hn::MulAdd(sums[chain], factor, term);
  }
  VF all = sums[0];
  HWY_UNROLL(12)
  for (int chain = 1; chain < kChains; ++chain) all = hn::Add(all, sums[chain]);
  return sum_of(all);
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "hwy/targets.h"
#include "qkv/attention.h"
#include "qkv/runtime.h"

namespace {

namespace kernels = qkv::kernels;

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Chains {
  std::string_view target;
  std::int64_t target_bit;
  double (*operations)(std::int64_t);
  float (*run)(std::int64_t, float);
};

#define QKV_CHAINS(NAMESPACE, NAME, BIT) \
  Chains{NAME, BIT, kernels::NAMESPACE::fma_operations, kernels::NAMESPACE::fma_chains},
/// The names are those of qkv::available_targets(); any other is the one that needs no more than the compiler's flags.
constexpr Chains kBuilt[] = {
    QKV_TARGETS_ABOVE_BASELINE(QKV_CHAINS)  //
    Chains{"", HWY_STATIC_TARGET, kernels::HWY_STATIC_DISPATCH(fma_operations),
           kernels::HWY_STATIC_DISPATCH(fma_chains)},
};
#undef QKV_CHAINS

const Chains& chains_of(std::string_view target) {
  for (const Chains& chains : kBuilt) {
    if (chains.target == target && (hwy::SupportedTargets() & chains.target_bit) != 0) return chains;
  }
  return kBuilt[std::size(kBuilt) - 1];
}

}  // namespace

extern "C" {

/// Operations a second of one thread that does nothing but float multiply-adds, with vectors of that target of qkv,
/// over about that many seconds of the thread's CPU time.
[[gnu::visibility("default")]] double qkv_bench_fma_peak(const char* target, double seconds) {
  constexpr std::int64_t kSteps = 20000;  // some 50 us
  const Chains& chains = chains_of(target);
  volatile float seed = 1;
  volatile float sink = chains.run(kSteps, seed);
  double operations = 0;
  double elapsed = 0;
  const double begin = thread_seconds();
  do {
    sink = chains.run(kSteps, seed);
    operations += chains.operations(kSteps);
    elapsed = thread_seconds() - begin;
  } while (elapsed < seconds);
  static_cast<void>(sink);
  return operations / elapsed;
}

/// Seconds of the thread's CPU time of one call of qkv::attention with shapes [1, 1, 1, 8].
[[gnu::visibility("default")]] double qkv_bench_tiny_call(std::int64_t calls) {
  const qkv::Extents shape{1, 1, 1, 8};
  const std::vector<float> q(8, 0.25F);
  const std::vector<float> k(8, 0.5F);
  const std::vector<float> v(8, 1.0F);
  std::vector<float> out(8);
  const double begin = thread_seconds();
  for (std::int64_t i = 0; i < calls; ++i) {
    qkv::attention(qkv::view(q.data(), shape), qkv::view(k.data(), shape), qkv::view(v.data(), shape),
                   qkv::view(out.data(), shape));
  }
  return (thread_seconds() - begin) / static_cast<double>(calls);
}

/// The target that the copy of qkv in this library has chosen.
[[gnu::visibility("default")]] const char* qkv_bench_target() {
  static const std::string name = qkv::target();
  return name.c_str();
}

}  // extern "C"
#endif  // HWY_ONCE
