#ifndef QKV_TESTS_SUPPORT_BUILT_TARGET_H_
#define QKV_TESTS_SUPPORT_BUILT_TARGET_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/highway_targets.h"
// After highway_targets.h, which says what is built.
#include "hwy/highway.h"
#include "hwy/targets.h"

namespace qkv::support {

/// A suite whose cases run on one of Highway's targets after the other, for functions behind HWY_DYNAMIC_DISPATCH.
class OnBuiltTarget : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { force(GetParam()); }
  void TearDown() override { force(0); }

 private:
  static void force(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

/// Those that this build has and this CPU can run.
inline std::vector<std::int64_t> built_targets() {
  std::vector<std::int64_t> targets;
  const std::int64_t usable = (hwy::SupportedTargets() | HWY_STATIC_TARGET) & HWY_TARGETS;
  for (std::int64_t left = usable; left != 0; left &= left - 1) targets.push_back(left & -left);
  return targets;
}

inline std::string built_target_name(const ::testing::TestParamInfo<std::int64_t>& info) {
  return hwy::TargetName(info.param);
}

}  // namespace qkv::support

#endif  // QKV_TESTS_SUPPORT_BUILT_TARGET_H_
