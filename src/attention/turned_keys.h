#ifndef QKV_SRC_ATTENTION_TURNED_KEYS_H_
#define QKV_SRC_ATTENTION_TURNED_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "attention/rope_rows.h"
#include "base/aligned.h"
#include "kernels/forward_problem.h"
#include "qkv/position.h"

namespace qkv::attention_detail {

/// The keys that some rows of one sequence see, turned by their places in the cache (CachePositions::kCache): a copy,
/// made for one call after the other in the same memory.
class TurnedKeys {
 public:
  /// Makes a call of one batch read its keys from here, where they will be once every block has been turned.
  /// @param angles  of RopeRows::angles_of
  /// @param shift   how far keys behind the sinks have moved up, for all rows of the call
  /// @throws std::bad_alloc
  void lay_out(const Rope& rope, std::shared_ptr<const RopeAngles> angles, std::int64_t shift,
               kernels::ForwardProblem& call);

  /// Keys whose turns are made at a time, for all heads: threads take one block after the other.
  std::int64_t num_blocks() const noexcept { return (size() + kBlock - 1) / kBlock; }
  void turn(std::int64_t block) const;

  /// Numbers of the copy.
  std::int64_t num_elements() const noexcept { return size() * num_kv_heads_ * head_dim_; }

 private:
  static constexpr std::int64_t kBlock = 32;

  /// Keys of the copy: sinks, then those of the window.
  std::int64_t size() const noexcept { return sinks_ + window_.end - window_.begin; }
  std::int64_t key_at(std::int64_t index) const noexcept {
    return index < sinks_ ? index : window_.begin + index - sinks_;
  }
  void turn_run(RopeRows& rows, RopeStrip strip, std::int64_t key, const kernels::KeyPlace& to) const;

  const Rope* rope_ = nullptr;
  std::shared_ptr<const RopeAngles> angles_;
  kernels::Operand kept_, scales_;  ///< as the cache keeps them
  kernels::KeyPlaces kept_places_;
  kernels::KeyPlaces places_;  ///< in the copy
  std::int64_t num_kv_heads_ = 0;
  std::int64_t head_dim_ = 0;
  std::int64_t sinks_ = 0;
  kernels::KeyRange window_ = {};
  std::int64_t shift_ = 0;
  Dtype from_ = Dtype::kFloat32;  ///< what is turned: int8 as float32
  Dtype to_ = Dtype::kFloat32;
  AlignedBytes memory_;
  std::size_t capacity_ = 0;
};

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_TURNED_KEYS_H_
