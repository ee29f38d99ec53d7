#ifndef QKV_APPS_SELFCHECK_H_
#define QKV_APPS_SELFCHECK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "qkv/attention.h"

namespace qkv::cli {

/// What is checked: qkv::attention, or something broken that a test passes in.
using AttentionFunction =
    std::function<void(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                       const TensorView& out, const AttentionOptions& options, const AttentionOutputs& outputs)>;

struct SelfcheckPlan {
  std::uint64_t seed = 42;
  std::vector<std::string> targets;  ///< as in available_targets()
  bool quick = false;                ///< float32 alone, without the long sequences
};

/// What one check saw.
struct Measurement {
  double worst = 0;   ///< compared with the bound; infinite where there is no sensible number
  std::string where;  ///< which output is the worst, or what went wrong
};

/// One check to be made.
struct Job {
  std::string section;  ///< "accuracy", "bits" or "module"
  std::string target;
  std::string name;
  double bound = 0;  ///< the check passes if worst <= bound
  std::string unit;  ///< of both
  std::function<Measurement()> measure;
};

/// One check that has been made.
struct Check {
  std::string section;
  std::string target;
  std::string name;
  double worst = 0;
  double bound = 0;
  std::string unit;
  std::string where;
  bool passed = false;
};

/// float32, and unless the plan is quick float64, float16 and bfloat16.
std::vector<Dtype> checked_dtypes(const SelfcheckPlan& plan);

/// Everything that a plan asks for, section by section, target by target.
std::vector<Job> plan_jobs(const SelfcheckPlan& plan, const AttentionFunction& attention);

/// Makes one check with its target forced; the target is the caller's to restore. Does not throw what the check throws.
Check make_check(const Job& job);

// The jobs of each section.
std::vector<Job> accuracy_jobs(const SelfcheckPlan& plan, const AttentionFunction& attention);
std::vector<Job> bits_jobs(const SelfcheckPlan& plan, const AttentionFunction& attention);
std::vector<Job> module_jobs(const SelfcheckPlan& plan, const AttentionFunction& attention);

/// The error of a computation is |computed - exact| / (epsilon * size), where exact is the
/// reference in double precision and size is
///   out                        the sum of weights times |v| (the size of what is added up); in float16, 2^-14 where
///                              that is larger
///   lse, logits, entropy       1, or the number's own magnitude where that is larger
///   weights                    the weight, or 1e-6 where that is larger
/// A check passes at an error of at most this coefficient. What is seen is around a quarter of it.
inline constexpr double kErrorBound = 64;

/// The same of out (and of the sum of chosen weights) in float16 and bfloat16, in their epsilon: half of it for the
/// rounding at the end, and where all of q, k and v are bfloat16 as much again for the rounding of the weights.
inline constexpr double kHalfErrorBound = 1.5;

}  // namespace qkv::cli

#endif  // QKV_APPS_SELFCHECK_H_
