#include "selfcheck_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "exit_code.h"
#include "qkv/runtime.h"

namespace qkv::cli {
namespace {

/// Puts the target back, whatever happens.
class KeepTarget {
 public:
  KeepTarget() : name_(target()) {}
  ~KeepTarget() { set_target(name_); }
  KeepTarget(const KeepTarget&) = delete;
  KeepTarget& operator=(const KeepTarget&) = delete;

 private:
  std::string name_;
};

struct Result {
  std::vector<Check> failed;
  std::vector<Check> checks;
  double seconds = 0;
};

/// Makes all checks; `made` sees each one.
Result make_checks(const std::vector<Job>& jobs, const std::function<void(const Check&, std::size_t number)>& made) {
  const auto start = std::chrono::steady_clock::now();
  const KeepTarget keep;
  Result result;
  for (const Job& job : jobs) {
    result.checks.push_back(make_check(job));
    if (!result.checks.back().passed) result.failed.push_back(result.checks.back());
    made(result.checks.back(), result.checks.size());
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

std::string line_of(const Check& check, const Output& out) {
  const std::string seen = check.bound == 0 ? fmt::format("{:8.0f} {}", check.worst, check.unit)
                                            : fmt::format("{:8.1f} of {:g} {}", check.worst, check.bound, check.unit);
  const std::string verdict = check.passed ? out.paint(Color::kGreen, "ok") : out.paint(Color::kRed, "FAILED");
  const std::string where = check.where.empty() ? "" : "  " + out.paint(Color::kDim, check.where);
  return fmt::format("{:<9} {:<46} {:<19} {}{}\n", check.target, check.name, seen, verdict, where);
}

const char* heading_of(const std::string& section) {
  if (section == "accuracy")
    return "Accuracy: worst error against the reference, in epsilons times the size of the result";
  if (section == "bits") return "Same bits: how many elements of out and lse differ between two ways to compute them";
  return "Module: textbook multi-head attention on random [2, 32, 512]";
}

int report_text(const SelfcheckPlan& plan, const std::vector<Job>& jobs, Output& out) {
  out.write(fmt::format("qkv {} on {}; targets: {}; seed {}\n", version(), config().cpu, fmt::join(plan.targets, ", "),
                        plan.seed));
  std::string section;
  const Result result = make_checks(jobs, [&](const Check& check, std::size_t) {
    if (check.section != section) out.write(fmt::format("\n{}\n", heading_of(check.section)));
    section = check.section;
    out.write(line_of(check, out));
  });
  if (result.failed.empty()) {
    out.write(fmt::format("\n{} in {:.1f} s\n",
                          out.paint(Color::kGreen, fmt::format("All {} checks passed", result.checks.size())),
                          result.seconds));
    return kExitOk;
  }
  const std::string summary = fmt::format("{} of {} checks FAILED", result.failed.size(), result.checks.size());
  out.write(fmt::format("\n{} in {:.1f} s\n", out.paint(Color::kRed, summary), result.seconds));
  for (const Check& check : result.failed) out.write(line_of(check, out));
  out.write(fmt::format("See it again: qkv selfcheck --seed {}{}\n", plan.seed, plan.quick ? " --quick" : ""));
  return kExitFailure;
}

nlohmann::ordered_json as_json(const Check& check) {
  // JSON has no infinity: null stands for it, and `where` says why.
  const nlohmann::ordered_json worst = std::isfinite(check.worst) ? nlohmann::ordered_json(check.worst) : nullptr;
  return {{"section", check.section}, {"target", check.target}, {"name", check.name},   {"worst", worst},
          {"bound", check.bound},     {"unit", check.unit},     {"where", check.where}, {"passed", check.passed}};
}

int report_json(const SelfcheckPlan& plan, const std::vector<Job>& jobs, const Context& context) {
  const Result result = make_checks(jobs, [&](const Check&, std::size_t number) {
    if (context.err.is_terminal()) context.err.write(fmt::format("\rcheck {} of {}", number, jobs.size()));
  });
  if (context.err.is_terminal()) context.err.write("\n");
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  for (const Check& check : result.checks) checks.push_back(as_json(check));
  const nlohmann::ordered_json document = {
      {"version", version()},
      {"seed", plan.seed},
      {"quick", plan.quick},
      {"targets", plan.targets},
      {"passed", result.failed.empty()},
      {"num_failed", result.failed.size()},
      {"seconds", result.seconds},
      {"checks", checks},
  };
  context.out.write(document.dump(2) + "\n");
  return result.failed.empty() ? kExitOk : kExitFailure;
}

}  // namespace

int report_selfcheck(const SelfcheckPlan& plan, const AttentionFunction& attention, const Context& context) {
  const std::vector<Job> jobs = plan_jobs(plan, attention);
  return context.json ? report_json(plan, jobs, context) : report_text(plan, jobs, context.out);
}

}  // namespace qkv::cli
