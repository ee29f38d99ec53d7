#include "bindings/attention_call.h"

#include <string>
#include <utility>

#include "base/text.h"
#include "bindings/arguments.h"
#include "bindings/text.h"
#include "qkv/error.h"

namespace qkv::python {

AttentionCall::AttentionCall(const Arguments& arguments, Keys keys)
    : arguments_(arguments), kind_(require_first_array(arguments[kQ], "q")), q_(arguments[kQ], {"q", kFloatDtypes}) {
  if (keys == Keys::kArrays) {
    k_.emplace(of_kind(arguments[kK], "k"), Parameter{"k", kFloatDtypes});
    v_.emplace(of_kind(arguments[kV], "v"), Parameter{"v", kFloatDtypes});
  }
  check_operands();
  read_numbers();
  read_arrays();
}

nb::handle AttentionCall::of_kind(nb::handle object, const char* name) const {
  require_kind(object, name, kind_, "q");
  return object;
}

bool AttentionCall::is_tiny() const {
  constexpr std::int64_t kMostElements = 64;  // of each array: at most 64 rows of 64 keys
  const auto tiny = [](const Array& array) { return array.has_at_most(kMostElements); };
  return k_ && tiny(q_) && tiny(*k_) && tiny(*v_) && !outputs_.weights;
}

// Results are made before the library looks at q, so what they are made from is checked here.
void AttentionCall::check_operands() const {
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

void AttentionCall::read_numbers() {
  options_.causal = to_flag(arguments_[kCausal], "causal");
  options_.window = to_window(arguments_[kWindow]);
  if (!arguments_[kScale].is_none()) options_.scale = to_double(arguments_[kScale], "scale");
  options_.softcap = to_double(arguments_[kSoftcap], "softcap");
  options_.dropout.p = to_double(arguments_[kDropout], "dropout");
  if (!arguments_[kSeed].is_none()) options_.dropout.seed = to_uint64(arguments_[kSeed], "seed");
}

void AttentionCall::read_arrays() {
  read_option(kMask, {"mask", "bool"}, mask_, options_.mask);
  read_option(kBias, {"bias", kFloatDtypes}, bias_, options_.bias);
  read_option(kSinks, {"sinks", kFloatDtypes}, sinks_, options_.sinks);
  read_option(kAlibiSlopes, {"alibi_slopes", kFloatDtypes}, alibi_slopes_, options_.alibi_slopes);
}

void AttentionCall::read_option(Argument argument, const Parameter& parameter, MaybeArray& array,
                                std::optional<ConstTensorView>& option) const {
  if (arguments_[argument].is_none()) return;
  option = array.emplace(of_kind(arguments_[argument], parameter.name), parameter).view();
}

void AttentionCall::read_lengths(std::int64_t batch) {
  if (!arguments_[kKvLens].is_none()) options_.kv_lens = read_per_batch(kKvLens, "kv_lens", batch, kv_lens_);
  const nb::handle offset = arguments_[kQueryOffset];
  if (offset.is_none()) return;
  if (array_type_of(offset).kind == Kind::kNone && PyIndex_Check(offset.ptr()) != 0) {
    options_.query_offset = to_int64(offset, "query_offset");
  } else {
    options_.query_offset = read_per_batch(kQueryOffset, "query_offset", batch, query_offset_);
  }
}

ConstTensorView AttentionCall::read_indices(nb::handle object, const char* name, Indices& indices) const {
  if (array_type_of(object).kind != Kind::kNone) {
    return indices.array.emplace(of_kind(object, name), Parameter{name, kIndexDtypes}).view();
  }
  indices.values = to_int64_list(object, name);
  return indices.view();
}

// One int stands for all batches.
ConstTensorView AttentionCall::read_per_batch(Argument argument, const char* name, std::int64_t batch,
                                              Indices& indices) const {
  const nb::handle object = arguments_[argument];
  if (array_type_of(object).kind != Kind::kNone) return read_indices(object, name, indices);
  indices.values = to_int64s(object, name);
  if (PyIndex_Check(object.ptr()) != 0) {
    indices.values.resize(static_cast<std::size_t>(batch), indices.values.front());
  }
  return indices.view();
}

void AttentionCall::make(MaybeArray& result, std::span<const std::int64_t> shape, Dtype dtype) const {
  result.emplace(new_array(kind_, shape, dtype), kResult, Array::Access::kNew);
}

void AttentionCall::make_out(std::span<const std::int64_t> out_shape) {
  if (arguments_[kOut].is_none()) {
    make(out_, out_shape, q_.dtype());
  } else {
    out_.emplace(of_kind(arguments_[kOut], "out"), Parameter{"out", kFloatDtypes}, Array::Access::kWrite);
  }
}

void AttentionCall::make_rows(std::span<const std::int64_t> row_shape, int rank) {
  if (to_flag(arguments_[kReturnLse], "return_lse")) {
    make(lse_, row_shape, stats_dtype(q_.dtype()));
    outputs_.lse = with_rank(lse_->view(), rank);
  }
  make_stats(row_shape, rank);
}

void AttentionCall::make_stats(std::span<const std::int64_t> row_shape, int rank) {
  if (!to_flag(arguments_[kReturnStats], "return_stats")) {
    if (!arguments_[kStatsKeys].is_none()) throw ValueError("stats_keys: given without return_stats=True");
    return;
  }
  Stats& stats = outputs_.stats.emplace();
  const std::array<std::optional<TensorView>*, kNumStats> members = {
      &stats.max_raw, &stats.max_logit, &stats.max_key, &stats.max_weight, &stats.entropy, &stats.key_weight};
  for (std::size_t i = 0; i < members.size(); ++i) {
    make(stats_[i], row_shape, members[i] == &stats.max_key ? Dtype::kInt64 : stats_dtype(q_.dtype()));
    *members[i] = with_rank(stats_[i]->view(), rank);
  }
  if (!arguments_[kStatsKeys].is_none()) stats.keys = to_int64s(arguments_[kStatsKeys], "stats_keys");
}

nb::object AttentionCall::answer() const {
  if (kind_ == Kind::kTorch && !arguments_[kOut].is_none()) torch_mark_written(out_->object());
  if (!lse_ && !logits_ && !weights_ && !outputs_.stats) return out_->object();
  nb::list results;
  for (const MaybeArray* array : {&out_, &lse_, &logits_, &weights_}) {
    if (*array) results.append((*array)->object());
  }
  if (outputs_.stats) {
    const nb::object structure = nb::module_::import_("qkv._types").attr("Stats");
    results.append(structure(stats_[0]->object(), stats_[1]->object(), stats_[2]->object(), stats_[3]->object(),
                             stats_[4]->object(), stats_[5]->object()));
  }
  return nb::tuple(results);
}

}  // namespace qkv::python
