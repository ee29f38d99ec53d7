// What the benchmarks measure outside Python, for qkv_bench/native.py: the limits of arithmetic and of memory, and the cost
// of a call from C++.
#include <ctime>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <latch>
#include <string>
#include <string_view>
#include <thread>
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

/// The sum of all elements, by as many loads at a time as keep the memory busy; integers, as adding them costs a cycle.
std::int32_t sum_of_memory(const std::int32_t* data, std::size_t count) {
  constexpr std::size_t kSums = 8;
  constexpr std::size_t kStep = kSums * kLanes;
  VI sums[kSums];
  for (VI& sum : sums) sum = hn::Zero(kI32);
  for (std::size_t i = 0; i + kStep <= count; i += kStep) {
    HWY_UNROLL(8)
    for (std::size_t j = 0; j < kSums; ++j) sums[j] = hn::Add(sums[j], hn::LoadU(kI32, data + i + j * kLanes));
  }
  for (std::size_t j = 1; j < kSums; ++j) sums[0] = hn::Add(sums[0], sums[j]);
  return hn::GetLane(hn::SumOfLanes(kI32, sums[0]));
}

/// Reads all elements and writes what differs from them: a copy that no library call can take the place of.
void add_to_memory(const std::int32_t* from, std::int32_t* to, std::size_t count) {
  constexpr std::size_t kStep = 4 * kLanes;
  const VI one = hn::Set(kI32, 1);
  for (std::size_t i = 0; i + kStep <= count; i += kStep) {
    HWY_UNROLL(4)
    for (std::size_t j = i; j < i + kStep; j += kLanes)
      hn::StoreU(hn::Add(hn::LoadU(kI32, from + j), one), kI32, to + j);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "hwy/targets.h"
#include "qkv/attention.h"
#include "qkv/kv_cache.h"
#include "qkv/runtime.h"

namespace {

namespace kernels = qkv::kernels;

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Loops {
  std::string_view target;
  std::int64_t target_bit;
  double (*operations)(std::int64_t);
  float (*multiply_add)(std::int64_t, float);
  std::int32_t (*read)(const std::int32_t*, std::size_t);
  void (*add)(const std::int32_t*, std::int32_t*, std::size_t);
};

#define QKV_LOOPS(NAMESPACE, NAME, BIT)     \
  Loops{NAME,                               \
        BIT,                                \
        kernels::NAMESPACE::fma_operations, \
        kernels::NAMESPACE::fma_chains,     \
        kernels::NAMESPACE::sum_of_memory,  \
        kernels::NAMESPACE::add_to_memory},
/// The names are those of qkv::available_targets(), where "avx512_more" is avx512 with more; any other is the one that needs
/// no more than the compiler's flags.
constexpr Loops kBuilt[] = {
    QKV_TARGETS_ABOVE_BASELINE(QKV_LOOPS)  //
    Loops{"", HWY_STATIC_TARGET, kernels::HWY_STATIC_DISPATCH(fma_operations), kernels::HWY_STATIC_DISPATCH(fma_chains),
          kernels::HWY_STATIC_DISPATCH(sum_of_memory), kernels::HWY_STATIC_DISPATCH(add_to_memory)},
};
#undef QKV_LOOPS

const Loops& loops_of(std::string_view target) {
  const std::string_view set = target.substr(0, target.find('_'));
  for (const Loops& loops : kBuilt) {
    if (loops.target == set && (hwy::SupportedTargets() & loops.target_bit) != 0) return loops;
  }
  return kBuilt[std::size(kBuilt) - 1];
}

/// The widest that this CPU has: memory is read as fast as anything can read it, whatever target computes.
const Loops& widest_loops() {
  for (const Loops& loops : kBuilt) {
    if ((hwy::SupportedTargets() & loops.target_bit) != 0) return loops;
  }
  return kBuilt[std::size(kBuilt) - 1];
}

constexpr std::int64_t kSteps = 20000;  // some 50 us

/// Operations a second of the thread's CPU time of run(), which does so many, repeated for that many seconds.
template <class Run>
double rate_of(double operations, double seconds, Run run) {
  volatile float sink = run();
  double done = 0;
  double elapsed = 0;
  const double begin = thread_seconds();
  do {
    sink = run();
    done += operations;
    elapsed = thread_seconds() - begin;
  } while (elapsed < seconds);
  static_cast<void>(sink);
  return done / elapsed;
}

#if defined(__x86_64__) && defined(__GNUC__)
// With intrinsics: Highway 1.0 never emits this instruction.
bool has_bf16_dot() { return __builtin_cpu_supports("avx512bf16") != 0; }

constexpr int kDotChains = 12;
/// A multiplication and an addition for each of the two products of a lane of 32 bits.
constexpr double kDotOperations = 2.0 * 2 * 16 * kDotChains * kSteps;

[[gnu::target("avx512f,avx512bf16")]] float bf16_dot_chains(float seed) {
  const __m512bh factor = _mm512_cvtne2ps_pbh(_mm512_set1_ps(seed), _mm512_set1_ps(seed));
  const __m512bh small = _mm512_cvtne2ps_pbh(_mm512_set1_ps(1e-9F * seed), _mm512_set1_ps(2e-9F * seed));
  __m512 sums[kDotChains];
  HWY_UNROLL(12)
  for (int chain = 0; chain < kDotChains; ++chain) sums[chain] = _mm512_set1_ps(static_cast<float>(chain));
  for (std::int64_t i = 0; i < kSteps; ++i) {
    HWY_UNROLL(12)
    for (int chain = 0; chain < kDotChains; ++chain) sums[chain] = _mm512_dpbf16_ps(sums[chain], factor, small);
  }
  __m512 all = sums[0];
  HWY_UNROLL(12)
  for (int chain = 1; chain < kDotChains; ++chain) all = _mm512_add_ps(all, sums[chain]);
  return _mm512_cvtss_f32(all);
}
#else
bool has_bf16_dot() { return false; }
constexpr double kDotOperations = 0;
float bf16_dot_chains(float seed) { return seed; }
#endif

/// Reads all of it with so many threads, each a part of its own; seconds on the wall from when all of them are ready.
double seconds_of_reading(const std::int32_t* data, std::size_t count, int threads) {
  const std::size_t part = count / static_cast<std::size_t>(threads);
  std::vector<std::int32_t> sums(static_cast<std::size_t>(threads));
  std::latch ready(threads);
  double begin = 0;
  const auto read = [&](std::size_t i) {
    ready.arrive_and_wait();
    if (i == 0) begin = wall_seconds();
    sums[i] = widest_loops().read(data + i * part, part);
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(read, static_cast<std::size_t>(i));
  read(0);
  for (std::thread& other : others) other.join();
  const double elapsed = wall_seconds() - begin;
  volatile std::int32_t sink = 0;
  for (const std::int32_t sum : sums) sink = sink + sum;
  return elapsed;
}

}  // namespace

extern "C" {

/// Operations a second of one thread that does nothing but float multiply-adds, with vectors of that target of qkv,
/// over about that many seconds of the thread's CPU time.
[[gnu::visibility("default")]] double qkv_bench_fma_peak(const char* target, double seconds) {
  const Loops& loops = loops_of(target);
  volatile float seed = 1;
  return rate_of(loops.operations(kSteps), seconds, [&] { return loops.multiply_add(kSteps, seed); });
}

/// The same of dot products of pairs of bfloat16; 0 where the CPU has no instruction for them.
[[gnu::visibility("default")]] double qkv_bench_bf16_dot_peak(double seconds) {
  if (!has_bf16_dot()) return 0;
  volatile float seed = 1;
  return rate_of(kDotOperations, seconds, [&] { return bf16_dot_chains(seed); });
}

/// Bytes a second at which so many threads read that memory once: of the thread's CPU time for one, on the wall for more.
[[gnu::visibility("default")]] double qkv_bench_read_rate(const void* data, std::int64_t bytes, int threads) {
  const auto* numbers = static_cast<const std::int32_t*>(data);
  const std::size_t count = static_cast<std::size_t>(bytes) / sizeof(std::int32_t);
  if (threads > 1) return static_cast<double>(bytes) / seconds_of_reading(numbers, count, threads);
  const double begin = thread_seconds();
  volatile std::int32_t sink = widest_loops().read(numbers, count);
  static_cast<void>(sink);
  return static_cast<double>(bytes) / (thread_seconds() - begin);
}

/// Bytes a second, read and written, at which one thread makes other memory of so many bytes, by its CPU time.
[[gnu::visibility("default")]] double qkv_bench_copy_rate(const void* from, void* to, std::int64_t bytes) {
  const std::size_t count = static_cast<std::size_t>(bytes) / sizeof(std::int32_t);
  const double begin = thread_seconds();
  widest_loops().add(static_cast<const std::int32_t*>(from), static_cast<std::int32_t*>(to), count);
  return 2 * static_cast<double>(bytes) / (thread_seconds() - begin);
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

/// Seconds of the thread's CPU time of appending one token to a cache of 8 heads of 128, by so many calls: of float32 or
/// bfloat16, with rotary positions or without, into memory that has not been written to or into a ring of 16 slots.
[[gnu::visibility("default")]] double qkv_bench_append_token(std::int64_t calls, int bfloat16, int rope, int ring) {
  constexpr std::int64_t kRing = 16;
  const qkv::Dtype dtype = bfloat16 != 0 ? qkv::Dtype::kBFloat16 : qkv::Dtype::kFloat32;
  qkv::KVCacheOptions options{.num_kv_heads = 8, .head_dim = 128, .k_dtype = dtype, .v_dtype = dtype};
  options.capacity = ring != 0 ? kRing : calls;
  if (ring != 0) options.window = kRing;
  if (rope != 0) options.rope = qkv::Rope(options.head_dim);
  qkv::KVCache cache(options);
  const qkv::Tensor token({1, options.num_kv_heads, 1, options.head_dim}, dtype);
  const double begin = thread_seconds();
  for (std::int64_t i = 0; i < calls; ++i) cache.append(token, token);
  return (thread_seconds() - begin) / static_cast<double>(calls);
}

/// The target that the copy of qkv in this library has chosen.
[[gnu::visibility("default")]] const char* qkv_bench_target() {
  static const std::string name = qkv::target();
  return name.c_str();
}

}  // extern "C"
#endif  // HWY_ONCE
