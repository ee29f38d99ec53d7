#ifndef QKV_SRC_ATTENTION_VALIDATE_PARTS_H_
#define QKV_SRC_ATTENTION_VALIDATE_PARTS_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "attention/arguments.h"
#include "kernels/forward_problem.h"
#include "qkv/attention.h"

namespace qkv::attention_detail {

/// How the operands of an entry point lie, and what their axes are called.
struct OperandForm {
  bool ragged = false;  ///< [length, heads, dim] instead of [batch, heads, length, dim]
  bool kept = false;    ///< k and v are a cache's, which may be int8
  bool paged = false;   ///< their first axis is pages instead of batch
  std::string_view k_name = "k";
  std::string_view v_name = "v";
  Axes q = {"[batch, num_heads, q_len, head_dim]", 1, 4};
  Axes k = {"[batch, num_kv_heads, kv_len, head_dim]", 1, 4};
  Axes v = {"[batch, num_kv_heads, kv_len, value_dim]", 1, 4};
  Axes out = {"[batch, num_heads, q_len, value_dim]", 1, 4};
  Axes row = {"[batch, num_heads, q_len]", 1, 3};  ///< of lse and statistics
  std::string_view kv_len = "kv_len";
  std::string_view scale_axes = {};  ///< of int8 k and v
};
inline constexpr OperandForm kDenseForm = {};
inline constexpr OperandForm kRaggedForm = {.ragged = true,
                                            .q = {"[total_q, num_heads, head_dim]", 3, 3},
                                            .k = {"[total_kv, num_kv_heads, head_dim]", 3, 3},
                                            .v = {"[total_kv, num_kv_heads, value_dim]", 3, 3},
                                            .out = {"[total_q, num_heads, value_dim]", 3, 3},
                                            .row = {"[num_heads, total_q]", 2, 2},
                                            .kv_len = "total_kv"};
inline constexpr OperandForm kCacheForm = {.kept = true,
                                           .k_name = "kv.k",
                                           .v_name = "kv.v",
                                           .k = {"[batch, num_kv_heads, slots, head_dim]", 4, 4},
                                           .v = {"[batch, num_kv_heads, slots, value_dim]", 4, 4},
                                           .kv_len = "slots",
                                           .scale_axes = "[batch, num_kv_heads, slots]"};
inline constexpr OperandForm kPagedForm = {.kept = true,
                                           .paged = true,
                                           .k_name = "kv.k",
                                           .v_name = "kv.v",
                                           .k = {"[num_pages, num_kv_heads, page_size, head_dim]", 4, 4},
                                           .v = {"[num_pages, num_kv_heads, page_size, value_dim]", 4, 4},
                                           .kv_len = "page_size",
                                           .scale_axes = "[num_pages, num_kv_heads, page_size]"};

/// Each checks its share of a call and fills it into the problem: first the operands, which say the sizes. A ragged call
/// is one batch of the total lengths at first, and kv_len of a cache its slots.
void resolve_operands(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                      const OperandForm& form, Arguments& arguments, kernels::ForwardProblem& problem);
void resolve_out(const TensorView& out, const OperandForm& form, Arguments& arguments,
                 kernels::ForwardProblem& problem);
void resolve_options(const AttentionOptions& options, Arguments& arguments, kernels::ForwardProblem& problem);
void resolve_outputs(const AttentionOutputs& outputs, const Axes& row_axes, Arguments& arguments,
                     kernels::ForwardProblem& problem);

/// Refuses what has not the dtype and the shape of out. `lifted` has all axes of the form.
void check_out(std::string_view name, const ConstTensorView& given, const ConstTensorView& lifted,
               const OperandForm& form, const Arguments& arguments, const kernels::ForwardProblem& problem);

/// Refuses what is not a number a row of q: lse, statistics and their gradients.
void check_row(std::string_view name, const ConstTensorView& given, const ConstTensorView& lifted, const Axes& axes,
               const Arguments& arguments, const kernels::ForwardProblem& problem);

/// Refuses what is neither int32 nor int64.
void expect_integers(std::string_view name, const ConstTensorView& given, const Arguments& arguments);
/// An element of such a view, by its offset.
std::int64_t integer_at(const ConstTensorView& view, std::int64_t offset);

/// int32 or int64, as many as `expected` says: kv_lens, offsets, cumulative lengths.
std::vector<std::int64_t> read_integers(std::string_view name, const ConstTensorView& given, std::string_view axis,
                                        std::optional<std::int64_t> expected, Arguments& arguments);

/// [length, heads, dim] as [1, heads, length, dim].
template <class View>
View batched(const View& view) {
  return {view.data(),
          view.dtype(),
          {1, view.extent(1), view.extent(0), view.extent(2)},
          {0, view.stride(1), view.stride(0), view.stride(2)}};
}
/// A q, k, v, out or gradient of one, with all axes of its form, as [batch, heads, length, dim].
template <class View>
View by_head(const View& view, const OperandForm& form) {
  return form.ragged ? batched(view) : view;
}

/// Views of exactly four, three or two axes as [batch, head, row, column].
kernels::Operand operand_of(const ConstTensorView& view);
kernels::Result result_of(const TensorView& view);
/// [batch, num_heads, q_len], or [num_heads, q_len] of a ragged batch, as [batch, head, row].
template <class Strided>
Strided per_row(const Strided& view, const Axes& axes) {
  if (axes.most == 3) return view;
  return {view.data, view.dtype, 0, view.batch, view.head};
}

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_VALIDATE_PARTS_H_
