#ifndef QKV_SRC_BASE_CPU_H_
#define QKV_SRC_BASE_CPU_H_

#include <string>

namespace qkv {

/// The name that the CPU gives itself, e.g. "AMD EPYC 9R14"; "unknown" where it gives none.
std::string cpu_name();

/// Logical CPUs that this process may run on (its affinity mask); at least 1.
int num_usable_cpus() noexcept;

}  // namespace qkv

#endif  // QKV_SRC_BASE_CPU_H_
