#ifndef QKV_PYTHON_BINDINGS_ATTENTION_OPERANDS_H_
#define QKV_PYTHON_BINDINGS_ATTENTION_OPERANDS_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bindings/array.h"
#include "bindings/attention_arguments.h"
#include "qkv/attention.h"
#include "qkv/varlen.h"

namespace qkv::python {

/// What all functions of attention are given, forward and backward: q, k, v and the options as views.
class AttentionOperands {
 public:
  AttentionOperands(const AttentionOperands&) = delete;
  AttentionOperands& operator=(const AttentionOperands&) = delete;

 protected:
  using MaybeArray = std::optional<Array>;

  enum class Keys : std::uint8_t { kArrays, kCache };  ///< where k and v are

  /// Reads q, k, v and every option but kv_lens and query_offset, which may be one int for all batches.
  explicit AttentionOperands(const Arguments& arguments, Keys keys = Keys::kArrays);
  ~AttentionOperands() = default;

  Kind kind() const noexcept { return kind_; }
  const Array& q() const noexcept { return q_; }
  const Array& k() const noexcept { return *k_; }
  const Array& v() const noexcept { return *v_; }
  const MaybeArray& bias() const noexcept { return bias_; }
  const MaybeArray& sinks() const noexcept { return sinks_; }
  nb::handle argument(Argument which) const noexcept { return arguments_[which]; }

  /// The object, where it is an array of q's kind.
  nb::handle of_kind(nb::handle object, const char* name) const;

  /// kv_lens and query_offset, where an int stands for `batch` of them.
  void read_lengths(std::int64_t batch);
  /// All options of a ragged batch; refuses what has no meaning there.
  VarlenOptions read_ragged(nb::handle cu_seqlens_q, nb::handle cu_seqlens_k);

  /// A new array of q's kind for a result.
  void make(MaybeArray& result, std::span<const std::int64_t> shape, Dtype dtype) const;

  /// Whether other threads would gain less by the lock than handing it over costs.
  bool is_tiny() const;

  /// Without the lock, unless the call is tiny.
  template <class Work>
  static void compute(bool tiny, const Work& work) {
    std::optional<nb::gil_scoped_release> unlocked;
    if (!tiny) unlocked.emplace();
    work();
  }

  AttentionOptions options_;

 private:
  /// Numbers of one kind for each batch: an array of the caller, or values given as plain ints.
  struct Indices {
    MaybeArray array;
    std::vector<std::int64_t> values;

    ConstTensorView view() const { return qkv::view(values.data(), {static_cast<std::int64_t>(values.size())}); }
  };

  void check_operands() const;
  void read_numbers();
  void read_arrays();
  /// From an array, or from anything that gives ints in an order.
  ConstTensorView read_indices(nb::handle object, const char* name, Indices& indices) const;
  ConstTensorView read_per_batch(Argument argument, const char* name, std::int64_t batch, Indices& indices) const;
  void read_option(Argument argument, const Parameter& parameter, MaybeArray& array,
                   std::optional<ConstTensorView>& option) const;

  const Arguments& arguments_;
  Kind kind_;
  Array q_;
  MaybeArray k_, v_;  ///< unless a cache has them
  MaybeArray mask_, bias_, sinks_, alibi_slopes_;
  Indices kv_lens_, query_offset_, cu_seqlens_q_, cu_seqlens_k_;
};

}  // namespace qkv::python

#endif  // QKV_PYTHON_BINDINGS_ATTENTION_OPERANDS_H_
