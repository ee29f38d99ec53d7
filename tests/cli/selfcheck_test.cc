// The self-check must be able to fail: here it is given attention that is broken on purpose.
#include "selfcheck.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "exit_code.h"
#include "qkv/attention.h"
#include "qkv/runtime.h"
#include "selfcheck_cases.h"
#include "selfcheck_report.h"

namespace qkv::cli {
namespace {

/// The arguments of one call of attention.
struct Arguments {
  const ConstTensorView& q;
  const ConstTensorView& k;
  const ConstTensorView& v;
  const TensorView& out;
  const AttentionOptions& options;
  const AttentionOutputs& outputs;
};

/// Attention that does its work, and then something else.
AttentionFunction attention_then(const std::function<void(const Arguments&)>& more) {
  return
      [more](const auto& q, const auto& k, const auto& v, const auto& out, const auto& options, const auto& outputs) {
        attention(q, k, v, out, options, outputs);
        more({q, k, v, out, options, outputs});
      };
}

AttentionFunction unbroken() {
  return attention_then([](const Arguments&) {});
}

/// Changes the first element by an amount that no tolerance forgives.
void spoil(const TensorView& tensor) {
  if (tensor.dtype() == Dtype::kFloat64) {
    *tensor.as<double>() += 0.01;
  } else {
    *tensor.as<float>() += 0.01F;
  }
}

/// Changes the first element as little as is possible.
void nudge(const TensorView& tensor) {
  float& value = *tensor.as<float>();
  value = std::nextafter(value, std::numeric_limits<float>::max());
}

SelfcheckPlan quick_plan() { return {.seed = 11, .targets = {available_targets().front()}, .quick = true}; }

/// Names of the checks of one section that fail.
std::vector<std::string> failures(const AttentionFunction& function, const std::string& section) {
  std::vector<std::string> names;
  for (const Job& job : plan_jobs(quick_plan(), function)) {
    if (job.section != section) continue;
    if (const Check check = make_check(job); !check.passed) names.push_back(check.name);
  }
  return names;
}

Check check_named(const AttentionFunction& function, const std::string& name) {
  for (const Job& job : plan_jobs(quick_plan(), function)) {
    if (job.name == name) return make_check(job);
  }
  ADD_FAILURE() << "no check is called " << name;
  return {};
}

using Names = std::vector<std::string>;

TEST(Selfcheck, PassesWhatIsRight) {
  for (const char* section : {"accuracy", "bits", "module"}) EXPECT_EQ(failures(unbroken(), section), Names());
}

TEST(Selfcheck, EveryCaseNoticesAnErrorInOut) {
  const AttentionFunction broken = attention_then([](const Arguments& a) { spoil(a.out); });
  EXPECT_EQ(failures(broken, "accuracy").size(), accuracy_jobs(quick_plan(), broken).size());
}

TEST(Selfcheck, UnwrittenOutIsNoticed) {
  const AttentionFunction broken = [](const auto&...) {};
  const Check check = check_named(broken, "plain, float32");
  EXPECT_FALSE(check.passed);
  EXPECT_EQ(check.worst, std::numeric_limits<double>::infinity());
  EXPECT_EQ(failures(broken, "module").size(), 1U);
}

TEST(Selfcheck, NanInOneElementIsNoticed) {
  const Check check =
      check_named(attention_then([](const Arguments& a) { *a.out.as<float>() = NAN; }), "plain, float32");
  EXPECT_FALSE(check.passed);
  EXPECT_EQ(check.worst, std::numeric_limits<double>::infinity());
  EXPECT_EQ(check.where, "out");
}

TEST(Selfcheck, OfEqualLogitsAnyKeyIsTheLargest) {
  const AttentionFunction last = attention_then([](const Arguments& a) {
    if (!a.outputs.stats) return;
    const TensorView& keys = *a.outputs.stats->max_key;
    std::fill_n(keys.as<std::int64_t>(), keys.num_elements(), a.k.extent(2) - 1);
  });
  EXPECT_TRUE(check_named(last, "scale 0, float32").passed);
}

TEST(Selfcheck, NanIsNoticedByTheModule) {
  const AttentionFunction broken = attention_then([](const Arguments& a) { *a.out.as<float>() = NAN; });
  const Check check = check_named(broken, "multi-head attention 512 / 8 heads");
  EXPECT_FALSE(check.passed);
  EXPECT_EQ(check.where, "an element is not finite");
}

TEST(Selfcheck, ErrorInOneHeadIsNoticedByTheModule) {
  const AttentionFunction broken = [](const auto& q, const auto& k, const auto& v, const auto& out, const auto& options,
                                      const auto& outputs) {
    attention(q, k, v, out, options, outputs);
    attention(q.slice(1, 7, 8), k.slice(1, 6, 7), v.slice(1, 7, 8), out.slice(1, 7, 8), options);
  };
  EXPECT_EQ(failures(broken, "module").size(), 1U);
}

TEST(Selfcheck, ExceptionIsAFailureThatSaysWhy) {
  const AttentionFunction broken = [](const auto&...) { throw std::runtime_error("no such luck"); };
  const Check check = check_named(broken, "plain, float32");
  EXPECT_FALSE(check.passed);
  EXPECT_EQ(check.where, "no such luck");
}

TEST(Selfcheck, EveryOptionIsNoticedWhenIgnored) {
  struct Ignored {
    const char* check;
    void (*ignore)(AttentionOptions&);
  };
  const std::vector<Ignored> all = {
      {"causal, float32", [](AttentionOptions& o) { o.causal = false; }},
      {"query_offset, float32", [](AttentionOptions& o) { o.query_offset = {}; }},
      {"query_offset per batch, float32", [](AttentionOptions& o) { o.query_offset = {}; }},
      {"window, left, float32", [](AttentionOptions& o) { o.window = {}; }},
      {"window, right, float32", [](AttentionOptions& o) { o.window = {}; }},
      {"scale, negative, float32", [](AttentionOptions& o) { o.scale = {}; }},
      {"scale 0, float32", [](AttentionOptions& o) { o.scale = {}; }},
      {"softcap, float32", [](AttentionOptions& o) { o.softcap = 0; }},
      {"mask [q_len, kv_len], float32", [](AttentionOptions& o) { o.mask = {}; }},
      {"mask of every element, float32", [](AttentionOptions& o) { o.mask = {}; }},
      {"bias [kv_len], float32", [](AttentionOptions& o) { o.bias = {}; }},
      {"sinks [num_heads], float32", [](AttentionOptions& o) { o.sinks = {}; }},
      {"alibi_slopes, float32", [](AttentionOptions& o) { o.alibi_slopes = {}; }},
      {"kv_lens, float32", [](AttentionOptions& o) { o.kv_lens = {}; }},
  };
  for (const Ignored& one : all) {
    SCOPED_TRACE(one.check);
    const auto ignore = one.ignore;
    const AttentionFunction broken = [ignore](const auto& q, const auto& k, const auto& v, const auto& out,
                                              AttentionOptions options, const auto& outputs) {
      ignore(options);
      attention(q, k, v, out, options, outputs);
    };
    EXPECT_FALSE(check_named(broken, one.check).passed);
  }
}

TEST(Selfcheck, EveryOutputIsNoticedWhenWrong) {
  using Find = std::optional<TensorView> (*)(const AttentionOutputs&);
  const std::vector<std::pair<const char*, Find>> all = {
      {"lse", [](const AttentionOutputs& o) { return o.lse; }},
      {"weights", [](const AttentionOutputs& o) { return o.weights ? std::optional(o.weights->out) : std::nullopt; }},
      {"max_raw", [](const AttentionOutputs& o) { return o.stats ? o.stats->max_raw : std::nullopt; }},
      {"max_logit", [](const AttentionOutputs& o) { return o.stats ? o.stats->max_logit : std::nullopt; }},
      {"max_weight", [](const AttentionOutputs& o) { return o.stats ? o.stats->max_weight : std::nullopt; }},
      {"entropy", [](const AttentionOutputs& o) { return o.stats ? o.stats->entropy : std::nullopt; }},
      {"key_weight", [](const AttentionOutputs& o) { return o.stats ? o.stats->key_weight : std::nullopt; }},
  };
  for (const auto& [name, find] : all) {
    SCOPED_TRACE(name);
    const AttentionFunction broken = attention_then([find = find](const Arguments& a) {
      if (const auto tensor = find(a.outputs)) spoil(*tensor);
    });
    const Check check = check_named(broken, "plain, float32");
    EXPECT_FALSE(check.passed);
    EXPECT_EQ(check.where, name);
  }
}

TEST(Selfcheck, BothStagesOfLogitsAreNoticedWhenWrong) {
  for (const LogitsStage stage : {LogitsStage::kScaled, LogitsStage::kMasked}) {
    const AttentionFunction broken = attention_then([stage](const Arguments& a) {
      if (a.outputs.logits && a.outputs.logits->stage == stage) spoil(a.outputs.logits->out);
    });
    const Check check = check_named(broken, "plain, float32");
    EXPECT_FALSE(check.passed);
    EXPECT_EQ(check.where, stage == LogitsStage::kScaled ? "scaled logits" : "masked logits");
  }
}

TEST(Selfcheck, WrongKeyIsNoticed) {
  for (const std::int64_t wrong : {-1, 0, 1'000'000}) {
    const AttentionFunction broken = attention_then([wrong](const Arguments& a) {
      if (!a.outputs.stats) return;
      auto* keys = a.outputs.stats->max_key->as<std::int64_t>();
      std::fill_n(keys, a.outputs.stats->max_key->num_elements(), wrong);
    });
    const Check check = check_named(broken, "plain, float32");
    EXPECT_FALSE(check.passed) << wrong;
    EXPECT_EQ(check.where, "max_key") << wrong;
  }
}

/// Broken only under one condition, and by one bit: no tolerance would see it.
TEST(Selfcheck, EachBitsCheckNoticesItsOwnDependence) {
  struct Dependence {
    const char* check;
    bool (*is_broken)(const Arguments&);
  };
  const std::vector<Dependence> all = {
      {"1 thread = 2 threads, float32", [](const Arguments&) { return num_threads() == 1; }},
      {"queries at once = split into calls, float32", [](const Arguments& a) { return a.q.extent(2) == 48; }},
      {"a batch = one by one, float32", [](const Arguments& a) { return a.q.extent(0) > 1; }},
      {"padding = none, float32", [](const Arguments& a) { return a.options.kv_lens.has_value(); }},
      {"causal = a mask of the same keys, float32", [](const Arguments& a) { return a.options.mask.has_value(); }},
      {"grouped heads = repeated heads, float32", [](const Arguments& a) { return a.k.extent(1) != a.q.extent(1); }},
      {"out alone = with other outputs, float32", [](const Arguments& a) { return a.outputs.logits.has_value(); }},
  };
  for (const Dependence& one : all) {
    const auto is_broken = one.is_broken;
    const AttentionFunction broken = attention_then([is_broken](const Arguments& a) {
      if (is_broken(a)) nudge(a.out);
    });
    const Check check = check_named(broken, one.check);
    EXPECT_FALSE(check.passed) << one.check;
    EXPECT_EQ(check.worst, 1) << one.check;
    EXPECT_TRUE(check_named(broken, "plain, float32").passed) << one.check;
  }
}

TEST(Selfcheck, LeakOfHiddenNanIsNoticed) {
  const AttentionFunction broken = attention_then([](const Arguments& a) {
    const ConstTensorView last = a.v.slice(2, a.v.extent(2) - 1, a.v.extent(2));
    if (a.q.dtype() == Dtype::kFloat32) *a.out.as<float>() += 0 * *last.as<float>();
  });
  EXPECT_EQ(failures(broken, "bits"), Names{"hidden keys hold numbers = NaN, float32"});
}

TEST(Selfcheck, LseIsPartOfTheBits) {
  const AttentionFunction broken = attention_then([](const Arguments& a) {
    if (num_threads() == 1 && a.outputs.lse) nudge(*a.outputs.lse);
  });
  const Check check = check_named(broken, "1 thread = 2 threads, float32");
  EXPECT_FALSE(check.passed);
  EXPECT_EQ(check.where, "lse");
}

TEST(Selfcheck, EveryTargetIsForcedForItsChecks) {
  std::set<std::string> seen;
  const AttentionFunction spy = attention_then([&seen](const Arguments&) { seen.insert(target()); });
  SelfcheckPlan plan = quick_plan();
  plan.targets = available_targets();
  for (const Job& job : plan_jobs(plan, spy)) {
    if (job.name == "one query, one key, float32") make_check(job);
  }
  set_target("");
  EXPECT_EQ(seen, std::set<std::string>(plan.targets.begin(), plan.targets.end()));
}

TEST(Selfcheck, CallsDependOnTheSeedAndTheCaseAlone) {
  const Call a = make_call(3, Dtype::kFloat32, 5);
  const Call b = make_call(3, Dtype::kFloat32, 5);
  const Call c = make_call(3, Dtype::kFloat32, 6);
  EXPECT_EQ(*a.q.as<float>(), *b.q.as<float>());
  EXPECT_NE(*a.q.as<float>(), *c.q.as<float>());
}

TEST(Selfcheck, FullPlanHasBothDtypesAndTheLongCases) {
  SelfcheckPlan plan = quick_plan();
  const std::size_t quick = plan_jobs(plan, unbroken()).size();
  plan.quick = false;
  const std::vector<Job> jobs = plan_jobs(plan, unbroken());
  const auto has = [&jobs](const std::string& name) {
    return std::any_of(jobs.begin(), jobs.end(), [&](const Job& job) { return job.name == name; });
  };
  EXPECT_GT(jobs.size(), 2 * quick - 2);
  EXPECT_TRUE(has("5000 keys, float32"));
  EXPECT_TRUE(has("plain, float64"));
  EXPECT_TRUE(has("plain, float16"));
  EXPECT_TRUE(has("plain, bfloat16, beside out"));
}

/// What a report prints, and its exit status.
struct Report {
  int status = -1;
  std::string text;
};

Report report(const AttentionFunction& function, bool json) {
  std::FILE* file = std::tmpfile();
  Output out(file);
  const int status = report_selfcheck(quick_plan(), function, {.json = json, .out = out, .err = out});
  std::string text(static_cast<std::size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return {status, text};
}

TEST(SelfcheckHalf, IsHeldToItsOwnEpsilon) {
  SelfcheckPlan plan = quick_plan();
  plan.quick = false;
  const auto passes = [&](const AttentionFunction& function, const std::string& name) {
    for (const Job& job : plan_jobs(plan, function)) {
      if (job.section == "accuracy" && job.name == name) return make_check(job).passed;
    }
    ADD_FAILURE() << "no check is called " << name;
    return false;
  };
  // Four steps of 16 bits, two to four epsilons, in out; in what is float32 a change that would vanish in 16 bits.
  const AttentionFunction coarse = attention_then([](const Arguments& a) {
    if (size_of(a.out.dtype()) == 2)
      *a.out.as<std::uint16_t>() = static_cast<std::uint16_t>(*a.out.as<std::uint16_t>() + 4);
  });
  const AttentionFunction careless = attention_then([](const Arguments& a) {
    if (a.outputs.lse && size_of(a.out.dtype()) == 2) *a.outputs.lse->as<float>() *= 1 + 0x1p-12F;
  });
  for (const std::string dtype : {"float16", "bfloat16"}) {
    EXPECT_TRUE(passes(unbroken(), "plain, " + dtype));
    EXPECT_TRUE(passes(unbroken(), "everything at once, " + dtype));
    EXPECT_TRUE(passes(unbroken(), "everything at once, " + dtype + ", beside out"));
    EXPECT_FALSE(passes(coarse, "one query, one key, " + dtype));
    EXPECT_TRUE(passes(coarse, "one query, one key, " + dtype + ", beside out"));
    EXPECT_FALSE(passes(careless, "plain, " + dtype + ", beside out"));
  }
}

TEST(SelfcheckReport, FailureIsExitStatus1AndNamed) {
  const Report broken = report([](const auto&...) { throw std::runtime_error("no such luck"); }, false);
  EXPECT_EQ(broken.status, kExitFailure);
  EXPECT_NE(broken.text.find("FAILED  no such luck"), std::string::npos);
  EXPECT_NE(broken.text.find("See it again: qkv selfcheck --seed 11 --quick"), std::string::npos);
  EXPECT_EQ(broken.text.find("passed"), std::string::npos);
}

TEST(SelfcheckReport, TheTargetThatWasForcedIsForcedAgain) {
  set_target("reference");  // the plan has another
  report(unbroken(), false);
  const std::string after = target();
  set_target("");
  EXPECT_EQ(after, "reference");
}

TEST(SelfcheckReport, SuccessIsExitStatus0AndALineForEachCheck) {
  const Report right = report(unbroken(), false);
  EXPECT_EQ(right.status, kExitOk);
  const std::size_t count = plan_jobs(quick_plan(), unbroken()).size();
  EXPECT_NE(right.text.find("All " + std::to_string(count) + " checks passed"), std::string::npos);
  EXPECT_GE(static_cast<std::size_t>(std::count(right.text.begin(), right.text.end(), '\n')), count);
  EXPECT_EQ(right.text.find("FAILED"), std::string::npos);
  EXPECT_EQ(right.text.find('\x1b'), std::string::npos);
}

TEST(SelfcheckReport, JsonSaysTheSame) {
  const AttentionFunction broken = attention_then([](const Arguments& a) {
    if (a.options.softcap > 0) *a.out.as<float>() = NAN;
  });
  const Report seen = report(broken, true);
  EXPECT_EQ(seen.status, kExitFailure);
  const auto document = nlohmann::json::parse(seen.text);
  EXPECT_FALSE(document["passed"].get<bool>());
  EXPECT_EQ(document["num_failed"], 2);  // "softcap" and "everything at once"
  EXPECT_EQ(document["seed"], 11);
  EXPECT_EQ(document["checks"].size(), plan_jobs(quick_plan(), broken).size());
  for (const auto& check : document["checks"]) {
    const bool uses_softcap = check["name"] == "softcap, float32" || check["name"] == "everything at once, float32";
    EXPECT_EQ(check["passed"].get<bool>(), !uses_softcap) << check;
    EXPECT_EQ(check["worst"].is_null(), uses_softcap) << check;
  }
  EXPECT_TRUE(nlohmann::json::parse(report(unbroken(), true).text)["passed"].get<bool>());
}

}  // namespace
}  // namespace qkv::cli
