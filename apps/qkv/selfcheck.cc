#include "selfcheck.h"

#include <exception>
#include <iterator>
#include <limits>
#include <utility>

#include "qkv/runtime.h"

namespace qkv::cli {

std::vector<Dtype> checked_dtypes(const SelfcheckPlan& plan) {
  if (plan.quick) return {Dtype::kFloat32};
  return {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16};
}

std::vector<Job> plan_jobs(const SelfcheckPlan& plan, const AttentionFunction& attention) {
  std::vector<Job> jobs;
  const auto append = [&jobs](std::vector<Job> more) {
    jobs.insert(jobs.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  };
  append(accuracy_jobs(plan, attention));
  append(bits_jobs(plan, attention));
  append(module_jobs(plan, attention));
  return jobs;
}

Check make_check(const Job& job) {
  Measurement measured;
  try {
    set_target(job.target);
    measured = job.measure();
  } catch (const std::exception& error) {
    measured = {std::numeric_limits<double>::infinity(), error.what()};
  }
  return {.section = job.section,
          .target = job.target,
          .name = job.name,
          .worst = measured.worst,
          .bound = job.bound,
          .unit = job.unit,
          .where = measured.where,
          .passed = measured.worst <= job.bound};
}

}  // namespace qkv::cli
