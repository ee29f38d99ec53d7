#ifndef QKV_APPS_SELFCHECK_REPORT_H_
#define QKV_APPS_SELFCHECK_REPORT_H_

#include "selfcheck.h"
#include "verb.h"

namespace qkv::cli {

/// Makes every check of the plan and prints it: a line each as it is made, or one JSON document at the end.
/// Returns kExitOk, or kExitFailure if a check failed. The target in use is the same afterwards.
int report_selfcheck(const SelfcheckPlan& plan, const AttentionFunction& attention, const Context& context);

}  // namespace qkv::cli

#endif  // QKV_APPS_SELFCHECK_REPORT_H_
