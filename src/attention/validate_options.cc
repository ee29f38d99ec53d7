#include <cmath>

#include "attention/validate_parts.h"

namespace qkv::attention_detail {
namespace {

using kernels::ForwardProblem;
using kernels::Operand;

constexpr std::string_view kLogitAxes = "[batch, num_heads, q_len, kv_len]";

/// A mask or bias, with stride 0 along the axes in which it repeats.
Operand read_broadcast(std::string_view name, const ConstTensorView& given, Arguments& arguments,
                       const ForwardProblem& problem) {
  const ConstTensorView view = arguments.read(name, given, {kLogitAxes, 0, 4});
  const Extents target{problem.batch, problem.num_heads, problem.q_len, problem.kv_len};
  for (int axis = 0; axis < 4; ++axis) {
    if (view.extent(axis) != 1 && view.extent(axis) != target[axis]) {
      arguments.refuse<ShapeError>(name, "{} does not broadcast to {} = {}", given.shape(), kLogitAxes, target);
    }
  }
  return operand_of(view.broadcast_to(target));
}

/// The type is checked before the shape: a mask of numbers is the wrong idea, whatever its shape.
void resolve_mask(const ConstTensorView& mask, Arguments& arguments, ForwardProblem& problem) {
  switch (mask.dtype()) {
    case Dtype::kBool:
      break;
    case Dtype::kFloat16:
    case Dtype::kBFloat16:
    case Dtype::kFloat32:
    case Dtype::kFloat64:
      arguments.refuse<DtypeError>("mask",
                                   "expected bool (true = attend), got {}; a mask that is added to the logits "
                                   "goes in as bias",
                                   mask.dtype());
    default:
      arguments.refuse<DtypeError>("mask", "expected bool (true = attend), got {}; use mask != 0", mask.dtype());
  }
  problem.mask = read_broadcast("mask", mask, arguments, problem);
}

Operand read_per_head(std::string_view name, const ConstTensorView& given, Arguments& arguments,
                      const ForwardProblem& problem) {
  return operand_of(arguments.read_per_head(name, given, problem.dtype, problem.batch, problem.num_heads));
}

/// kv_lens or query_offset.
std::vector<std::int64_t> read_per_batch(std::string_view name, const ConstTensorView& given, Arguments& arguments,
                                         const ForwardProblem& problem) {
  return read_integers(name, given, "[batch]", problem.batch, arguments);
}

void resolve_numbers(const AttentionOptions& options, const Arguments& arguments, ForwardProblem& problem) {
  problem.scale = options.scale ? *options.scale : 1 / std::sqrt(static_cast<double>(problem.head_dim));
  if (!std::isfinite(problem.scale)) {
    arguments.refuse<ValueError>("scale", "expected a finite number, got {}", problem.scale);
  }
  problem.softcap = options.softcap;
  if (!std::isfinite(problem.softcap) || problem.softcap < 0) {
    arguments.refuse<ValueError>("softcap", "expected a positive finite number, or 0 for none, got {}",
                                 problem.softcap);
  }
}

std::int64_t window_side(const std::optional<std::int64_t>& side, std::string_view name, const Arguments& arguments) {
  if (!side) return ForwardProblem::kUnbounded;
  if (*side < 0) {
    arguments.refuse<ValueError>("window", "expected {} >= 0 (empty means unbounded), got {}", name, *side);
  }
  // No two positions of a call are this far apart; with a larger side their sum might not fit.
  constexpr std::int64_t kApart = 4 * ForwardProblem::kMostPosition;
  return *side >= kApart ? ForwardProblem::kUnbounded : *side;
}

void resolve_kv_lens(const AttentionOptions& options, Arguments& arguments, ForwardProblem& problem) {
  problem.kv_lens.assign(static_cast<std::size_t>(problem.batch), problem.kv_len);
  if (!options.kv_lens) return;
  problem.kv_lens = read_per_batch("kv_lens", *options.kv_lens, arguments, problem);
  for (std::size_t b = 0; b < problem.kv_lens.size(); ++b) {
    if (problem.kv_lens[b] < 0 || problem.kv_lens[b] > problem.kv_len) {
      arguments.refuse<ValueError>("kv_lens", "expected 0 to kv_len = {}, got {} for batch {}", problem.kv_len,
                                   problem.kv_lens[b], b);
    }
  }
}

void resolve_query_offset(const QueryOffset& given, Arguments& arguments, ForwardProblem& problem) {
  auto& offsets = problem.query_offset;
  if (given.is_default()) {
    offsets = problem.kv_lens;
    for (std::int64_t& offset : offsets) offset -= problem.q_len;
  } else if (const std::int64_t* one = given.one()) {
    offsets.assign(static_cast<std::size_t>(problem.batch), *one);
  } else {
    offsets = read_per_batch("query_offset", *given.per_batch(), arguments, problem);
  }
  for (std::size_t b = 0; b < offsets.size(); ++b) {
    if (offsets[b] < -ForwardProblem::kMostPosition || offsets[b] > ForwardProblem::kMostPosition) {
      arguments.refuse<ValueError>("query_offset", "expected a number within +-2^60, got {} for batch {}", offsets[b],
                                   b);
    }
  }
}

void resolve_dropout(const Dropout& dropout, const Arguments& arguments, ForwardProblem& problem) {
  if (!(dropout.p >= 0 && dropout.p <= 1)) {
    arguments.refuse<ValueError>("dropout", "expected a probability p in 0..1, got {}", dropout.p);
  }
  if (dropout.p == 0) return;
  if (!dropout.seed) arguments.refuse<ValueError>("dropout", "p = {} needs a seed, and none was given", dropout.p);
  // Which weights are dropped is a function of these two by 32 bits each.
  constexpr std::int64_t kMost = std::int64_t{1} << 32;
  if (problem.batch > kMost || problem.num_heads > kMost) {
    arguments.refuse<ShapeError>("dropout", "expected at most 2^32 batches and heads, got {} and {}", problem.batch,
                                 problem.num_heads);
  }
  problem.dropout = dropout.p;
  problem.seed = *dropout.seed;
}

}  // namespace

void expect_integers(std::string_view name, const ConstTensorView& given, const Arguments& arguments) {
  if (given.dtype() == Dtype::kInt32 || given.dtype() == Dtype::kInt64) return;
  arguments.refuse<DtypeError>(name, "expected int32 or int64, got {}", given.dtype());
}

std::int64_t integer_at(const ConstTensorView& view, std::int64_t offset) {
  return view.dtype() == Dtype::kInt32 ? view.as<std::int32_t>()[offset] : view.as<std::int64_t>()[offset];
}

std::vector<std::int64_t> read_integers(std::string_view name, const ConstTensorView& given, std::string_view axis,
                                        std::optional<std::int64_t> expected, Arguments& arguments) {
  const ConstTensorView view = arguments.read(name, given, {axis, 1, 1});
  expect_integers(name, given, arguments);
  if (expected) arguments.expect_shape(name, given, view, {*expected}, axis);
  std::vector<std::int64_t> values(static_cast<std::size_t>(view.extent(0)));
  std::int64_t at = 0;
  for (std::int64_t& value : values) {
    value = integer_at(view, at);
    at += view.stride(0);
  }
  return values;
}

void resolve_options(const AttentionOptions& options, Arguments& arguments, ForwardProblem& problem) {
  resolve_numbers(options, arguments, problem);
  problem.causal = options.causal;
  problem.window_left = window_side(options.window.left, "left", arguments);
  problem.window_right = window_side(options.window.right, "right", arguments);
  if (options.mask) resolve_mask(*options.mask, arguments, problem);
  if (options.bias) {
    arguments.expect_term_dtype("bias", *options.bias, problem.dtype);
    problem.bias = read_broadcast("bias", *options.bias, arguments, problem);
  }
  if (options.sinks) problem.sinks = read_per_head("sinks", *options.sinks, arguments, problem);
  if (options.alibi_slopes) {
    problem.alibi_slopes = read_per_head("alibi_slopes", *options.alibi_slopes, arguments, problem);
  }
  resolve_dropout(options.dropout, arguments, problem);  // before memory is taken for each batch
  resolve_kv_lens(options, arguments, problem);
  resolve_query_offset(options.query_offset, arguments, problem);
}

}  // namespace qkv::attention_detail
