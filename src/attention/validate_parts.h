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
  bool ragged;  ///< [length, heads, dim] instead of [batch, heads, length, dim]
  bool kept;    ///< k and v are a cache's, which may be int8
  bool paged;   ///< their first axis is pages instead of batch
  std::string_view k_name, v_name;
  Axes q, k, v, out;
  Axes row;  ///< of lse and statistics
  std::string_view kv_len;
  std::string_view scale_axes = {};  ///< of int8 k and v
};
inline constexpr OperandForm kDenseForm = {false,
                                           false,
                                           false,
                                           "k",
                                           "v",
                                           {"[batch, num_heads, q_len, head_dim]", 1, 4},
                                           {"[batch, num_kv_heads, kv_len, head_dim]", 1, 4},
                                           {"[batch, num_kv_heads, kv_len, value_dim]", 1, 4},
                                           {"[batch, num_heads, q_len, value_dim]", 1, 4},
                                           {"[batch, num_heads, q_len]", 1, 3},
                                           "kv_len"};
inline constexpr OperandForm kRaggedForm = {true,
                                            false,
                                            false,
                                            "k",
                                            "v",
                                            {"[total_q, num_heads, head_dim]", 3, 3},
                                            {"[total_kv, num_kv_heads, head_dim]", 3, 3},
                                            {"[total_kv, num_kv_heads, value_dim]", 3, 3},
                                            {"[total_q, num_heads, value_dim]", 3, 3},
                                            {"[num_heads, total_q]", 2, 2},
                                            "total_kv"};

inline constexpr OperandForm kCacheForm = {false,
                                           true,
                                           false,
                                           "kv.k",
                                           "kv.v",
                                           {"[batch, num_heads, q_len, head_dim]", 1, 4},
                                           {"[batch, num_kv_heads, slots, head_dim]", 4, 4},
                                           {"[batch, num_kv_heads, slots, value_dim]", 4, 4},
                                           {"[batch, num_heads, q_len, value_dim]", 1, 4},
                                           {"[batch, num_heads, q_len]", 1, 3},
                                           "slots",
                                           "[batch, num_kv_heads, slots]"};
inline constexpr OperandForm kPagedForm = {false,
                                           true,
                                           true,
                                           "kv.k",
                                           "kv.v",
                                           {"[batch, num_heads, q_len, head_dim]", 1, 4},
                                           {"[num_pages, num_kv_heads, page_size, head_dim]", 4, 4},
                                           {"[num_pages, num_kv_heads, page_size, value_dim]", 4, 4},
                                           {"[batch, num_heads, q_len, value_dim]", 1, 4},
                                           {"[batch, num_heads, q_len]", 1, 3},
                                           "page_size",
                                           "[num_pages, num_kv_heads, page_size]"};

/// Each checks its share of a call and fills it into the problem: first the operands, which say the sizes. A ragged call
/// is one batch of the total lengths at first, and kv_len of a cache its slots.
void resolve_operands(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                      const TensorView& out, const OperandForm& form, Arguments& arguments,
                      kernels::ForwardProblem& problem);
void resolve_options(const AttentionOptions& options, Arguments& arguments, kernels::ForwardProblem& problem);
void resolve_outputs(const AttentionOutputs& outputs, const Axes& row_axes, Arguments& arguments,
                     kernels::ForwardProblem& problem);

/// int32 or int64, as many as `expected` says: kv_lens, offsets, cumulative lengths.
std::vector<std::int64_t> read_integers(std::string_view name, const ConstTensorView& given, std::string_view axis,
                                        std::optional<std::int64_t> expected, Arguments& arguments);

/// Views of exactly four, three or two axes as [batch, head, row, column].
kernels::Operand operand_of(const ConstTensorView& view);
kernels::Result result_of(const TensorView& view);

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_VALIDATE_PARTS_H_
