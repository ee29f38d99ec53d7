#include "attention/validate.h"

#include "attention/arguments.h"
#include "attention/validate_parts.h"
#include "base/shape.h"

namespace qkv::attention_detail {
namespace {

using kernels::ForwardProblem;

/// An argument as it was given, for errors, and as it is read.
struct Tensor4 {
  std::string_view name;
  ConstTensorView given;
  ConstTensorView view;
};

Tensor4 read4(Arguments& arguments, std::string_view name, const ConstTensorView& given, const Axes& axes) {
  const ConstTensorView view = arguments.read(name, given, axes);
  return {name, given, axes.most == 3 ? batched(view) : view};
}

template <class Strided, class View>
Strided strided(const View& view) {
  // Nothing is there, and an offset to null is undefined; strides may be anything, and no offset by them would fit.
  if (view.data() == nullptr || has_no_elements(view.shape())) return {view.data(), view.dtype()};
  const auto stride = [&view](int axis) { return axis < view.rank() ? view.stride(axis) : 0; };
  return {view.data(), view.dtype(), stride(0), stride(1), stride(2), stride(3)};
}

/// `tensor` and `model` agree in an axis.
void expect_same(const Arguments& arguments, const Tensor4& tensor, const Tensor4& model, int axis,
                 std::string_view axis_name) {
  if (tensor.view.extent(axis) == model.view.extent(axis)) return;
  arguments.refuse<ShapeError>(tensor.name, "expected {} {} as in {} {}, got {} in {}", axis_name,
                               model.view.extent(axis), model.name, model.given.shape(), tensor.view.extent(axis),
                               tensor.given.shape());
}

/// k and v: q's dtype, or 16 bits beside a q of at most 32.
void expect_storage(const Arguments& arguments, const Tensor4& tensor, Dtype q_dtype, bool kept) {
  const Dtype dtype = tensor.given.dtype();
  if (dtype == q_dtype || (kept && dtype == Dtype::kInt8 && q_dtype != Dtype::kFloat64)) return;
  if (q_dtype == Dtype::kFloat64) {
    arguments.refuse<DtypeError>(tensor.name, "expected float64 as in q, got {}", dtype);
  }
  if (dtype == Dtype::kFloat16 || dtype == Dtype::kBFloat16) return;
  const std::string_view own = q_dtype == Dtype::kFloat32 ? "float32, " : "";
  const std::string_view last = kept ? "bfloat16 or int8" : "bfloat16";
  const std::string_view advice = !kept && dtype == Dtype::kInt8 ? "; int8 keys and values live in a cache" : "";
  arguments.refuse<DtypeError>(tensor.name, "expected {}float16{}{} beside a q of {}, got {}{}", own,
                               kept ? ", " : " or ", last, q_dtype, dtype, advice);
}

void resolve_q(const Arguments& arguments, const Tensor4& q, ForwardProblem& problem) {
  arguments.expect_real(q.name, q.given);
  if (q.view.extent(1) == 0) arguments.refuse<ShapeError>(q.name, "num_heads is 0 in {}", q.given.shape());
  if (q.view.extent(3) == 0) arguments.refuse<ShapeError>(q.name, "head_dim is 0 in {}", q.given.shape());
  problem.dtype = q.given.dtype();
  problem.batch = q.view.extent(0);
  problem.num_heads = q.view.extent(1);
  problem.q_len = q.view.extent(2);
  problem.head_dim = q.view.extent(3);
  problem.q = operand_of(q.view);
}

void resolve_k(const Arguments& arguments, const Tensor4& k, const Tensor4& q, const OperandForm& form,
               ForwardProblem& problem) {
  expect_storage(arguments, k, q.given.dtype(), form.kept);
  if (!form.paged) expect_same(arguments, k, q, 0, "batch");
  expect_same(arguments, k, q, 3, "head_dim");
  problem.num_kv_heads = k.view.extent(1);
  problem.kv_len = k.view.extent(2);
  if (problem.num_kv_heads == 0) arguments.refuse<ShapeError>(k.name, "num_kv_heads is 0 in {}", k.given.shape());
  if (problem.num_heads % problem.num_kv_heads != 0) {
    arguments.refuse<ShapeError>(k.name, "num_kv_heads {} in {} does not divide num_heads {} of q {}",
                                 problem.num_kv_heads, k.given.shape(), problem.num_heads, q.given.shape());
  }
  problem.k = operand_of(k.view);
}

void resolve_v(const Arguments& arguments, const Tensor4& v, const Tensor4& k, const OperandForm& form,
               ForwardProblem& problem) {
  expect_storage(arguments, v, problem.dtype, form.kept);
  expect_same(arguments, v, k, 0, form.paged ? "num_pages" : "batch");
  expect_same(arguments, v, k, 1, "num_kv_heads");
  expect_same(arguments, v, k, 2, form.kv_len);
  problem.value_dim = v.view.extent(3);
  if (problem.value_dim > ForwardProblem::kMostColumns) {
    arguments.refuse<ShapeError>(v.name, "value_dim is beyond 2^40 in {}", v.given.shape());
  }
  problem.v = operand_of(v.view);
}

/// Lengths whose products and sums of positions are computed without further checks.
void check_sizes(const Arguments& arguments, const Tensor4& q, const Tensor4& k, const ForwardProblem& problem) {
  if (problem.q_len > ForwardProblem::kMostPosition) {
    arguments.refuse<ShapeError>(q.name, "q_len is beyond 2^60 in {}", q.given.shape());
  }
  if (problem.head_dim > ForwardProblem::kMostColumns) {
    arguments.refuse<ShapeError>(q.name, "head_dim is beyond 2^40 in {}", q.given.shape());
  }
  if (problem.kv_len > ForwardProblem::kMostPosition) {
    arguments.refuse<ShapeError>(k.name, "kv_len is beyond 2^60 in {}", k.given.shape());
  }
  std::int64_t count = 1;
  for (const std::int64_t extent : {problem.batch, problem.num_heads, problem.q_len, problem.kv_len}) {
    if (extent == 0) return;
    if (__builtin_mul_overflow(count, extent, &count)) {
      arguments.refuse<ShapeError>(q.name, "batch * num_heads * q_len * kv_len of q {} and k {} does not fit 63 bits",
                                   q.given.shape(), k.given.shape());
    }
  }
}

}  // namespace

kernels::Operand operand_of(const ConstTensorView& view) { return strided<kernels::Operand>(view); }

kernels::Result result_of(const TensorView& view) { return strided<kernels::Result>(view); }

void resolve_operands(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                      const OperandForm& form, Arguments& arguments, ForwardProblem& problem) {
  const Tensor4 q4 = read4(arguments, "q", q, form.q);
  resolve_q(arguments, q4, problem);
  const Tensor4 k4 = read4(arguments, form.k_name, k, form.k);
  resolve_k(arguments, k4, q4, form, problem);
  check_sizes(arguments, q4, k4, problem);
  const Tensor4 v4 = read4(arguments, form.v_name, v, form.v);
  resolve_v(arguments, v4, k4, form, problem);
}

void check_out(std::string_view name, const ConstTensorView& given, const ConstTensorView& lifted,
               const OperandForm& form, const Arguments& arguments, const ForwardProblem& problem) {
  if (given.dtype() != problem.dtype) {
    arguments.refuse<DtypeError>(name, "expected {} as in q, got {}", problem.dtype, given.dtype());
  }
  const Extents expected = form.ragged ? Extents{problem.q_len, problem.num_heads, problem.value_dim}
                                       : Extents{problem.batch, problem.num_heads, problem.q_len, problem.value_dim};
  arguments.expect_shape(name, given, lifted, expected, form.out.names);
}

void resolve_out(const TensorView& out, const OperandForm& form, Arguments& arguments, ForwardProblem& problem) {
  const TensorView written = arguments.written("out", out, form.out);
  check_out("out", out, written, form, arguments, problem);
  problem.out = result_of(by_head(written, form));
}

ForwardProblem validate(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                        const TensorView& out, const AttentionOptions& options, const AttentionOutputs& outputs) {
  Arguments arguments("qkv::attention");
  ForwardProblem problem;
  resolve_operands(q, k, v, kDenseForm, arguments, problem);
  resolve_out(out, kDenseForm, arguments, problem);
  resolve_options(options, arguments, problem);
  resolve_outputs(outputs, kDenseForm.row, arguments, problem);
  return problem;
}

}  // namespace qkv::attention_detail
