// Attention forward: time and GFLOP/s on visible work (4 * batch * heads * visible pairs * dim operations), one thread.
// Benchmark's own flags apply: --benchmark_filter=causal, --benchmark_out=FILE --benchmark_out_format=json.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "qkv/attention.h"
#include "qkv/runtime.h"

namespace {

struct Shape {
  std::int64_t batch;
  std::int64_t num_heads;
  std::int64_t length;
  std::int64_t dim;
};

constexpr Shape kShapes[] = {{1, 8, 512, 64},  {1, 8, 2048, 64}, {1, 8, 2048, 128}, {8, 12, 128, 64},
                             {32, 8, 128, 32}, {64, 12, 50, 64}, {1, 1, 1, 8}};

std::vector<float> normal_values(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

void attention(benchmark::State& state, const Shape& shape, bool causal) {
  const qkv::Extents extents{shape.batch, shape.num_heads, shape.length, shape.dim};
  const auto count = static_cast<std::size_t>(shape.batch * shape.num_heads * shape.length * shape.dim);
  const std::vector<float> q = normal_values(count, 1);
  const std::vector<float> k = normal_values(count, 2);
  const std::vector<float> v = normal_values(count, 3);
  std::vector<float> out(count);
  qkv::AttentionOptions options;
  options.causal = causal;
  for (auto _ : state) {
    qkv::attention(qkv::view(q.data(), extents), qkv::view(k.data(), extents), qkv::view(v.data(), extents),
                   qkv::view(out.data(), extents), options);
    benchmark::ClobberMemory();
  }
  const double pairs = causal ? 0.5 * static_cast<double>(shape.length) * static_cast<double>(shape.length + 1)
                              : static_cast<double>(shape.length) * static_cast<double>(shape.length);
  const double operations = 4.0 * static_cast<double>(shape.batch * shape.num_heads * shape.dim) * pairs;
  state.counters["FLOP/s"] =
      benchmark::Counter(operations, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

std::string name_of(const Shape& shape, bool causal) {
  std::string name = causal ? "causal" : "full";
  for (const std::int64_t extent : {shape.batch, shape.num_heads, shape.length, shape.dim}) {
    name += "/" + std::to_string(extent);
  }
  return name;
}

}  // namespace

int main(int argc, char** argv) {
  // One thread: its CPU time is what is reported, so that a busy machine does not show.
  qkv::set_num_threads(1);
  for (const Shape& shape : kShapes) {
    for (const bool causal : {false, true}) {
      benchmark::RegisterBenchmark(name_of(shape, causal).c_str(), [&shape, causal](benchmark::State& state) {
        attention(state, shape, causal);
      })->Unit(benchmark::kMillisecond);
    }
  }
  benchmark::AddCustomContext("qkv", std::string(qkv::version()) + ", target " + qkv::target());
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
