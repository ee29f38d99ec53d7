#ifndef QKV_PYTHON_BINDINGS_ATTENTION_CALL_H_
#define QKV_PYTHON_BINDINGS_ATTENTION_CALL_H_

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bindings/array.h"
#include "bindings/attention_arguments.h"
#include "qkv/attention.h"

namespace qkv::python {

/// What the functions of attention share: q, k, v and the options as views, results as new arrays, and the answer. Each
/// function says of what shape its results are.
class AttentionCall {
 public:
  AttentionCall(const AttentionCall&) = delete;
  AttentionCall& operator=(const AttentionCall&) = delete;

 protected:
  using MaybeArray = std::optional<Array>;

  /// Numbers of one kind for each batch: an array of the caller, or values given as plain ints.
  struct Indices {
    MaybeArray array;
    std::vector<std::int64_t> values;

    ConstTensorView view() const { return qkv::view(values.data(), {static_cast<std::int64_t>(values.size())}); }
  };

  enum class Keys : std::uint8_t { kArrays, kCache };  ///< where k and v are

  /// Reads q, k, v and every option but kv_lens and query_offset, which may be one int for all batches.
  explicit AttentionCall(const Arguments& arguments, Keys keys = Keys::kArrays);
  ~AttentionCall() = default;

  const Array& q() const noexcept { return q_; }
  const Array& k() const noexcept { return *k_; }
  const Array& v() const noexcept { return *v_; }
  nb::handle argument(Argument which) const noexcept { return arguments_[which]; }

  /// kv_lens and query_offset, where an int stands for `batch` of them.
  void read_lengths(std::int64_t batch);
  /// From an array, or from anything that gives ints in an order.
  ConstTensorView read_indices(nb::handle object, const char* name, Indices& indices) const;

  /// New arrays for what is asked for, or the caller's out. `out_shape` and `row_shape` are those of out and lse.
  void make_out(std::span<const std::int64_t> out_shape);
  void make_rows(std::span<const std::int64_t> row_shape, int rank);
  void make(MaybeArray& result, std::span<const std::int64_t> shape, Dtype dtype) const;

  /// Whether other threads would gain less by the lock than handing it over costs. Chosen weights may repeat a row as
  /// often as they like.
  bool is_tiny() const;

  /// Without the lock, unless the call is tiny.
  template <class Function>
  nb::object run(const Function& function) const {
    {
      std::optional<nb::gil_scoped_release> unlocked;
      if (!is_tiny()) unlocked.emplace();
      function();
    }
    return answer();
  }

  static constexpr std::size_t kNumStats = 6;

  AttentionOptions options_;
  AttentionOutputs outputs_;
  MaybeArray out_, lse_, logits_, weights_;

 private:
  nb::handle of_kind(nb::handle object, const char* name) const;
  void check_operands() const;
  void read_numbers();
  void read_arrays();
  ConstTensorView read_per_batch(Argument argument, const char* name, std::int64_t batch, Indices& indices) const;
  void read_option(Argument argument, const Parameter& parameter, MaybeArray& array,
                   std::optional<ConstTensorView>& option) const;
  void make_stats(std::span<const std::int64_t> row_shape, int rank);
  nb::object answer() const;

  const Arguments& arguments_;
  Kind kind_;
  Array q_;
  MaybeArray k_, v_;  ///< unless a cache has them
  MaybeArray mask_, bias_, sinks_, alibi_slopes_;
  Indices kv_lens_, query_offset_;
  std::array<MaybeArray, kNumStats> stats_;
};

}  // namespace qkv::python

#endif  // QKV_PYTHON_BINDINGS_ATTENTION_CALL_H_
