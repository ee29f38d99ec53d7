#ifndef QKV_PYTHON_BINDINGS_ATTENTION_ARGUMENTS_H_
#define QKV_PYTHON_BINDINGS_ATTENTION_ARGUMENTS_H_

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>

/// The arguments of qkv.attention and its backward, as the signatures in python/qkv/_attention.py and _backward.py name
/// them.
namespace qkv::python {

namespace nb = nanobind;

enum Argument : std::size_t {
  kQ,
  kK,
  kV,
  kGradLse,
  kGradEntropy,
  kNeed,
  kMask,
  kBias,
  kCausal,
  kQueryOffset,
  kWindow,
  kScale,
  kSoftcap,
  kSinks,
  kAlibiSlopes,
  kKvLens,
  kDropout,
  kSeed,
  kReturnLse,
  kReturnWeights,
  kReturnLogits,
  kReturnStats,
  kStatsKeys,
  kOut,
  kNumArguments,
};

/// Which options a function has: those of a run in the list above.
struct OptionRange {
  Argument first;
  Argument end;
};
inline constexpr OptionRange kForwardOptions = {kMask, kNumArguments};
inline constexpr OptionRange kBackwardOptions = {kGradLse, kReturnLse};

/// Borrowed references, one for every argument: what is not given has its default.
using Arguments = std::array<nb::handle, kNumArguments>;

/// The arguments of a call function(q, k, v, **options). @throws nb::type_error for an option that there is not.
Arguments arguments_of(const char* function, nb::handle q, nb::handle k, nb::handle v, const nb::dict& options,
                       OptionRange range = kForwardOptions);

}  // namespace qkv::python

#endif  // QKV_PYTHON_BINDINGS_ATTENTION_ARGUMENTS_H_
