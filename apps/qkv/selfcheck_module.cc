#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "random_tensor.h"
#include "selfcheck.h"

namespace qkv::cli {
namespace {

// Multi-head attention as the textbooks have it: d_model 512, 8 heads, on random [2, 32, 512]. The output must have the
// input's shape, be finite, and agree with the same module around the reference.

constexpr std::uint64_t kModuleSeed = 42;
constexpr std::int64_t kBatch = 2;
constexpr std::int64_t kLength = 32;
constexpr std::int64_t kModel = 512;
constexpr std::int64_t kHeads = 8;

/// y = x W^T for x [batch, length, kModel] and W [kModel, kModel].
Tensor project(const Tensor& x, const Tensor& weight) {
  Tensor y(x.shape(), Dtype::kFloat32);
  const std::int64_t rows = x.num_elements() / kModel;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t to = 0; to < kModel; ++to) {
      const float* x_row = x.as<float>() + row * kModel;
      const float* w_row = weight.as<float>() + to * kModel;
      float sum = 0;
      for (std::int64_t from = 0; from < kModel; ++from) sum += x_row[from] * w_row[from];
      y.as<float>()[row * kModel + to] = sum;
    }
  }
  return y;
}

/// [batch, length, kModel] seen as [batch, heads, length, kModel / heads].
template <class View>
View split_heads(const View& x) {
  const Extents shape = {kBatch, kLength, kHeads, kModel / kHeads};
  return View(x.data(), x.dtype(), shape, dense_strides(shape)).permute({0, 2, 1, 3});
}

struct Projections {
  explicit Projections(Random& random) : q(one(random)), k(one(random)), v(one(random)), o(one(random)) {}

  static Tensor one(Random& random) {
    const double limit = 1 / std::sqrt(static_cast<double>(kModel));
    return random.uniform({kModel, kModel}, Dtype::kFloat32, -limit, limit);
  }
  Tensor q, k, v, o;
};

Tensor multi_head_attention(const Tensor& x, const Projections& weights, const AttentionFunction& attention) {
  const Tensor q = project(x, weights.q);
  const Tensor k = project(x, weights.k);
  const Tensor v = project(x, weights.v);
  Tensor heads(x.shape(), Dtype::kFloat32);
  std::fill_n(heads.as<float>(), heads.num_elements(), std::numeric_limits<float>::quiet_NaN());
  attention(split_heads(q.view()), split_heads(k.view()), split_heads(v.view()), split_heads(heads.view()), {}, {});
  return project(heads, weights.o);
}

Measurement measure_module(const AttentionFunction& attention) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
  Random random(kModuleSeed, 0);
  const Tensor x = random.normal({kBatch, kLength, kModel}, Dtype::kFloat32);
  const Projections weights(random);
  const Tensor y = multi_head_attention(x, weights, attention);
  const Tensor expected =
      multi_head_attention(x, weights, [](const auto&... arguments) { reference::attention(arguments...); });
  if (!(y.shape() == x.shape())) return {kInfinity, "shape " + to_string(y.shape())};
  double worst = 0;
  for (std::int64_t i = 0; i < y.num_elements(); ++i) {
    if (!std::isfinite(y.as<float>()[i])) return {kInfinity, "an element is not finite"};
    worst = std::max(worst, std::abs(element(y, i) - element(expected, i)) / kEpsilon);
  }
  return {worst, "shape " + to_string(y.shape()) + ", all finite"};
}

}  // namespace

std::vector<Job> module_jobs(const SelfcheckPlan& plan, const AttentionFunction& attention) {
  std::vector<Job> jobs;
  for (const std::string& target : plan.targets) {
    jobs.push_back({.section = "module",
                    .target = target,
                    .name = "multi-head attention 512 / 8 heads",
                    .bound = kErrorBound,
                    .unit = "eps",
                    .measure = [attention] { return measure_module(attention); }});
  }
  return jobs;
}

}  // namespace qkv::cli
