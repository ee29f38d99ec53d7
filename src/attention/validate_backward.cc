#include "attention/validate_backward.h"

#include <optional>

#include "attention/validate.h"
#include "base/element.h"

namespace qkv::attention_detail {
namespace {

using kernels::BackwardProblem;
using kernels::ForwardProblem;
using kernels::Operand;
using kernels::Result;

Operand read_like_out(std::string_view name, const ConstTensorView& given, const OperandForm& form,
                      Arguments& arguments, const ForwardProblem& problem) {
  const ConstTensorView view = arguments.read(name, given, form.out);
  check_out(name, given, view, form, arguments, problem);
  return operand_of(by_head(view, form));
}

Operand read_row(std::string_view name, const ConstTensorView& given, const Axes& axes, Arguments& arguments,
                 const ForwardProblem& problem) {
  const ConstTensorView view = arguments.read(name, given, axes);
  arguments.expect_dtype(name, given, stats_dtype(problem.dtype));
  check_row(name, given, view, axes, arguments, problem);
  return per_row(operand_of(view), axes);
}

/// The gradients of q, k and v: shapes and dtypes are theirs.
class OperandGradients {
 public:
  OperandGradients(const OperandForm& form, Arguments& arguments, const ForwardProblem& problem)
      : form_(form), arguments_(arguments), problem_(problem) {}

  Result resolve_q(const std::optional<TensorView>& given) {
    return resolve("grad_q", given, form_.q, problem_.q.dtype, {problem_.num_heads, problem_.q_len, problem_.head_dim});
  }
  Result resolve_k(const std::optional<TensorView>& given) {
    return resolve("grad_k", given, form_.k, problem_.k.dtype,
                   {problem_.num_kv_heads, problem_.kv_len, problem_.head_dim});
  }
  Result resolve_v(const std::optional<TensorView>& given) {
    return resolve("grad_v", given, form_.v, problem_.v.dtype,
                   {problem_.num_kv_heads, problem_.kv_len, problem_.value_dim});
  }

 private:
  /// @param head  [heads, length, dim]
  Result resolve(std::string_view name, const std::optional<TensorView>& given, const Axes& axes, Dtype dtype,
                 const Extents& head) {
    if (!given) return {};
    const TensorView view = arguments_.written(name, *given, axes);
    arguments_.expect_term_dtype(name, *given, dtype);
    const Extents expected =
        form_.ragged ? Extents{head[1], head[0], head[2]} : Extents{problem_.batch, head[0], head[1], head[2]};
    arguments_.expect_shape(name, *given, view, expected, axes.names);
    return result_of(by_head(view, form_));
  }

  const OperandForm& form_;
  Arguments& arguments_;
  const ForwardProblem& problem_;
};

/// The gradient of an option that repeats along some axes: it has that option's shape, and stride 0 there.
Result resolve_option(std::string_view name, const std::optional<TensorView>& given,
                      const std::optional<ConstTensorView>& option, const Axes& axes, Arguments& arguments) {
  if (!given) return {};
  if (!option) arguments.refuse<ValueError>(name, "asked for, but there is no {} in the options", name.substr(5));
  const TensorView view = arguments.written(name, *given, axes);
  arguments.expect_term_dtype(name, *given, option->dtype());
  if (given->shape() != option->shape()) {
    arguments.refuse<ShapeError>(name, "expected {} as in {}, got {}", option->shape(), name.substr(5), given->shape());
  }
  Result result = result_of(view);
  std::int64_t* const strides[] = {&result.batch, &result.head, &result.row, &result.col};
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.extent(axis) == 1) *strides[axis] = 0;
  }
  return result;
}

}  // namespace

void resolve_saved(const AttentionSaved& saved, const AttentionGradients& gradients, const OperandForm& form,
                   Arguments& arguments, BackwardProblem& problem) {
  const ForwardProblem& forward = problem.forward;
  problem.out = read_like_out("out", saved.out, form, arguments, forward);
  problem.lse = read_row("lse", saved.lse, form.row, arguments, forward);
  problem.grad_out = read_like_out("grad_out", gradients.grad_out, form, arguments, forward);
  const auto row = [&](std::string_view name, const std::optional<ConstTensorView>& given) {
    return given ? read_row(name, *given, form.row, arguments, forward) : Operand{};
  };
  problem.grad_lse = row("grad_lse", gradients.grad_lse);
  problem.grad_entropy = row("grad_entropy", gradients.grad_entropy);
}

void resolve_gradients(const AttentionGradients& gradients, const AttentionOptions& options, const OperandForm& form,
                       Arguments& arguments, BackwardProblem& problem) {
  OperandGradients operands(form, arguments, problem.forward);
  problem.grad_q = operands.resolve_q(gradients.grad_q);
  problem.grad_k = operands.resolve_k(gradients.grad_k);
  problem.grad_v = operands.resolve_v(gradients.grad_v);
  problem.grad_bias = resolve_option("grad_bias", gradients.grad_bias, options.bias,
                                     {"[batch, num_heads, q_len, kv_len]", 0, 4}, arguments);
  if (gradients.grad_bias) {
    const Extents& shape = gradients.grad_bias->shape();
    for (int axis = 0; axis < shape.size(); ++axis) problem.grad_bias_shape[4 - shape.size() + axis] = shape[axis];
  }
  problem.grad_sinks = resolve_option("grad_sinks", gradients.grad_sinks, options.sinks,
                                      {"[num_heads] or [batch, num_heads]", 1, 2}, arguments);
  problem.shares_sinks = gradients.grad_sinks && gradients.grad_sinks->rank() == 1;
  problem.accumulate = gradients.accumulate;
}

BackwardProblem validate_backward(const AttentionInputs& inputs, const AttentionSaved& saved,
                                  const AttentionGradients& gradients, const AttentionOptions& options) {
  Arguments arguments("qkv::attention_backward");
  BackwardProblem problem;
  resolve_operands(inputs.q, inputs.k, inputs.v, kDenseForm, arguments, problem.forward);
  resolve_saved(saved, gradients, kDenseForm, arguments, problem);
  resolve_options(options, arguments, problem.forward);
  resolve_gradients(gradients, options, kDenseForm, arguments, problem);
  return problem;
}

}  // namespace qkv::attention_detail
