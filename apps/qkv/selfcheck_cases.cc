#include "selfcheck_cases.h"

#include <limits>
#include <optional>
#include <utility>

namespace qkv::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A tensor of integers between low and high, both included.
template <class T>
Tensor integers(std::int64_t count, std::int64_t low, std::int64_t high, Random& random) {
  Tensor tensor({count}, kDtypeOf<T>);
  for (std::int64_t i = 0; i < count; ++i) tensor.as<T>()[i] = static_cast<T>(random.integer(low, high));
  return tensor;
}

void add_mask(Call& call, const Extents& shape, Random& random) {
  call.options.mask = call.keep(random.coins(shape, 0.6));
}

void add_bias(Call& call, const Extents& shape, double hidden_share, Random& random) {
  Tensor bias = random.normal(shape, call.dtype);
  for (std::int64_t i = 0; i < bias.num_elements(); ++i) {
    if (random.uniform(0, 1) < hidden_share) set_element(bias, i, -kInfinity);
  }
  call.options.bias = call.keep(std::move(bias));
}

void add_sinks(Call& call, const Extents& shape, Random& random) {
  call.options.sinks = call.keep(random.normal(shape, call.dtype));
}

void add_slopes(Call& call, const Extents& shape, Random& random) {
  call.options.alibi_slopes = call.keep(random.uniform(shape, call.dtype, 0.01, 0.5));
}

void add_kv_lens(Call& call, Random& random) {
  Tensor lengths = integers<std::int64_t>(call.sizes.batch, 0, call.sizes.kv_len, random);
  lengths.as<std::int64_t>()[0] = call.sizes.kv_len;
  lengths.as<std::int64_t>()[call.sizes.batch - 1] = 0;
  call.options.kv_lens = call.keep(std::move(lengths));
}

void add_offsets(Call& call, Random& random) {
  call.options.query_offset =
      QueryOffset(call.keep(integers<std::int32_t>(call.sizes.batch, -5, call.sizes.kv_len, random)));
}

/// k and v laid out as [batch, kv_len, num_kv_heads, dim], q with every second element of a wider last axis.
void scatter_in_memory(Call& call, Random& random) {
  const Sizes& s = call.sizes;
  call.k = call.keep(random.normal({s.batch, s.kv_len, s.num_kv_heads, s.head_dim}, call.dtype)).permute({0, 2, 1, 3});
  call.v = call.keep(random.normal({s.batch, s.kv_len, s.num_kv_heads, s.value_dim}, call.dtype)).permute({0, 2, 1, 3});
  const ConstTensorView wide = call.keep(random.normal({s.batch, s.num_heads, s.q_len, 2 * s.head_dim}, call.dtype));
  call.q = ConstTensorView(wide.data(), call.dtype, call.q.shape(),
                           {wide.stride(0), wide.stride(1), wide.stride(2), 2 * wide.stride(3)});
}

/// All batches share the keys of the first, and the keys run backwards through memory.
void repeat_and_reverse_keys(Call& call, Random&) {
  const auto reversed = [&call](const ConstTensorView& view) {
    const ConstTensorView last = view.slice(2, view.extent(2) - 1, view.extent(2));
    return ConstTensorView(last.data(), call.dtype, view.shape(), {0, view.stride(1), -view.stride(2), view.stride(3)});
  };
  call.k = reversed(call.k);
  call.v = reversed(call.v);
}

void set_everything(Call& call, Random& random) {
  const Sizes& s = call.sizes;
  call.options.scale = 0.1;
  call.options.causal = true;
  call.options.window = {.left = 40, .right = 3};
  call.options.softcap = 2;
  add_offsets(call, random);
  add_mask(call, {s.batch, 1, 1, s.kv_len}, random);
  add_bias(call, {s.num_heads, s.q_len, s.kv_len}, 0.1, random);
  add_sinks(call, {s.batch, s.num_heads}, random);
  add_slopes(call, {s.num_heads}, random);
  add_kv_lens(call, random);
}

// Sizes: batch, num_heads, num_kv_heads, q_len, kv_len, head_dim, value_dim.
const std::vector<Case>& cases() {
  constexpr Sizes kUsual = {2, 4, 4, 33, 61, 64, 64};
  constexpr Sizes kSquare = {2, 4, 4, 62, 62, 64, 64};
  constexpr auto kNothing = [](Call&, Random&) {};
  constexpr auto kCausal = [](Call& c, Random&) { c.options.causal = true; };
  static const std::vector<Case> cases = {
      {"plain", kUsual, kNothing},
      {"one query, one key", {1, 1, 1, 1, 1, 64, 64}, kNothing},
      {"one query, many keys", {4, 8, 2, 1, 770, 64, 64}, kNothing},
      {"head_dim 1, value_dim 1", {1, 2, 2, 19, 30, 1, 1}, kNothing},
      {"head_dim 40, value_dim 24", {1, 2, 2, 19, 30, 40, 24}, kNothing},
      {"head_dim 257, value_dim 130", {1, 2, 2, 19, 30, 257, 130}, kNothing},
      {"6 heads on 2", {2, 6, 2, 33, 61, 64, 64}, kNothing},
      {"causal", kSquare, kCausal},
      {"causal, fewer queries than keys", {1, 4, 2, 30, 140, 64, 64}, kCausal},
      {"causal, rows that see nothing", {1, 4, 2, 60, 20, 64, 64}, kCausal},
      {"query_offset", kSquare, [](Call& c, Random&) { c.options.causal = true, c.options.query_offset = 7; }},
      {"query_offset, negative", kSquare,
       [](Call& c, Random&) { c.options.causal = true, c.options.query_offset = -7; }},
      {"query_offset per batch", kSquare, [](Call& c, Random& r) { c.options.causal = true, add_offsets(c, r); }},
      {"window, left", kSquare, [](Call& c, Random&) { c.options.window.left = 9; }},
      {"window, right", kSquare, [](Call& c, Random&) { c.options.window.right = 0; }},
      {"window, both sides", kSquare, [](Call& c, Random&) { c.options.window = {17, 4}; }},
      {"scale, negative", kUsual, [](Call& c, Random&) { c.options.scale = -0.07; }},
      {"scale 0", kUsual, [](Call& c, Random&) { c.options.scale = 0; }},
      {"softcap", kUsual, [](Call& c, Random&) { c.options.softcap = 0.8; }},
      {"mask [q_len, kv_len]", kUsual, [](Call& c, Random& r) { add_mask(c, {c.sizes.q_len, c.sizes.kv_len}, r); }},
      {"mask [batch, 1, 1, kv_len]", kUsual,
       [](Call& c, Random& r) { add_mask(c, {c.sizes.batch, 1, 1, c.sizes.kv_len}, r); }},
      {"mask of every element", kUsual,
       [](Call& c, Random& r) { add_mask(c, {c.sizes.batch, c.sizes.num_heads, c.sizes.q_len, c.sizes.kv_len}, r); }},
      {"bias [kv_len]", kUsual, [](Call& c, Random& r) { add_bias(c, {c.sizes.kv_len}, 0, r); }},
      {"bias with -inf", kUsual,
       [](Call& c, Random& r) { add_bias(c, {c.sizes.num_heads, c.sizes.q_len, c.sizes.kv_len}, 0.4, r); }},
      {"sinks [num_heads]", kUsual, [](Call& c, Random& r) { add_sinks(c, {c.sizes.num_heads}, r); }},
      {"sinks [batch, num_heads]", kUsual,
       [](Call& c, Random& r) { add_sinks(c, {c.sizes.batch, c.sizes.num_heads}, r); }},
      {"alibi_slopes", kUsual, [](Call& c, Random& r) { add_slopes(c, {c.sizes.num_heads}, r); }},
      {"kv_lens", {3, 4, 4, 33, 61, 64, 64}, [](Call& c, Random& r) { add_kv_lens(c, r); }},
      {"strided q, k and v", {2, 4, 2, 33, 61, 40, 24}, scatter_in_memory},
      {"repeated and reversed k and v", {2, 4, 2, 33, 61, 40, 24}, repeat_and_reverse_keys},
      {"everything at once", {3, 6, 2, 62, 90, 48, 40}, set_everything},
      {"many queries, causal", {1, 2, 1, 520, 520, 64, 64}, kCausal, true},
      {"5000 keys", {1, 2, 1, 3, 5000, 64, 64}, kNothing, true},
      {"5000 keys, everything", {2, 2, 1, 3, 5000, 32, 32}, set_everything, true},
  };
  return cases;
}

/// Of random numbers, one for each case and dtype.
std::uint64_t stream_of(std::size_t index, Dtype dtype) {
  constexpr std::uint64_t kHalf = 500'000;
  switch (dtype) {
    case Dtype::kFloat16:
      return kHalf + 2 * index;
    case Dtype::kBFloat16:
      return kHalf + 2 * index + 1;
    case Dtype::kFloat64:
      return 2 * index + 1;
    default:
      return 2 * index;
  }
}

}  // namespace

Call random_call(const Sizes& sizes, Dtype dtype, Random& random) {
  Call call = {.sizes = sizes, .dtype = dtype};
  call.q = call.keep(random.normal({sizes.batch, sizes.num_heads, sizes.q_len, sizes.head_dim}, dtype));
  call.k = call.keep(random.normal({sizes.batch, sizes.num_kv_heads, sizes.kv_len, sizes.head_dim}, dtype));
  call.v = call.keep(random.normal({sizes.batch, sizes.num_kv_heads, sizes.kv_len, sizes.value_dim}, dtype));
  return call;
}

Call widened(const Call& call) {
  Call wide = {.sizes = call.sizes, .dtype = Dtype::kFloat64, .options = call.options};
  wide.q = wide.keep(to_float64(call.q));
  wide.k = wide.keep(to_float64(call.k));
  wide.v = wide.keep(to_float64(call.v));
  for (auto* operand : {&wide.options.bias, &wide.options.sinks, &wide.options.alibi_slopes}) {
    if (*operand) *operand = wide.keep(to_float64(**operand));
  }
  return wide;
}

const std::vector<Case>& all_cases() { return cases(); }

Call make_call(std::size_t index, Dtype dtype, std::uint64_t seed) {
  constexpr std::int64_t kVariation = 8;
  const Case& one = all_cases()[index];
  Random random(seed, stream_of(index, dtype));
  Sizes sizes = one.sizes;
  if (sizes.q_len > 1) sizes.q_len += random.integer(0, kVariation);
  if (sizes.kv_len > 1) sizes.kv_len += random.integer(0, kVariation);
  Call call = random_call(sizes, dtype, random);
  one.set(call, random);
  return call;
}

}  // namespace qkv::cli
