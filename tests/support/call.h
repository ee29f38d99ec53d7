#ifndef QKV_TESTS_SUPPORT_CALL_H_
#define QKV_TESTS_SUPPORT_CALL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "qkv/attention.h"
#include "qkv/runtime.h"
#include "support/attend.h"
#include "support/guarded.h"
#include "support/random.h"

namespace qkv::support {

/// Forces a target for a scope.
class TargetScope {
 public:
  explicit TargetScope(const std::string& name) : before_(target()) { set_target(name); }
  ~TargetScope() { set_target(before_); }
  TargetScope(const TargetScope&) = delete;
  TargetScope& operator=(const TargetScope&) = delete;

 private:
  std::string before_;
};

/// Forces a number of threads for a scope.
class ThreadScope {
 public:
  explicit ThreadScope(int threads) : before_(num_threads()) { set_num_threads(threads); }
  ~ThreadScope() { set_num_threads(before_); }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int before_;
};

/// Targets with kernels of their own: all but the reference.
inline std::vector<std::string> kernel_targets() {
  std::vector<std::string> names = available_targets();
  std::erase(names, "reference");
  return names;
}

/// The largest Euclidean norm along the last of four axes.
inline double longest_row(const ConstTensorView& tensor) {
  double longest = 0;
  for_each_index({tensor.extent(0), tensor.extent(1), tensor.extent(2)}, [&](const Extents& at) {
    double squares = 0;
    for (std::int64_t d = 0; d < tensor.extent(3); ++d) {
      const double x = read(tensor, {at[0], at[1], at[2], d});
      squares += x * x;
    }
    longest = std::max(longest, std::sqrt(squares));
  });
  return longest;
}

/// Normal numbers with the default scale give logits whose terms add up to at most this, up to 256 dimensions. The
/// tolerances of results.h are meant for them.
inline constexpr double kUsualLogitSize = 32;

/// One call of attention with memory of its own for each operand.
struct Call {
  Dtype dtype = Dtype::kFloat32;
  std::int64_t batch = 1, num_heads = 1, num_kv_heads = 1, q_len = 1, kv_len = 1, head_dim = 1, value_dim = 1;
  std::unique_ptr<Guarded> q, k, v, mask, bias, sinks, slopes, kv_lens, offsets;
  AttentionOptions options = {};  ///< without the operands above, which are added by full_options
  std::vector<std::int64_t> stats_keys;

  AttentionOptions full_options() const {
    AttentionOptions all = options;
    if (mask) all.mask = *mask;
    if (bias) all.bias = *bias;
    if (sinks) all.sinks = *sinks;
    if (slopes) all.alibi_slopes = *slopes;
    if (kv_lens) all.kv_lens = *kv_lens;
    if (offsets) all.query_offset = QueryOffset(ConstTensorView(*offsets));
    return all;
  }

  /// Operands of the call's sizes: normally distributed, of a layout, canaries around.
  void make_operands(Random& random, Layout layout = Layout::kDense) {
    q = filled({batch, num_heads, q_len, head_dim}, layout, random);
    k = filled({batch, num_kv_heads, kv_len, head_dim}, layout, random);
    v = filled({batch, num_kv_heads, kv_len, value_dim}, layout, random);
  }

  std::unique_ptr<Guarded> filled(const Extents& shape, Layout layout, Random& random, double deviation = 1) const {
    return filled_as(dtype, shape, layout, random, deviation);
  }
  static std::unique_ptr<Guarded> filled_as(Dtype dtype, const Extents& shape, Layout layout, Random& random,
                                            double deviation = 1) {
    auto tensor = std::make_unique<Guarded>(shape, dtype, layout);
    random.fill_normal(*tensor, deviation);
    return tensor;
  }

  /// What the terms of a logit can add up to, where the logit itself may be small because they cancel: |scale| |q| |k| of
  /// the longest q and k (Cauchy-Schwarz), and the steepest slope over the whole length.
  double logit_size() const {
    const double factor = options.scale.value_or(1 / std::sqrt(static_cast<double>(head_dim)));
    double steepest = 0;
    if (slopes) {
      for_each_index(slopes->view().shape(),
                     [&](const Extents& at) { steepest = std::max(steepest, std::abs(read(*slopes, at))); });
    }
    return std::abs(factor) * longest_row(*q) * longest_row(*k) + steepest * static_cast<double>(q_len + kv_len);
  }

  std::string describe() const {
    std::string text = "q [" + std::to_string(batch) + "," + std::to_string(num_heads) + "," + std::to_string(q_len) +
                       "," + std::to_string(head_dim) + "] kv [" + std::to_string(num_kv_heads) + "," +
                       std::to_string(kv_len) + "," + std::to_string(value_dim) + "]";
    for (const auto* operand : {&q, &k, &v}) {
      if (*operand) text += " " + std::string(name_of((*operand)->dtype()));
    }
    if (options.causal) text += " causal";
    if (options.window.left) text += " left=" + std::to_string(*options.window.left);
    if (options.window.right) text += " right=" + std::to_string(*options.window.right);
    if (options.scale) text += " scale=" + std::to_string(*options.scale);
    if (options.softcap > 0) text += " softcap=" + std::to_string(options.softcap);
    if (options.query_offset.one() != nullptr) text += " offset=" + std::to_string(*options.query_offset.one());
    for (const auto& [operand, name] : {std::pair{&mask, " mask"},
                                        {&bias, " bias"},
                                        {&sinks, " sinks"},
                                        {&slopes, " alibi"},
                                        {&kv_lens, " kv_lens"},
                                        {&offsets, " offsets"}}) {
      if (*operand) text += name + to_string((*operand)->view().shape());
    }
    return text;
  }
};

/// out alone, on the current target.
inline std::unique_ptr<Guarded> run(const Call& call, Layout layout = Layout::kDense) {
  auto out =
      std::make_unique<Guarded>(Extents{call.batch, call.num_heads, call.q_len, call.value_dim}, call.dtype, layout);
  attention(*call.q, *call.k, *call.v, *out, call.full_options());
  return out;
}

/// Everything that the call can write, its stats_keys included.
inline Results run_all(const Call& call, Wanted wanted = {}, Attention attention = &qkv::attention) {
  wanted.keys = call.stats_keys;
  Results results = attend(attention, *call.q, *call.k, *call.v, call.full_options(), wanted);
  results.spread = std::max(1.0, call.logit_size() / kUsualLogitSize);
  return results;
}

}  // namespace qkv::support

#endif  // QKV_TESTS_SUPPORT_CALL_H_
