#include "bindings/attention_call.h"

#include "bindings/arguments.h"
#include "qkv/error.h"

namespace qkv::python {

void AttentionCall::make_out(std::span<const std::int64_t> out_shape) {
  if (argument(kOut).is_none()) {
    make(out_, out_shape, q().dtype());
  } else {
    out_.emplace(of_kind(argument(kOut), "out"), Parameter{"out", kFloatDtypes}, Array::Access::kWrite);
  }
}

void AttentionCall::make_rows(std::span<const std::int64_t> row_shape, int rank) {
  if (to_flag(argument(kReturnLse), "return_lse")) {
    make(lse_, row_shape, stats_dtype(q().dtype()));
    outputs_.lse = with_rank(lse_->view(), rank);
  }
  make_stats(row_shape, rank);
}

void AttentionCall::make_stats(std::span<const std::int64_t> row_shape, int rank) {
  if (!to_flag(argument(kReturnStats), "return_stats")) {
    if (!argument(kStatsKeys).is_none()) throw ValueError("stats_keys: given without return_stats=True");
    return;
  }
  Stats& stats = outputs_.stats.emplace();
  const std::array<std::optional<TensorView>*, kNumStats> members = {
      &stats.max_raw, &stats.max_logit, &stats.max_key, &stats.max_weight, &stats.entropy, &stats.key_weight};
  for (std::size_t i = 0; i < members.size(); ++i) {
    make(stats_[i], row_shape, members[i] == &stats.max_key ? Dtype::kInt64 : stats_dtype(q().dtype()));
    *members[i] = with_rank(stats_[i]->view(), rank);
  }
  if (!argument(kStatsKeys).is_none()) stats.keys = to_int64s(argument(kStatsKeys), "stats_keys");
}

nb::object AttentionCall::answer() const {
  if (kind() == Kind::kTorch && !argument(kOut).is_none()) torch_mark_written(out_->object());
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
