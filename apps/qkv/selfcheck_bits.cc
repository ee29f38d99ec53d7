#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "qkv/masks.h"
#include "qkv/runtime.h"
#include "selfcheck.h"
#include "selfcheck_cases.h"

namespace qkv::cli {
namespace {

// The same rows computed in two ways that must agree in every bit.

/// What is compared: out and lse.
struct Rows {
  Rows(const Sizes& s, Dtype dtype)
      : out({s.batch, s.num_heads, s.q_len, s.value_dim}, dtype),
        lse({s.batch, s.num_heads, s.q_len}, stats_dtype(dtype)) {}
  Tensor out;
  Tensor lse;
};

Rows run(const Call& call, const AttentionFunction& attention) {
  Rows rows(call.sizes, call.dtype);
  attention(call.q, call.k, call.v, rows.out, call.options, {.lse = rows.lse});
  return rows;
}

std::int64_t count_different(const Tensor& a, const Tensor& b) {
  const std::size_t size = size_of(a.dtype());
  const auto* bytes_a = static_cast<const char*>(a.view().data());
  const auto* bytes_b = static_cast<const char*>(b.view().data());
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < a.num_elements(); ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * size;
    if (std::memcmp(bytes_a + at, bytes_b + at, size) != 0) ++count;
  }
  return count;
}

Measurement compare(const Rows& a, const Rows& b) {
  const std::int64_t out = count_different(a.out, b.out);
  const std::int64_t lse = count_different(a.lse, b.lse);
  return {static_cast<double>(out + lse), out > 0 ? "out" : lse > 0 ? "lse" : ""};
}

/// One part of a call's batches or rows of q: axis 0 or 2 of q and out, axis 0 or 2 of lse.
void run_part(const Call& call, int axis, std::int64_t begin, std::int64_t end, const AttentionFunction& attention,
              Rows& rows) {
  const auto part = [&](const ConstTensorView& view) { return axis == 0 ? view.slice(0, begin, end) : view; };
  AttentionOptions options = call.options;
  if (options.kv_lens) options.kv_lens = part(*options.kv_lens);
  if (axis == 2 && options.query_offset.one() != nullptr) options.query_offset = *options.query_offset.one() + begin;
  attention(call.q.slice(axis, begin, end), part(call.k), part(call.v), rows.out.view().slice(axis, begin, end),
            options, {.lse = rows.lse.view().slice(axis, begin, end)});
}

constexpr Sizes kSizes = {3, 4, 2, 48, 130, 64, 64};

/// Causal, with a position of its own: the parts of a split then know where they are.
Call causal_call(Dtype dtype, Random& random) {
  Call call = random_call(kSizes, dtype, random);
  call.options.causal = true;
  call.options.query_offset = 70;
  return call;
}

Call call_with_lengths(Dtype dtype, Random& random) {
  Call call = causal_call(dtype, random);
  Tensor lengths({kSizes.batch}, Dtype::kInt64);
  for (std::int64_t b = 0; b < kSizes.batch; ++b) lengths.as<std::int64_t>()[b] = 90 + 15 * b;
  call.options.kv_lens = call.keep(std::move(lengths));
  return call;
}

/// A copy of k or v, in whose hidden keys, those at lengths[b] and beyond, every element is NaN.
Tensor poisoned(const ConstTensorView& view, Dtype dtype, const std::int64_t* lengths) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  Tensor copy = to_dtype(to_float64(view), dtype);
  const std::int64_t keys = view.extent(2);
  const std::int64_t dim = view.extent(3);
  for (std::int64_t i = 0; i < copy.num_elements(); ++i) {
    const std::int64_t b = i / (view.extent(1) * keys * dim);
    if (i / dim % keys >= lengths[b]) set_element(copy, i, kNan);
  }
  return copy;
}

/// A number of threads for a while.
class Threads {
 public:
  explicit Threads(int count) : before_(num_threads()) { set_num_threads(count); }
  ~Threads() { set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

Rows run_with_threads(int count, const Call& call, const AttentionFunction& attention) {
  const Threads threads(count);
  return run(call, attention);
}

Measurement one_and_two_threads(Dtype dtype, Random& random, const AttentionFunction& attention) {
  const Call call = call_with_lengths(dtype, random);
  return compare(run_with_threads(1, call, attention), run_with_threads(2, call, attention));
}

Measurement queries_at_once_and_split(Dtype dtype, Random& random, const AttentionFunction& attention) {
  const Call call = causal_call(dtype, random);
  Rows split(call.sizes, dtype);
  for (const auto& [begin, end] : {std::pair{0, 1}, {1, 18}, {18, 48}}) {
    run_part(call, 2, begin, end, attention, split);
  }
  return compare(run(call, attention), split);
}

Measurement batch_and_one_by_one(Dtype dtype, Random& random, const AttentionFunction& attention) {
  const Call call = call_with_lengths(dtype, random);
  Rows single(call.sizes, dtype);
  for (std::int64_t b = 0; b < kSizes.batch; ++b) run_part(call, 0, b, b + 1, attention, single);
  return compare(run(call, attention), single);
}

Measurement hidden_keys_and_nan(Dtype dtype, Random& random, const AttentionFunction& attention) {
  Call call = call_with_lengths(dtype, random);
  const Rows clean = run(call, attention);
  const auto* lengths = call.options.kv_lens->as<std::int64_t>();
  call.k = call.keep(poisoned(call.k, dtype, lengths));
  call.v = call.keep(poisoned(call.v, dtype, lengths));
  return compare(clean, run(call, attention));
}

Measurement padding_and_none(Dtype dtype, Random& random, const AttentionFunction& attention) {
  constexpr std::int64_t kFilled = 101;
  Call padded = causal_call(dtype, random);
  Call exact = {.sizes = padded.sizes, .dtype = dtype, .options = padded.options};
  exact.sizes.kv_len = kFilled;
  exact.q = padded.q;
  exact.k = padded.k.slice(2, 0, kFilled);
  exact.v = padded.v.slice(2, 0, kFilled);
  Tensor lengths({kSizes.batch}, Dtype::kInt32);
  for (std::int64_t b = 0; b < kSizes.batch; ++b) lengths.as<std::int32_t>()[b] = kFilled;
  padded.options.kv_lens = padded.keep(std::move(lengths));
  return compare(run(padded, attention), run(exact, attention));
}

Measurement causal_and_mask(Dtype dtype, Random& random, const AttentionFunction& attention) {
  Call call = causal_call(dtype, random);
  const Rows causal = run(call, attention);
  call.options.causal = false;
  call.options.mask = call.keep(causal_mask(kSizes.q_len, kSizes.kv_len, *call.options.query_offset.one()));
  return compare(causal, run(call, attention));
}

Measurement grouped_and_repeated_heads(Dtype dtype, Random& random, const AttentionFunction& attention) {
  const Call grouped = causal_call(dtype, random);
  Call repeated = {.sizes = grouped.sizes, .dtype = dtype, .options = grouped.options};
  repeated.sizes.num_kv_heads = kSizes.num_heads;
  repeated.q = grouped.q;
  // [batch, kv_heads, len, dim] -> [batch, kv_heads, group, len, dim] with stride 0 -> a dense [batch, heads, len, dim]
  const auto repeat = [&](const ConstTensorView& view) {
    const std::int64_t group = kSizes.num_heads / kSizes.num_kv_heads;
    const ConstTensorView expanded(view.data(), dtype,
                                   {view.extent(0), view.extent(1), group, view.extent(2), view.extent(3)},
                                   {view.stride(0), view.stride(1), 0, view.stride(2), view.stride(3)});
    const ConstTensorView dense = repeated.keep(to_dtype(to_float64(expanded), dtype));
    const Extents shape = {view.extent(0), kSizes.num_heads, view.extent(2), view.extent(3)};
    return ConstTensorView(dense.data(), dtype, shape, dense_strides(shape));
  };
  repeated.k = repeat(grouped.k);
  repeated.v = repeat(grouped.v);
  return compare(run(grouped, attention), run(repeated, attention));
}

Measurement alone_and_with_outputs(Dtype dtype, Random& random, const AttentionFunction& attention) {
  const Call call = call_with_lengths(dtype, random);
  const Sizes& s = call.sizes;
  Rows with(s, dtype);
  Tensor weights({s.batch, s.num_heads, s.q_len, s.kv_len}, stats_dtype(dtype));
  Tensor logits(weights.shape(), weights.dtype());
  Tensor entropy(with.lse.shape(), weights.dtype());
  attention(call.q, call.k, call.v, with.out, call.options,
            {.lse = with.lse,
             .weights = Weights{.out = weights},
             .logits = Logits{.out = logits},
             .stats = Stats{.entropy = entropy}});
  return compare(run(call, attention), with);
}

struct BitsCase {
  const char* name;
  Measurement (*measure)(Dtype dtype, Random& random, const AttentionFunction& attention);
};

constexpr BitsCase kBitsCases[] = {
    {"1 thread = 2 threads", one_and_two_threads},
    {"queries at once = split into calls", queries_at_once_and_split},
    {"a batch = one by one", batch_and_one_by_one},
    {"hidden keys hold numbers = NaN", hidden_keys_and_nan},
    {"padding = none", padding_and_none},
    {"causal = a mask of the same keys", causal_and_mask},
    {"grouped heads = repeated heads", grouped_and_repeated_heads},
    {"out alone = with other outputs", alone_and_with_outputs},
};

}  // namespace

std::vector<Job> bits_jobs(const SelfcheckPlan& plan, const AttentionFunction& attention) {
  std::vector<Job> jobs;
  const auto add = [&](const std::string& target, std::size_t index, Dtype dtype) {
    const BitsCase& one = kBitsCases[index];
    jobs.push_back({.section = "bits",
                    .target = target,
                    .name = std::string(one.name) + ", " + std::string(name_of(dtype)),
                    .bound = 0,
                    .unit = "elements",
                    .measure = [&one, index, dtype, seed = plan.seed, attention] {
                      // Streams of their own, apart from those of the accuracy cases.
                      Random random(seed, 1'000'000 + index);
                      return one.measure(dtype, random, attention);
                    }});
  };
  for (const std::string& target : plan.targets) {
    for (std::size_t index = 0; index < std::size(kBitsCases); ++index) {
      for (const Dtype dtype : checked_dtypes(plan)) add(target, index, dtype);
    }
  }
  return jobs;
}

}  // namespace qkv::cli
