// Rule 10: memory grows with q_len + kv_len, whatever the options. Every allocation of the program is counted.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "base/scratch.h"
#include "support/call.h"
#include "support/gradients.h"

namespace {

std::atomic<std::int64_t> g_live = 0;
std::atomic<std::int64_t> g_most = 0;

void* counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const auto size = static_cast<std::int64_t>(malloc_usable_size(memory));
  const std::int64_t live = g_live.fetch_add(size) + size;
  for (std::int64_t most = g_most; live > most && !g_most.compare_exchange_weak(most, live);) {
  }
  return memory;
}

void discounted(void* memory) noexcept {
  if (memory != nullptr) g_live -= static_cast<std::int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) { return counted(std::malloc(size == 0 ? 1 : size)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto step = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(step, (size + step - 1) / step * step));
}
void operator delete(void* memory) noexcept { discounted(memory); }
void operator delete(void* memory, std::size_t) noexcept { discounted(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { discounted(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { discounted(memory); }

namespace qkv::support {
namespace {

constexpr std::int64_t kLen = 8192;
constexpr std::int64_t kDim = 16;
constexpr std::int64_t kPerThread = std::int64_t{2} << 20;
/// Lists of blocks and tasks, a thread's stack of the pool, one slot a word of keys.
constexpr std::int64_t kSmallChange = std::int64_t{256} << 10;

/// One head of kLen rows and keys: q, k, v and options that are given by name.
struct LongCall {
  LongCall(Dtype dtype, Layout layout) {
    call.dtype = dtype;
    call.q_len = call.kv_len = kLen;
    call.head_dim = call.value_dim = kDim;
    Random random(5);
    call.make_operands(random, layout);
  }
  Guarded& bias() {
    if (!call.bias) {
      Random random(6);
      call.bias = call.filled({1, kLen}, Layout::kDense, random);
    }
    return *call.bias;
  }
  Guarded& mask() {
    if (!call.mask) {
      Random random(7);
      call.mask = std::make_unique<Guarded>(Extents{1, kLen}, Dtype::kBool);
      random.fill_bool(*call.mask, 0.5);
    }
    return *call.mask;
  }
  Call call;
};

/// Bytes beyond those alive before that a call had at most.
std::int64_t bytes_of(const LongCall& options, Guarded& out, const AttentionOutputs& outputs) {
  const Call& call = options.call;
  const std::int64_t before = g_live;
  g_most = before;
  // A thread of its own, so that scratch from earlier calls does not hide what this one needs.
  std::thread([&] {
    attention(*call.q, *call.k, *call.v, out, call.full_options(), outputs);
    EXPECT_LE(static_cast<std::int64_t>(scratch_bytes()), kPerThread);
  }).join();
  return g_most - before;
}

class Memory : public ::testing::TestWithParam<int> {
 protected:
  void check(LongCall& options, const std::string& what, bool copies_values = false) {
    SCOPED_TRACE(what);
    const ThreadScope threads(GetParam());
    const bool f32 = options.call.dtype == Dtype::kFloat32;
    const std::int64_t packed = f32 ? (copies_values ? 2 : 1) * kLen * kDim * std::int64_t{sizeof(float)} : 0;
    Guarded out({1, 1, kLen, kDim}, options.call.dtype);
    const Call& call = options.call;
    const Results results(*call.q, *call.k, *call.v, {.matrices = false});
    Guarded weights({1, 1, 2, kLen}, options.call.dtype);
    AttentionOutputs outputs = results.outputs();
    outputs.weights = Weights{.out = weights, .rows = std::vector<std::int64_t>{kLen - 1, 3}};
    EXPECT_LE(bytes_of(options, out, {}), packed + GetParam() * kPerThread + kSmallChange);
    EXPECT_LE(bytes_of(options, out, outputs), packed + GetParam() * kPerThread + kSmallChange) << "with outputs";
  }
};

TEST_P(Memory, TheCounterCounts) {
  const std::int64_t before = g_live;
  g_most = before;
  {
    const std::vector<char> memory(1 << 20);
  }
  EXPECT_GE(g_most - before, 1 << 20);
  EXPECT_EQ(g_live, before);
}

TEST_P(Memory, OfAPlainCall) {
  LongCall plain(Dtype::kFloat32, Layout::kDense);
  check(plain, "plain");
  plain.call.options.causal = true;
  check(plain, "causal");
}

TEST_P(Memory, OfStridedOperands) {
  LongCall strided(Dtype::kFloat32, Layout::kStrided);
  strided.call.options.causal = true;
  check(strided, "strided", true);
}

TEST_P(Memory, OfEachOption) {
  const auto with = [&](const std::string& what, auto change) {
    LongCall options(Dtype::kFloat32, Layout::kDense);
    options.call.options.causal = true;
    change(options);
    check(options, what);
  };
  with("window", [](LongCall& o) { o.call.options.window = {.left = 1000, .right = 10}; });
  with("softcap", [](LongCall& o) { o.call.options.softcap = 5; });
  with("mask", [](LongCall& o) { o.mask(); });
  with("bias", [](LongCall& o) { o.bias(); });
  with("offset", [](LongCall& o) { o.call.options.query_offset = 100; });
  with("alibi", [](LongCall& o) {
    o.call.slopes = std::make_unique<Guarded>(Extents{1}, Dtype::kFloat32);
    write(*o.call.slopes, {0}, 0.01);
  });
  with("sinks", [](LongCall& o) {
    o.call.sinks = std::make_unique<Guarded>(Extents{1}, Dtype::kFloat32);
    write(*o.call.sinks, {0}, 1);
  });
  with("kv_lens", [](LongCall& o) {
    o.call.kv_lens = std::make_unique<Guarded>(Extents{1}, Dtype::kInt64);
    write(*o.call.kv_lens, {0}, 5000);
  });
}

TEST_P(Memory, OfRowsThatLeaveF32) {
  LongCall options(Dtype::kFloat32, Layout::kDense);
  options.call.options.window = {.left = 100, .right = 0};
  options.call.options.scale = 1e-300;
  check(options, "scale beyond f32");
  options.call.options.scale = 1e30;
  check(options, "logits beyond the plain exponent");
}

TEST_P(Memory, OfF64) {
  LongCall options(Dtype::kFloat64, Layout::kDense);
  options.call.options.window = {.left = 100, .right = 0};
  options.bias();
  check(options, "f64");
}

/// Bytes that the gradients of a call need beyond themselves.
std::int64_t bytes_back(const BackwardCall& call) {
  const Saved saved(call.call);
  const Gradients gradients(call);
  const AttentionGradients views = gradients.views(call);
  const AttentionOptions options = call.call.full_options();
  const std::int64_t before = g_live;
  g_most = before;
  std::thread([&] {
    attention_backward(call.inputs(), saved.views(), views, options);
    EXPECT_LE(static_cast<std::int64_t>(scratch_bytes()), kPerThread);
  }).join();
  return g_most - before;
}

TEST_P(Memory, OfTheWayBack) {
  const ThreadScope threads(GetParam());
  const auto check_back = [&](const std::string& what, Dtype dtype, bool in_place, auto change) {
    SCOPED_TRACE(what);
    BackwardCall back;
    {
      LongCall options(dtype, Layout::kDense);
      options.call.options.causal = true;
      change(options);
      back.call = std::move(options.call);
    }
    Random random(8);
    back.make_upstream(random, Layout::kDense, what == "lse and entropy", what == "lse and entropy");
    // A few numbers a row, and the sums of a gradient that cannot be formed in its place.
    const std::int64_t sums = in_place ? 0 : kLen * kDim * std::int64_t{sizeof(float)};
    const std::int64_t rows = 8 * kLen * std::int64_t{sizeof(double)};
    EXPECT_LE(bytes_back(back), sums + rows + GetParam() * kPerThread + kSmallChange);
  };
  check_back("plain", Dtype::kFloat32, true, [](LongCall&) {});
  check_back("half", Dtype::kBFloat16, false, [](LongCall&) {});
  check_back("softcap", Dtype::kFloat32, true, [](LongCall& o) { o.call.options.softcap = 5; });
  check_back("a bias that repeats", Dtype::kFloat32, true, [](LongCall& o) { o.bias(); });
  check_back("mask", Dtype::kFloat32, true, [](LongCall& o) { o.mask(); });
  check_back("lse and entropy", Dtype::kFloat32, true, [](LongCall&) {});
}

INSTANTIATE_TEST_SUITE_P(Threads, Memory, ::testing::Values(1, 2),
                         [](const auto& test) { return std::to_string(test.param); });

}  // namespace
}  // namespace qkv::support
