#ifndef QKV_PYTHON_BINDINGS_ATTENTION_CALL_H_
#define QKV_PYTHON_BINDINGS_ATTENTION_CALL_H_

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "bindings/attention_operands.h"

namespace qkv::python {

/// What the functions of attention share beside their operands: results as new arrays, and the answer. Each function
/// says of what shape its results are.
class AttentionCall : public AttentionOperands {
 protected:
  using AttentionOperands::AttentionOperands;
  ~AttentionCall() = default;

  /// New arrays for what is asked for, or the caller's out. `out_shape` and `row_shape` are those of out and lse.
  void make_out(std::span<const std::int64_t> out_shape);
  void make_rows(std::span<const std::int64_t> row_shape, int rank);

  /// Chosen weights may repeat a row as often as they like: no call that has some is tiny.
  template <class Function>
  nb::object run(const Function& function) const {
    compute(is_tiny() && !outputs_.weights, function);
    return answer();
  }

  static constexpr std::size_t kNumStats = 6;

  AttentionOutputs outputs_;
  MaybeArray out_, lse_, logits_, weights_;

 private:
  void make_stats(std::span<const std::int64_t> row_shape, int rank);
  nb::object answer() const;

  std::array<MaybeArray, kNumStats> stats_;
};

}  // namespace qkv::python

#endif  // QKV_PYTHON_BINDINGS_ATTENTION_CALL_H_
