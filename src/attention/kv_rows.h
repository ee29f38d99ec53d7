#ifndef QKV_SRC_ATTENTION_KV_ROWS_H_
#define QKV_SRC_ATTENTION_KV_ROWS_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "qkv/tensor.h"

namespace qkv::attention_detail {

/// Consecutive slots of an entry: a sequence or a page.
struct KVSlots {
  std::int64_t entry = 0;
  std::int64_t slot = 0;
  std::int64_t count = 0;
};

/// Rows on their way into a cache: rounded once. Takes its memory when it is made, so that nothing fails once rows are
/// being written.
class KVRounding {
 public:
  KVRounding() = default;
  /// For rows of [.., .., .., columns] that go into slots of a dtype.
  KVRounding(const ConstTensorView& rows, Dtype to);

  /// One row. @return the scale of an int8 slot
  float operator()(const void* from, void* to) noexcept;

 private:
  void narrow_doubles(const double* from, void* to) const;
  float narrowed(const float* from, void* to) const;

  std::int64_t columns_ = 0;
  std::int64_t stride_ = 1;
  Dtype from_ = Dtype::kFloat32;
  Dtype to_ = Dtype::kFloat32;
  bool as_they_are_ = true;
  bool through_doubles_ = false;
  std::vector<double> doubles_;
  std::vector<float> floats_;
};

/// The keys, or the values, of a cache: [entry, kv_head, slot, column] of one dtype, int8 with a scale a slot.
class KVRows {
 public:
  KVRows() = default;
  KVRows(const Extents& shape, Dtype dtype);
  /// Takes over what was read from a file; `scales` is empty unless the numbers are int8.
  KVRows(Tensor numbers, Tensor scales) : numbers_(std::move(numbers)), scales_(std::move(scales)) {}

  /// Rounds rows [first, first + to.count) of a sequence, [num_kv_heads, n, columns], into slots.
  void write(const KVSlots& to, const ConstTensorView& rows, std::int64_t first, KVRounding& round) noexcept;
  /// Copies slots from the other, which has the same heads, columns and dtype; `to` has as many.
  void copy(const KVSlots& to, const KVRows& other, const KVSlots& from);
  /// Where numbers of the first head of slots lie, and how many elements it is from head to head.
  struct Place {
    char* numbers = nullptr;
    std::int64_t head_stride = 0;
  };
  Place place_of(const KVSlots& slots) noexcept;
  ConstTensorView numbers() const { return numbers_.view(); }
  std::optional<ConstTensorView> scales() const;
  std::int64_t nbytes() const noexcept;

 private:
  std::int64_t row(std::int64_t entry, std::int64_t head, std::int64_t slot) const;
  std::int64_t row_bytes() const;

  Tensor numbers_;
  Tensor scales_;  ///< of int8 alone
};

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_KV_ROWS_H_
