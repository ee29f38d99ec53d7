#ifndef QKV_TESTS_ATTENTION_KEPT_PAIR_H_
#define QKV_TESTS_ATTENTION_KEPT_PAIR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "attention/check_random_call.h"
#include "support/kept.h"
#include "support/on_target.h"

namespace qkv::support {

inline constexpr Keeping kEveryKeeping[] = {Keeping::kSlots, Keeping::kPages, Keeping::kRing};

/// A random call, and its keys in a cache.
struct Pair {
  Call call;
  Kept kept;
  std::string text;
  std::optional<Rope> rope = {};  ///< turns keys by their places in the cache

  KVView view() const {
    KVView kv = kept.view();
    kv.rope = rope;
    if (rope) kv.positions = CachePositions::kCache;
    return kv;
  }
};

inline Pair draw_pair(Random& random, Dtype dtype, Keeping keeping, std::int64_t most) {
  Pair pair{draw_call(random, dtype, most), {}, {}};
  Call& call = pair.call;
  // int8 stands for float32.
  const bool may_be_whole = dtype == Dtype::kFloat32;
  const bool whole_k = may_be_whole && call.k->dtype() == dtype && random.chance(0.4);
  const bool whole_v = may_be_whole && call.v->dtype() == dtype && random.chance(0.4);
  if (keeping == Keeping::kRing && random.chance(0.8)) call.options.window.left = random.integer(0, 40);
  pair.kept = KeptMaker(random, call, keeping).make(whole_k, whole_v);
  pair.text = call.describe() + " keeping " + std::to_string(static_cast<int>(keeping)) + " k " +
              std::string(name_of(pair.kept.k->dtype())) + " v " + std::string(name_of(pair.kept.v->dtype())) +
              " slots " + std::to_string(pair.kept.k->shape()[2]) + " sinks " + std::to_string(pair.kept.num_sinks);
  return pair;
}

inline Results run_kept(const Pair& pair, const Wanted& wanted, bool reference = false) {
  AttentionOptions options = pair.call.full_options();
  options.kv_lens.reset();
  const auto run = [&](const ConstTensorView& q, const ConstTensorView&, const ConstTensorView&, TensorView out,
                       const AttentionOptions& all, const AttentionOutputs& outputs) {
    reference ? reference::attention(q, pair.view(), out, all, outputs) : attention(q, pair.view(), out, all, outputs);
  };
  Wanted all = wanted;
  all.keys = pair.call.stats_keys;
  Results results(*pair.call.q, *pair.call.k, *pair.call.v, all);
  run(*pair.call.q, *pair.call.k, *pair.call.v, results.out, options, results.outputs());
  EXPECT_TRUE(results.intact()) << "something outside of an output was written";
  const Guarded alone(results.out.shape(), results.out.dtype(), wanted.layout);
  run(*pair.call.q, *pair.call.k, *pair.call.v, alone, options, {});
  EXPECT_TRUE(same_bits(alone, results.out)) << "out alone";
  results.spread = std::max(1.0, pair.call.logit_size() / kUsualLogitSize);
  return results;
}

}  // namespace qkv::support

#endif  // QKV_TESTS_ATTENTION_KEPT_PAIR_H_
