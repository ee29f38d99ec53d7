#include "c_api/convert.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace qkv::c_api {
namespace {

// The first version of each structure: nothing shorter was ever compiled. Of the next two every member has a default.
constexpr std::size_t kSmallestTensor = sizeof(qkv_tensor);
constexpr std::size_t kSmallestOptions = sizeof(std::size_t);
constexpr std::size_t kSmallestOutputs = sizeof(std::size_t);
constexpr std::size_t kSmallestVarlen = sizeof(qkv_varlen_options);

// The enumerations of both interfaces have the same numbers, so that a cast converts them.
template <class A, class B>
constexpr bool same(A a, B b) {
  return static_cast<int>(a) == static_cast<int>(b);
}
static_assert(QKV_MAX_RANK == kMaxRank);
static_assert(same(QKV_BOOL, Dtype::kBool) && same(QKV_UINT8, Dtype::kUInt8) && same(QKV_INT8, Dtype::kInt8) &&
              same(QKV_INT16, Dtype::kInt16) && same(QKV_INT32, Dtype::kInt32) && same(QKV_INT64, Dtype::kInt64) &&
              same(QKV_FLOAT16, Dtype::kFloat16) && same(QKV_BFLOAT16, Dtype::kBFloat16) &&
              same(QKV_FLOAT32, Dtype::kFloat32) && same(QKV_FLOAT64, Dtype::kFloat64));
static_assert(same(QKV_LOGITS_SCALED, LogitsStage::kScaled) && same(QKV_LOGITS_CAPPED, LogitsStage::kCapped) &&
              same(QKV_LOGITS_MASKED, LogitsStage::kMasked));

qkv_tensor read_tensor(const qkv_tensor* given, const char* name) {
  const qkv_tensor tensor = read_struct(given, kSmallestTensor, name);
  if (tensor.dtype < QKV_BOOL || tensor.dtype > QKV_FLOAT64) {
    raise<DtypeError>("{}: {} is no qkv_dtype", name, tensor.dtype);
  }
  if (tensor.rank < 0 || tensor.rank > QKV_MAX_RANK) {
    raise<ShapeError>("{}: expected a rank from 0 to {}, got {}", name, QKV_MAX_RANK, tensor.rank);
  }
  bool empty = false;
  for (int axis = 0; axis < tensor.rank; ++axis) {
    const std::int64_t extent = tensor.shape[axis];
    if (extent < 0) raise<ShapeError>("{}: extent {} of axis {} is negative", name, extent, axis);
    empty = empty || extent == 0;
  }
  if (tensor.data == nullptr && !empty) raise<ValueError>("{}: data is null", name);
  return tensor;
}

Extents extents(const std::int64_t* values, std::int32_t rank) {
  return Extents(std::span<const std::int64_t>(values, static_cast<std::size_t>(rank)));
}

std::optional<std::vector<std::int64_t>> optional_list(const std::int64_t* values, std::size_t count,
                                                       const char* name) {
  if (values == nullptr) {
    if (count != 0) raise<ValueError>("{} is null, but num_{} is {}", name, name, count);
    return {};
  }
  return std::vector<std::int64_t>(values, values + count);
}

QueryOffset query_offset(const qkv_attention_options& options) {
  if (options.query_offset != nullptr && options.query_offsets != nullptr) {
    throw ValueError("query_offset and query_offsets are both given, expected one of them");
  }
  if (options.query_offset != nullptr) return *options.query_offset;
  if (options.query_offsets != nullptr) return operand(options.query_offsets, "query_offsets");
  return {};
}

template <class T>
std::optional<T> optional_number(const T* number) {
  if (number == nullptr) return {};
  return *number;
}

std::optional<Weights> weights(const qkv_attention_outputs& outputs) {
  if (outputs.weights == nullptr) {
    if (outputs.weight_heads != nullptr || outputs.weight_rows != nullptr) {
      throw ValueError("weights is null, but weight_heads or weight_rows is given");
    }
    return {};
  }
  return Weights{.out = result(outputs.weights, "weights"),
                 .heads = optional_list(outputs.weight_heads, outputs.num_weight_heads, "weight_heads"),
                 .rows = optional_list(outputs.weight_rows, outputs.num_weight_rows, "weight_rows")};
}

std::optional<Logits> logits(const qkv_attention_outputs& outputs) {
  if (outputs.logits_stage < QKV_LOGITS_SCALED || outputs.logits_stage > QKV_LOGITS_MASKED) {
    raise<ValueError>("logits_stage: {} is no qkv_logits_stage", outputs.logits_stage);
  }
  if (outputs.logits == nullptr) return {};
  return Logits{.out = result(outputs.logits, "logits"), .stage = static_cast<LogitsStage>(outputs.logits_stage)};
}

Stats stats(const qkv_attention_outputs& outputs) {
  return {.max_raw = optional_result(outputs.max_raw, "max_raw"),
          .max_logit = optional_result(outputs.max_logit, "max_logit"),
          .max_key = optional_result(outputs.max_key, "max_key"),
          .max_weight = optional_result(outputs.max_weight, "max_weight"),
          .entropy = optional_result(outputs.entropy, "entropy"),
          .key_weight = optional_result(outputs.key_weight, "key_weight"),
          .keys = optional_list(outputs.stats_keys, outputs.num_stats_keys, "stats_keys")
                      .value_or(std::vector<std::int64_t>())};
}

}  // namespace

void require(const void* pointer, const char* name) {
  if (pointer == nullptr) raise<ValueError>("{} is null", name);
}

bool is_zero(const void* data, std::size_t size) noexcept {
  const auto* bytes = static_cast<const unsigned char*>(data);
  return std::all_of(bytes, bytes + size, [](unsigned char byte) { return byte == 0; });
}

ConstTensorView operand(const qkv_tensor* tensor, const char* name) { return result(tensor, name); }

TensorView result(const qkv_tensor* tensor, const char* name) {
  const qkv_tensor known = read_tensor(tensor, name);
  return {known.data, static_cast<Dtype>(known.dtype), extents(known.shape, known.rank),
          extents(known.strides, known.rank)};
}

std::optional<ConstTensorView> optional_operand(const qkv_tensor* tensor, const char* name) {
  if (tensor == nullptr) return {};
  return operand(tensor, name);
}

std::optional<TensorView> optional_result(const qkv_tensor* tensor, const char* name) {
  if (tensor == nullptr) return {};
  return result(tensor, name);
}

AttentionOptions attention_options(const qkv_attention_options* options) {
  if (options == nullptr) return {};
  const qkv_attention_options known = read_struct(options, kSmallestOptions, "options");
  return {.scale = optional_number(known.scale),
          .causal = known.causal != 0,
          .query_offset = query_offset(known),
          .window = {.left = optional_number(known.window_left), .right = optional_number(known.window_right)},
          .softcap = known.softcap,
          .mask = optional_operand(known.mask, "mask"),
          .bias = optional_operand(known.bias, "bias"),
          .sinks = optional_operand(known.sinks, "sinks"),
          .alibi_slopes = optional_operand(known.alibi_slopes, "alibi_slopes"),
          .kv_lens = optional_operand(known.kv_lens, "kv_lens"),
          .dropout = {.p = known.dropout_p, .seed = optional_number(known.dropout_seed)}};
}

AttentionOutputs attention_outputs(const qkv_attention_outputs* outputs) {
  if (outputs == nullptr) return {};
  const qkv_attention_outputs known = read_struct(outputs, kSmallestOutputs, "outputs");
  return {.lse = optional_result(known.lse, "lse"),
          .weights = weights(known),
          .logits = logits(known),
          .stats = stats(known)};
}

VarlenOptions varlen_options(const qkv_varlen_options* options) {
  const qkv_varlen_options known = read_struct(options, kSmallestVarlen, "options");
  return {.cu_seqlens_q = operand(known.cu_seqlens_q, "cu_seqlens_q"),
          .cu_seqlens_k = operand(known.cu_seqlens_k, "cu_seqlens_k"),
          .attention = attention_options(known.attention)};
}

}  // namespace qkv::c_api
