#ifndef QKV_APPS_SELFCHECK_CASES_H_
#define QKV_APPS_SELFCHECK_CASES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "qkv/attention.h"
#include "random_tensor.h"

namespace qkv::cli {

struct Sizes {
  std::int64_t batch = 1;
  std::int64_t num_heads = 1;
  std::int64_t num_kv_heads = 1;
  std::int64_t q_len = 1;
  std::int64_t kv_len = 1;
  std::int64_t head_dim = 64;
  std::int64_t value_dim = 64;
};

/// The arguments of one call, and the memory behind them.
struct Call {
  Sizes sizes;
  Dtype dtype = Dtype::kFloat32;
  ConstTensorView q = {};
  ConstTensorView k = {};
  ConstTensorView v = {};
  AttentionOptions options = {};
  std::vector<Tensor> memory = {};

  /// Keeps the tensor as long as the call lives.
  ConstTensorView keep(Tensor tensor) {
    memory.push_back(std::move(tensor));
    return memory.back().view();
  }
};

/// Normally distributed q, k and v of these sizes, and default options.
Call random_call(const Sizes& sizes, Dtype dtype, Random& random);

/// The same numbers in double precision: what the reference is asked.
Call widened(const Call& call);

/// One kind of call: a name, sizes, and what is set beyond q, k and v.
struct Case {
  std::string name;
  Sizes sizes;
  void (*set)(Call& call, Random& random);
  bool is_long = false;  ///< takes long, by its sizes
};

/// Every option, alone and together.
const std::vector<Case>& all_cases();

/// The call of case number `index` of all_cases(): depends on the seed, the index and the dtype alone. Lengths above 1
/// vary by a few with the seed, so that many seeds meet many edges of blocks.
Call make_call(std::size_t index, Dtype dtype, std::uint64_t seed);

}  // namespace qkv::cli

#endif  // QKV_APPS_SELFCHECK_CASES_H_
