#include "bindings/attention_operands.h"

#include <string>
#include <utility>

#include "base/text.h"
#include "bindings/arguments.h"
#include "bindings/text.h"
#include "qkv/error.h"

namespace qkv::python {

AttentionOperands::AttentionOperands(const Arguments& arguments, Keys keys)
    : arguments_(arguments), kind_(require_first_array(arguments[kQ], "q")), q_(arguments[kQ], {"q", kFloatDtypes}) {
  if (keys == Keys::kArrays) {
    k_.emplace(of_kind(arguments[kK], "k"), Parameter{"k", kFloatDtypes});
    v_.emplace(of_kind(arguments[kV], "v"), Parameter{"v", kFloatDtypes});
  }
  check_operands();
  read_numbers();
  read_arrays();
}

nb::handle AttentionOperands::of_kind(nb::handle object, const char* name) const {
  require_kind(object, name, kind_, "q");
  return object;
}

bool AttentionOperands::is_tiny() const {
  constexpr std::int64_t kMostElements = 64;  // of each array: at most 64 rows of 64 keys
  const auto tiny = [](const Array& array) { return array.has_at_most(kMostElements); };
  return k_ && tiny(q_) && tiny(*k_) && tiny(*v_);
}

// Results are made before the library looks at q, so what they are made from is checked here.
void AttentionOperands::check_operands() const {
  const Dtype dtype = q_.dtype();
  if (dtype != Dtype::kFloat32 && dtype != Dtype::kFloat64 && dtype != Dtype::kFloat16 && dtype != Dtype::kBFloat16) {
    raise_dtype({"q", kFloatDtypes}, std::string(name_of(dtype)),
                format_text("; convert it with {}", kind_ == Kind::kTorch ? ".float()" : ".astype(numpy.float32)"));
  }
  const Array* none = nullptr;
  for (const auto& [array, name] :
       {std::pair(&q_, "q"), std::pair(k_ ? &*k_ : none, "k"), std::pair(v_ ? &*v_ : none, "v")}) {
    if (array == nullptr) continue;
    if (array->rank() < 1 || array->rank() > 4) {
      throw ShapeError(format_text("{}: shape {}, expected 1 to 4 axes", name, to_string(array->view().shape())));
    }
  }
}

void AttentionOperands::read_numbers() {
  options_.causal = to_flag(arguments_[kCausal], "causal");
  options_.window = to_window(arguments_[kWindow]);
  if (!arguments_[kScale].is_none()) options_.scale = to_double(arguments_[kScale], "scale");
  options_.softcap = to_double(arguments_[kSoftcap], "softcap");
  options_.dropout.p = to_double(arguments_[kDropout], "dropout");
  if (!arguments_[kSeed].is_none()) options_.dropout.seed = to_uint64(arguments_[kSeed], "seed");
}

void AttentionOperands::read_arrays() {
  read_option(kMask, {"mask", "bool"}, mask_, options_.mask);
  read_option(kBias, {"bias", kFloatDtypes}, bias_, options_.bias);
  read_option(kSinks, {"sinks", kFloatDtypes}, sinks_, options_.sinks);
  read_option(kAlibiSlopes, {"alibi_slopes", kFloatDtypes}, alibi_slopes_, options_.alibi_slopes);
}

void AttentionOperands::read_option(Argument argument, const Parameter& parameter, MaybeArray& array,
                                    std::optional<ConstTensorView>& option) const {
  if (arguments_[argument].is_none()) return;
  option = array.emplace(of_kind(arguments_[argument], parameter.name), parameter).view();
}

void AttentionOperands::read_lengths(std::int64_t batch) {
  if (!arguments_[kKvLens].is_none()) options_.kv_lens = read_per_batch(kKvLens, "kv_lens", batch, kv_lens_);
  const nb::handle offset = arguments_[kQueryOffset];
  if (offset.is_none()) return;
  if (array_type_of(offset).kind == Kind::kNone && PyIndex_Check(offset.ptr()) != 0) {
    options_.query_offset = to_int64(offset, "query_offset");
  } else {
    options_.query_offset = read_per_batch(kQueryOffset, "query_offset", batch, query_offset_);
  }
}

ConstTensorView AttentionOperands::read_indices(nb::handle object, const char* name, Indices& indices) const {
  if (array_type_of(object).kind != Kind::kNone) {
    return indices.array.emplace(of_kind(object, name), Parameter{name, kIndexDtypes}).view();
  }
  indices.values = to_int64_list(object, name);
  return indices.view();
}

// One int stands for all batches.
ConstTensorView AttentionOperands::read_per_batch(Argument argument, const char* name, std::int64_t batch,
                                                  Indices& indices) const {
  const nb::handle object = arguments_[argument];
  if (array_type_of(object).kind != Kind::kNone) return read_indices(object, name, indices);
  indices.values = to_int64s(object, name);
  if (PyIndex_Check(object.ptr()) != 0) {
    indices.values.resize(static_cast<std::size_t>(batch), indices.values.front());
  }
  return indices.view();
}

void AttentionOperands::make(MaybeArray& result, std::span<const std::int64_t> shape, Dtype dtype) const {
  result.emplace(new_array(kind_, shape, dtype), kResult, Array::Access::kNew);
}

VarlenOptions AttentionOperands::read_ragged(nb::handle cu_seqlens_q, nb::handle cu_seqlens_k) {
  for (const auto& [operand, name] : {std::pair(&q(), "q"), std::pair(&k(), "k"), std::pair(&v(), "v")}) {
    if (operand->rank() == 3) continue;
    throw ShapeError(
        format_text("{}: shape {}, expected 3 axes [length, heads, dim]", name, to_string(operand->view().shape())));
  }
  if (!argument(kKvLens).is_none()) {
    throw ValueError("kv_lens: a ragged batch takes none: cu_seqlens_k says how long each segment is");
  }
  VarlenOptions varlen;
  varlen.cu_seqlens_q = read_indices(cu_seqlens_q, "cu_seqlens_q", cu_seqlens_q_);
  varlen.cu_seqlens_k = read_indices(cu_seqlens_k, "cu_seqlens_k", cu_seqlens_k_);
  read_lengths(varlen.cu_seqlens_q.rank() == 1 ? varlen.cu_seqlens_q.extent(0) - 1 : 0);
  varlen.attention = options_;
  return varlen;
}

}  // namespace qkv::python
