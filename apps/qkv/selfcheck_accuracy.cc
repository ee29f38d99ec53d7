#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "selfcheck.h"
#include "selfcheck_cases.h"

namespace qkv::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kSmallestWeight = 1e-6;

/// out, in the dtype of the operands, and every other output of one call.
struct Results {
  Results(const Sizes& s, Dtype dtype)
      : out({s.batch, s.num_heads, s.q_len, s.value_dim}, dtype),
        weights({s.batch, s.num_heads, s.q_len, s.kv_len}, stats_dtype(dtype)),
        raw_logits(weights.shape(), weights.dtype()),
        logits(weights.shape(), weights.dtype()),
        lse({s.batch, s.num_heads, s.q_len}, weights.dtype()),
        max_raw(lse.shape(), weights.dtype()),
        max_logit(lse.shape(), weights.dtype()),
        max_weight(lse.shape(), weights.dtype()),
        entropy(lse.shape(), weights.dtype()),
        key_weight(lse.shape(), weights.dtype()),
        max_key(lse.shape(), Dtype::kInt64) {
    // What is not written stays NaN, which no check forgives.
    for (Tensor* tensor : {&out, &weights, &raw_logits, &logits, &lse, &max_raw, &max_logit, &max_weight, &entropy,
                           &key_weight, &max_key}) {
      const auto bytes = static_cast<std::size_t>(tensor->num_elements()) * size_of(tensor->dtype());
      std::memset(tensor->view().data(), 0xff, bytes);
    }
  }

  Tensor out, weights, raw_logits, logits, lse, max_raw, max_logit, max_weight, entropy, key_weight, max_key;
};

/// Asks for everything; the logits of two stages need two calls.
Results run(const Call& call, const AttentionFunction& attention) {
  Results r(call.sizes, call.dtype);
  AttentionOutputs outputs = {.lse = r.lse,
                              .weights = Weights{.out = r.weights},
                              .logits = Logits{.out = r.logits, .stage = LogitsStage::kMasked},
                              .stats = Stats{.max_raw = r.max_raw,
                                             .max_logit = r.max_logit,
                                             .max_key = r.max_key,
                                             .max_weight = r.max_weight,
                                             .entropy = r.entropy,
                                             .key_weight = r.key_weight,
                                             .keys = {call.sizes.kv_len / 2}}};
  attention(call.q, call.k, call.v, r.out, call.options, outputs);
  outputs = {.logits = Logits{.out = r.raw_logits, .stage = LogitsStage::kScaled}};
  Tensor unused(r.out.shape(), call.dtype);
  attention(call.q, call.k, call.v, unused, call.options, outputs);
  return r;
}

/// What the reference makes of the same numbers in double precision, and the sum of weights times |v|.
struct Truth {
  Results results;
  Tensor out_size;
};

Truth truth_of(const Call& call) {
  Call wide = widened(call);
  Results results =
      run(wide, [](const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v, const TensorView& out,
                   const AttentionOptions& options,
                   const AttentionOutputs& outputs) { reference::attention(q, k, v, out, options, outputs); });
  Tensor absolute_v = to_float64(wide.v);
  for (std::int64_t i = 0; i < absolute_v.num_elements(); ++i) {
    absolute_v.as<double>()[i] = std::abs(absolute_v.as<double>()[i]);
  }
  Tensor out_size(results.out.shape(), Dtype::kFloat64);
  reference::attention(wide.q, wide.k, absolute_v, out_size, wide.options);
  return {std::move(results), std::move(out_size)};
}

double epsilon_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64:
      return std::numeric_limits<double>::epsilon();
    case Dtype::kFloat16:
      return 0x1p-10;
    case Dtype::kBFloat16:
      return 0x1p-7;
    default:
      return static_cast<double>(std::numeric_limits<float>::epsilon());
  }
}

/// The largest error over several outputs, in multiples of epsilon, and which output it is in.
class Worst {
 public:
  explicit Worst(Dtype dtype) : epsilon_(epsilon_of(dtype)) {}

  void add(double computed, double exact, double size, const char* output) {
    double error = 0;
    if (computed != exact) error = std::abs(computed - exact) / (epsilon_ * size);
    if (std::isnan(error)) error = kInfinity;
    if (error > measurement_.worst || measurement_.where.empty()) measurement_ = {error, output};
  }

  const Measurement& measurement() const { return measurement_; }

 private:
  double epsilon_;
  Measurement measurement_;
};

double magnitude(double exact) { return std::isfinite(exact) ? std::max(1.0, std::abs(exact)) : 1.0; }
double weight_size(double exact) { return std::max(kSmallestWeight, exact); }

using SizeOf = double (*)(double exact);

void compare(const Tensor& computed, const Tensor& exact, SizeOf size_of, const char* output, Worst& worst) {
  for (std::int64_t i = 0; i < exact.num_elements(); ++i) {
    worst.add(element(computed, i), element(exact, i), size_of(element(exact, i)), output);
  }
}

/// Below it numbers of a dtype lie no closer: only float16 ends early enough to matter.
double smallest_normal(Dtype dtype) { return dtype == Dtype::kFloat16 ? 0x1p-14 : 0.0; }

void compare_out(const Tensor& computed, const Truth& truth, Worst& worst) {
  for (std::int64_t i = 0; i < computed.num_elements(); ++i) {
    const double size = std::max(element(truth.out_size, i), smallest_normal(computed.dtype()));
    worst.add(element(computed, i), element(truth.results.out, i), size, "out");
  }
}

/// Rounding may swap two keys whose logits are almost equal: what counts is the exact logit of the key that was chosen.
void compare_max_key(const Tensor& computed, const Results& exact, std::int64_t kv_len, Worst& worst) {
  for (std::int64_t row = 0; row < computed.num_elements(); ++row) {
    const std::int64_t key = computed.as<std::int64_t>()[row];
    const double largest = element(exact.max_logit, row);
    const bool in_range = key >= 0 && key < kv_len;
    if (exact.max_key.as<std::int64_t>()[row] < 0 || !in_range) {
      worst.add(key == exact.max_key.as<std::int64_t>()[row] ? 0 : kInfinity, 0, 1, "max_key");
    } else {
      worst.add(element(exact.logits, row * kv_len + key), largest, magnitude(largest), "max_key");
    }
  }
}

/// Every case's truth, worked out once for all targets.
class Truths {
 public:
  explicit Truths(std::uint64_t seed) : seed_(seed) {}

  std::uint64_t seed() const { return seed_; }

  const Truth& of(std::size_t index, Dtype dtype) {
    const auto key = std::pair(index, dtype);
    auto found = known_.find(key);
    if (found == known_.end()) found = known_.emplace(key, truth_of(make_call(index, dtype, seed_))).first;
    return found->second;
  }

 private:
  std::uint64_t seed_;
  std::map<std::pair<std::size_t, Dtype>, Truth> known_;
};

/// What the weights have met V for, which with 16 bits has their epsilon: out, and the sum of weights as they did.
void compare_values(const Results& computed, const Truth& truth, Worst& worst) {
  compare_out(computed.out, truth, worst);
  compare(computed.key_weight, truth.results.key_weight, weight_size, "key_weight", worst);
}

void compare_softmax(const Results& computed, const Results& exact, std::int64_t kv_len, Worst& worst) {
  compare(computed.lse, exact.lse, magnitude, "lse", worst);
  compare(computed.weights, exact.weights, weight_size, "weights", worst);
  compare(computed.raw_logits, exact.raw_logits, magnitude, "scaled logits", worst);
  compare(computed.logits, exact.logits, magnitude, "masked logits", worst);
  compare(computed.max_raw, exact.max_raw, magnitude, "max_raw", worst);
  compare(computed.max_logit, exact.max_logit, magnitude, "max_logit", worst);
  compare(computed.max_weight, exact.max_weight, weight_size, "max_weight", worst);
  compare(computed.entropy, exact.entropy, magnitude, "entropy", worst);
  compare_max_key(computed.max_key, exact, kv_len, worst);
}

/// With 16 bits, what is stored in them and what stays float32 are two checks, each by its own epsilon.
enum class Part { kAll, kValues, kSoftmax };

struct AccuracyCase {
  std::size_t index = 0;
  Dtype dtype = Dtype::kFloat32;
  Part part = Part::kAll;

  std::string name() const {
    std::string name = all_cases()[index].name + ", " + std::string(name_of(dtype));
    if (part == Part::kSoftmax) name += ", beside out";
    return name;
  }
};

Measurement measure_accuracy(const AccuracyCase& one, Truths& truths, const AttentionFunction& attention) {
  const Call call = make_call(one.index, one.dtype, truths.seed());
  const Results computed = run(call, attention);
  const Truth& truth = truths.of(one.index, one.dtype);
  Worst worst(one.part == Part::kSoftmax ? stats_dtype(one.dtype) : one.dtype);
  if (one.part != Part::kSoftmax) compare_values(computed, truth, worst);
  if (one.part != Part::kValues) compare_softmax(computed, truth.results, call.sizes.kv_len, worst);
  return worst.measurement();
}

}  // namespace

std::vector<Job> accuracy_jobs(const SelfcheckPlan& plan, const AttentionFunction& attention) {
  std::vector<Job> jobs;
  const auto truths = std::make_shared<Truths>(plan.seed);
  const auto add = [&](const std::string& target, const AccuracyCase& one) {
    jobs.push_back({.section = "accuracy",
                    .target = target,
                    .name = one.name(),
                    .bound = one.part == Part::kValues ? kHalfErrorBound : kErrorBound,
                    .unit = "eps",
                    .measure = [one, truths, attention] { return measure_accuracy(one, *truths, attention); }});
  };
  for (const std::string& target : plan.targets) {
    for (std::size_t index = 0; index < all_cases().size(); ++index) {
      if (plan.quick && all_cases()[index].is_long) continue;
      for (const Dtype dtype : checked_dtypes(plan)) {
        if (size_of(dtype) > 2) {
          add(target, {index, dtype, Part::kAll});
          continue;
        }
        // What is long takes the reference seconds, and 16 bits meet nothing there that float32 does not.
        if (all_cases()[index].is_long) continue;
        add(target, {index, dtype, Part::kValues});
        add(target, {index, dtype, Part::kSoftmax});
      }
    }
  }
  return jobs;
}

}  // namespace qkv::cli
