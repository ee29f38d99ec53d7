#ifndef QKV_QKV_H_
#define QKV_QKV_H_

/// The C interface: the same operations, options and rules as the C++ headers, in plain C99.
///
/// Every structure begins with struct_size, the size that the caller compiled with. A structure from an older header is
/// shorter: the members it lacks have their defaults. One from a newer header is longer: it works as long as the
/// members that this library does not know are 0. qkv_dense() and the *_init functions below set struct_size and every
/// default; a null pointer as a member means "not given".
///
/// Functions that can fail return a qkv_status; qkv_last_error() has the text. No C++ exception leaves the library.

#include <stddef.h>
#include <stdint.h>

#include "qkv/export.h"

#ifdef __cplusplus
#define QKV_ZEROED_ \
  {                 \
  }
extern "C" {
#else
#define QKV_ZEROED_ {0}
#endif

// Tells GCC that memory handed to qkv_dense() need not be initialised: it may be an output.
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
#define QKV_ADDRESS_ONLY_ __attribute__((access(none, 1)))
#else
#define QKV_ADDRESS_ONLY_
#endif

/// Most axes that a tensor can have.
#define QKV_MAX_RANK 8

/// What every function that can fail returns; qkv_last_error() has the text.
typedef enum qkv_status {
  QKV_OK = 0,
  QKV_ERROR_SHAPE = 1,          ///< ranks, extents or strides that do not fit together
  QKV_ERROR_DTYPE = 2,          ///< an element type that is not taken, or two that must agree and do not
  QKV_ERROR_VALUE = 3,          ///< a number out of its range, a null argument, an unknown name
  QKV_ERROR_OUT_OF_MEMORY = 4,  ///< nothing was computed; outputs hold anything
  QKV_ERROR_INTERNAL = 5        ///< a fault of the library; outputs hold anything
} qkv_status;

/// Element types; attention takes the last four.
typedef enum qkv_dtype {
  QKV_BOOL = 0,  ///< one byte, 0 or 1
  QKV_UINT8 = 1,
  QKV_INT8 = 2,
  QKV_INT16 = 3,
  QKV_INT32 = 4,
  QKV_INT64 = 5,
  QKV_FLOAT16 = 6,
  QKV_BFLOAT16 = 7,
  QKV_FLOAT32 = 8,
  QKV_FLOAT64 = 9
} qkv_dtype;

/// Which logits an output holds.
typedef enum qkv_logits_stage {
  QKV_LOGITS_SCALED = 0,  ///< scale * Q K^T, of every key, hidden or not
  QKV_LOGITS_CAPPED = 1,  ///< after softcap, of every key, hidden or not
  QKV_LOGITS_MASKED = 2   ///< after bias and ALiBi; -inf at hidden keys: what softmax sees (sinks apart)
} qkv_logits_stage;

/// A look at the caller's memory; nothing is owned or copied. Operands are only read, whatever the type of `data` says.
typedef struct qkv_tensor {
  size_t struct_size;             ///< sizeof of this structure; how the library knows the version of the header
  void* data;                     ///< the element at index 0 of every axis; may be null where an extent is 0
  int32_t dtype;                  ///< a qkv_dtype
  int32_t rank;                   ///< 0 .. QKV_MAX_RANK
  int64_t shape[QKV_MAX_RANK];    ///< rank extents, >= 0
  int64_t strides[QKV_MAX_RANK];  ///< in elements; 0 and negative ones are legal
} qkv_tensor;

/// A dense row-major tensor: `qkv_dense(q, QKV_FLOAT32, 4, shape)`. A rank or an extent out of range is reported by the
/// function that takes the tensor.
QKV_ADDRESS_ONLY_
static inline qkv_tensor qkv_dense(const void* data, int32_t dtype, int32_t rank, const int64_t* shape) {
  qkv_tensor tensor = QKV_ZEROED_;
  uint64_t stride = 1;
  int32_t axis = rank < QKV_MAX_RANK ? rank : QKV_MAX_RANK;
  tensor.struct_size = sizeof(tensor);
#ifdef __cplusplus
  tensor.data = const_cast<void*>(data);
#else
  tensor.data = (void*)(uintptr_t)data;
#endif
  tensor.dtype = dtype;
  tensor.rank = rank;
  while (axis-- > 0) {
    tensor.shape[axis] = shape[axis];
    tensor.strides[axis] = (int64_t)stride;
    stride *= shape[axis] > 0 ? (uint64_t)shape[axis] : 1;
  }
  return tensor;
}

/// What attention computes beyond softmax(scale Q K^T) V. All members 0 but struct_size: the defaults.
typedef struct qkv_attention_options {
  size_t struct_size;   ///< sizeof of this structure; how the library knows the version of the header
  const double* scale;  ///< multiplies Q K^T; null = 1/sqrt(head_dim); any finite number, 0 and negative ones included
  double softcap;       ///< c > 0 turns each scaled logit x into c * tanh(x / c), before bias and masks; 0 is off
  int32_t causal;       ///< not 0: key j is visible to the row at position p only if j <= p
  /// Row i of q is at position query_offset + i, key j at j; may be negative. Null = filled - q_len, where filled is
  /// kv_lens[b] if given, else kv_len: the last row is at the last filled key (bottom-right alignment).
  const int64_t* query_offset;
  const qkv_tensor* query_offsets;  ///< instead, one per batch: int32 or int64, shape [batch]
  /// Row at position p sees keys p - window_left <= j <= p + window_right, both ends included; null = unbounded.
  const int64_t* window_left;
  const int64_t* window_right;  ///< neither side may be below 0
  const qkv_tensor* mask;       ///< bool, 1 = attend; broadcasts onto [batch, num_heads, q_len, kv_len]
  /// Added to the logits; q's dtype, or float32 beside 16 bits, as sinks and slopes; broadcasts like mask; -inf hides.
  const qkv_tensor* bias;
  const qkv_tensor* sinks;         ///< a logit per head without a value: [num_heads] or [batch, num_heads]
  const qkv_tensor* alibi_slopes;  ///< adds -slope * |p - j|: [num_heads] or [batch, num_heads]
  const qkv_tensor* kv_lens;       ///< hides keys at kv_lens[b] and beyond: int32 or int64, [batch], in 0..kv_len
  /// Probability of a weight to become 0, after softmax; the others are divided by 1 - p. From 0, off, to 1: out is 0.
  double dropout_p;
  const uint64_t* dropout_seed;  ///< of which weights those are; needed where dropout_p > 0
} qkv_attention_options;

/// The defaults, with struct_size set.
static inline qkv_attention_options qkv_attention_options_init(void) {
  qkv_attention_options options = QKV_ZEROED_;
  options.struct_size = sizeof(options);
  return options;
}

/// What attention can write beyond out; each tensor is written if given. float32, or float64 where q is float64; any
/// strides. A row that sees nothing has lse -inf (the sink's logit, where there is one) and statistics -inf, -inf, -1,
/// 0, 0, 0; hidden keys have weight exactly 0.
typedef struct qkv_attention_outputs {
  size_t struct_size;     ///< sizeof of this structure; how the library knows the version of the header
  const qkv_tensor* lse;  ///< ln(sum of exp of the logits, sinks included): [batch, num_heads, q_len]
  /// The softmax weights of chosen heads and rows: [batch, number of heads, number of rows, kv_len].
  const qkv_tensor* weights;
  const int64_t* weight_heads;  ///< query heads, in the order wanted; null = all
  size_t num_weight_heads;      ///< of weight_heads
  const int64_t* weight_rows;   ///< rows of q, in the order wanted; null = all
  size_t num_weight_rows;       ///< of weight_rows
  const qkv_tensor* logits;     ///< the logits at logits_stage: [batch, num_heads, q_len, kv_len]
  int32_t logits_stage;         ///< a qkv_logits_stage
  /// The statistics, one number a row, each [batch, num_heads, q_len].
  const qkv_tensor* max_raw;     ///< largest scale * Q K^T among the visible keys; NaN if a logit is
  const qkv_tensor* max_logit;   ///< largest logit among the visible keys, after softcap and bias
  const qkv_tensor* max_key;     ///< int64: the key of max_logit; the lowest, where several share it
  const qkv_tensor* max_weight;  ///< largest weight
  const qkv_tensor* entropy;     ///< -sum w ln w over the keys, in nats
  const qkv_tensor* key_weight;  ///< sum of the weights of stats_keys
  const int64_t* stats_keys;     ///< keys for key_weight, each in 0..kv_len-1 and listed once
  size_t num_stats_keys;         ///< of stats_keys
} qkv_attention_outputs;

/// No output beyond out, with struct_size set.
static inline qkv_attention_outputs qkv_attention_outputs_init(void) {
  qkv_attention_outputs outputs = QKV_ZEROED_;
  outputs.struct_size = sizeof(outputs);
  return outputs;
}

/// out = softmax(masked(softcap(scale * Q K^T) + bias)) V, per batch and head. qkv/attention.h has the whole contract.
///
/// @param q        [batch, num_heads, q_len, head_dim]: float32, float64, float16 or bfloat16; any strides, as all
///                 operands
/// @param k        [batch, num_kv_heads, kv_len, head_dim]: q's dtype, or 16 bits beside a q of at most 32; num_heads %
///                 num_kv_heads == 0
/// @param v        [batch, num_kv_heads, kv_len, value_dim]: as k, whatever k has; value_dim is free
/// @param out      [batch, num_heads, q_len, value_dim], q's dtype; shares no element with an input
/// @param options  null = the defaults
/// @param outputs  null = out alone
/// @return QKV_OK, or the error of the first argument that does not fit, named in qkv_last_error()
QKV_API qkv_status qkv_attention(const qkv_tensor* q, const qkv_tensor* k, const qkv_tensor* v, const qkv_tensor* out,
                                 const qkv_attention_options* options, const qkv_attention_outputs* outputs);

/// The same contract in scalar double precision, one row at a time: slow, and obvious.
QKV_API qkv_status qkv_reference_attention(const qkv_tensor* q, const qkv_tensor* k, const qkv_tensor* v,
                                           const qkv_tensor* out, const qkv_attention_options* options,
                                           const qkv_attention_outputs* outputs);

/// Where the sequences of a ragged batch lie, and how each of them attends.
typedef struct qkv_varlen_options {
  size_t struct_size;  ///< sizeof of this structure; how the library knows the version of the header
  /// Cumulative lengths: int32 or int64, [num_segments + 1], from 0 to total_q. Segment s has the rows
  /// cu_seqlens_q[s] .. cu_seqlens_q[s + 1] - 1 of q; a segment may be empty.
  const qkv_tensor* cu_seqlens_q;
  const qkv_tensor* cu_seqlens_k;  ///< the same of k and v, from 0 to total_kv
  /// Of every segment, with positions counted from its first key; batch is the number of segments. Null = the defaults;
  /// mask, bias and kv_lens are refused.
  const qkv_attention_options* attention;
} qkv_varlen_options;

/// The defaults, with struct_size set; the lengths have none.
static inline qkv_varlen_options qkv_varlen_options_init(void) {
  qkv_varlen_options options = QKV_ZEROED_;
  options.struct_size = sizeof(options);
  return options;
}

/// Attention within each sequence of a batch of unequal lengths that lie one after the other, without padding: as if
/// qkv_attention were called for each segment, with the same bits.
/// @param q        [total_q, num_heads, head_dim]
/// @param k        [total_kv, num_kv_heads, head_dim]
/// @param v        [total_kv, num_kv_heads, value_dim]
/// @param out      [total_q, num_heads, value_dim]
/// @param outputs  null = out alone; lse and statistics are [num_heads, total_q], weights and logits are refused
QKV_API qkv_status qkv_attention_varlen(const qkv_tensor* q, const qkv_tensor* k, const qkv_tensor* v,
                                        const qkv_tensor* out, const qkv_varlen_options* options,
                                        const qkv_attention_outputs* outputs);

/// What a call of attention was given.
typedef struct qkv_attention_inputs {
  size_t struct_size;   ///< sizeof of this structure; how the library knows the version of the header
  const qkv_tensor* q;  ///< [batch, num_heads, q_len, head_dim]
  const qkv_tensor* k;  ///< [batch, num_kv_heads, kv_len, head_dim]
  const qkv_tensor* v;  ///< [batch, num_kv_heads, kv_len, value_dim]
} qkv_attention_inputs;

/// With struct_size set; every member is to be given.
static inline qkv_attention_inputs qkv_attention_inputs_init(void) {
  qkv_attention_inputs inputs = QKV_ZEROED_;
  inputs.struct_size = sizeof(inputs);
  return inputs;
}

/// What it left behind, all that the way back needs.
typedef struct qkv_attention_saved {
  size_t struct_size;     ///< sizeof of this structure; how the library knows the version of the header
  const qkv_tensor* out;  ///< [batch, num_heads, q_len, value_dim], q's dtype
  const qkv_tensor* lse;  ///< [batch, num_heads, q_len]; float32 (float64 where q is float64)
} qkv_attention_saved;

/// With struct_size set; every member is to be given.
static inline qkv_attention_saved qkv_attention_saved_init(void) {
  qkv_attention_saved saved = QKV_ZEROED_;
  saved.struct_size = sizeof(saved);
  return saved;
}

/// Gradients of a number L, the loss: what is known of attention's results, and what is wanted of its arguments.
typedef struct qkv_attention_gradients {
  size_t struct_size;              ///< sizeof of this structure; how the library knows the version of the header
  const qkv_tensor* grad_out;      ///< dL/d out, to be given: its shape, q's dtype; any strides, 0 too
  const qkv_tensor* grad_lse;      ///< dL/d lse, or null: the shape and dtype of lse
  const qkv_tensor* grad_entropy;  ///< dL/d entropy, or null: the same
  /// dL/dq, dL/dk and dL/dv, each written unless null: the shape of its argument, and its dtype or float32 beside 16
  /// bits. They share no element with an input.
  const qkv_tensor* grad_q;
  const qkv_tensor* grad_k;
  const qkv_tensor* grad_v;
  const qkv_tensor* grad_bias;   ///< dL/d bias: the shape of the bias, summed over the axes in which that repeats
  const qkv_tensor* grad_sinks;  ///< dL/d sinks: the shape of the sinks, summed over the batch where they have none
  int32_t accumulate;            ///< not 0: adds to what the gradients hold instead of overwriting it
} qkv_attention_gradients;

/// Nothing wanted, with struct_size set.
static inline qkv_attention_gradients qkv_attention_gradients_init(void) {
  qkv_attention_gradients gradients = QKV_ZEROED_;
  gradients.struct_size = sizeof(gradients);
  return gradients;
}

/// Gradients of qkv_attention, by what it was given and what it left. qkv/backward.h has the formulas and the rules.
/// @param options  those of the call of attention; null = the defaults
QKV_API qkv_status qkv_attention_backward(const qkv_attention_inputs* inputs, const qkv_attention_saved* saved,
                                          const qkv_attention_gradients* gradients,
                                          const qkv_attention_options* options);

/// The same contract in scalar double precision: slow, and obvious.
QKV_API qkv_status qkv_reference_attention_backward(const qkv_attention_inputs* inputs,
                                                    const qkv_attention_saved* saved,
                                                    const qkv_attention_gradients* gradients,
                                                    const qkv_attention_options* options);

/// Gradients of qkv_attention_varlen: q, k, v and out as that has them, lse and its gradients [num_heads, total_q].
/// A segment without queries leaves gradients 0 at its keys; one without keys at its queries.
QKV_API qkv_status qkv_attention_varlen_backward(const qkv_attention_inputs* inputs, const qkv_attention_saved* saved,
                                                 const qkv_attention_gradients* gradients,
                                                 const qkv_varlen_options* options);

/// Joins attention over disjoint sets of keys into attention over their union, left to right:
/// lse = ln sum_i exp(lse_i), out = sum_i exp(lse_i - lse) out_i. Where every part is empty (lse -inf) the result is
/// empty: out 0, lse -inf. Sinks enter once, here: compute the parts without them.
/// @param outs       num_parts tensors [batch, num_heads, q_len, value_dim], all of one dtype (of those that attention
///                   takes) and shape
/// @param lses       num_parts tensors [batch, num_heads, q_len], natural logarithm
/// @param num_parts  at least 1
/// @param out        the parts' shape and dtype; shares no element with them
/// @param lse        null, or written
/// @param sinks      null, or [num_heads] or [batch, num_heads]
QKV_API qkv_status qkv_merge_states(const qkv_tensor* const* outs, const qkv_tensor* const* lses, size_t num_parts,
                                    const qkv_tensor* out, const qkv_tensor* lse, const qkv_tensor* sinks);

/// Which of kv_len padded positions are real: mask[b][0][0][j] = j < lengths[b].
/// @param lengths  num_lengths numbers, one per batch, each in 0..kv_len
/// @param mask     bool [num_lengths, 1, 1, kv_len], any strides, written; its shape says kv_len
QKV_API qkv_status qkv_padding_mask(const int64_t* lengths, size_t num_lengths, const qkv_tensor* mask);

/// mask[i][j] = j <= query_offset + i.
/// @param query_offset  null = kv_len - q_len (bottom-right), as in attention
/// @param mask          bool [q_len, kv_len], any strides, written
QKV_API qkv_status qkv_causal_mask(const int64_t* query_offset, const qkv_tensor* mask);

/// The text of the last call on this thread that failed; "" before the first. Valid until the next failure on this
/// thread.
QKV_API const char* qkv_last_error(void);

/// "QKV_ERROR_SHAPE", ...; "unknown status" for a number that is none.
QKV_API const char* qkv_status_name(qkv_status status);

/// "0.1.0"
QKV_API const char* qkv_version(void);

/// Threads that one call may use, the caller's among them; >= 1. The default, in this order: QKV_NUM_THREADS,
/// OMP_NUM_THREADS, the CPUs that this process may run on.
QKV_API qkv_status qkv_set_num_threads(int num_threads);
/// 0 on failure (an unreadable QKV_NUM_THREADS).
QKV_API int qkv_num_threads(void);

/// A name of qkv_available_target(), or "" to go back to the best. Set it while no call is running.
QKV_API qkv_status qkv_set_target(const char* name);
/// The instruction set in use; null on failure (an unknown name in QKV_TARGET). The text is valid until this thread
/// calls the function again.
QKV_API const char* qkv_target(void);
/// The targets that this build and this CPU both have, best first; null past the last. The text is valid until this
/// thread calls the function again.
QKV_API const char* qkv_available_target(size_t index);

/// One piece of work: call it as task(task_context, index).
typedef void (*qkv_task)(void* task_context, size_t index);

/// Runs task(task_context, 0) .. task(task_context, count - 1), each exactly once, in any order and on any thread, and
/// returns when all are done. task_context is gone then: a task must not be called after that.
typedef void (*qkv_executor)(void* context, size_t count, qkv_task task, void* task_context);

/// Hands parallel work to the embedder's own threads instead of the library's; null takes it back. qkv_num_threads()
/// still says into how many pieces work is cut. `context` must outlive its use. Set it while no call is running.
QKV_API qkv_status qkv_set_executor(qkv_executor executor, void* context);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // QKV_QKV_H_
