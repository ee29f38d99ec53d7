#ifndef QKV_SRC_ATTENTION_ROPE_ROWS_H_
#define QKV_SRC_ATTENTION_ROPE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "attention/rope_angles.h"
#include "base/aligned.h"
#include "kernels/rotate.h"
#include "qkv/position.h"

namespace qkv {

struct Rope::State {
  State(std::int64_t head_dim, const RopeOptions& options);

  /// For a sequence of this length and a call of so many positions; the tables are made for many.
  std::shared_ptr<const attention_detail::RopeAngles> angles_for(std::optional<std::int64_t> seq_len,
                                                                 std::int64_t positions) const;

  std::int64_t head_dim;
  RopeOptions options;  ///< checked, with the defaults filled in
  double attention_factor;
  std::shared_ptr<const attention_detail::RopeAngles> angles;  ///< of sequences as long as those of the training
};

namespace attention_detail {

/// Rows that are turned by one call of RopeRows::rotate. Strides are in elements.
struct RopeStrip {
  const void* from = nullptr;
  std::int64_t from_row = 0;
  std::int64_t from_column = 1;
  void* to = nullptr;  ///< may be `from`, with its strides
  std::int64_t to_row = 0;
  std::int64_t to_column = 1;
  std::int64_t count = 0;
  std::int64_t turn = 0;       ///< of the first row
  std::int64_t from_next = 0;  ///< the strip after this one lies so far behind it; 0: not known
  std::int64_t to_next = 0;
  bool alike = false;  ///< all rows turn as the first one; else each has the next turn
};

/// Turns rows of one dtype into rows of another, for one thread: first turns are set, then any rows turned by them, those
/// of all heads say. What a cache needs on the way in (any dtype to float32, which it then rounds) and on the way out.
/// The result is that of turning into `from`, or into float32 from 16 bits, and then rounding once more to `to`. float64
/// from float32, and float32 from 16 bits, is what pairs are turned in: not rounded at all.
class RopeRows {
 public:
  struct Dtypes {
    Dtype from = Dtype::kFloat32;
    Dtype to = Dtype::kFloat32;
  };

  /// @param angles  of angles_of
  RopeRows(const Rope& rope, RopePass pass, Dtypes dtypes, std::shared_ptr<const RopeAngles> angles,
           std::int64_t num_turns = 1);
  /// Of sequences of this length, for so many positions.
  static std::shared_ptr<const RopeAngles> angles_of(const Rope& rope, std::optional<std::int64_t> seq_len,
                                                     std::int64_t positions) {
    return rope.state_->angles_for(seq_len, positions);
  }
  /// Forward, by the angles of sequences as long as those of the training.
  RopeRows(const Rope& rope, Dtypes dtypes, std::int64_t num_turns);

  /// Takes the memory that rows with strides need, which rotate takes otherwise: then that does not throw.
  void reserve();
  /// Turn `index` is that of a row at this position.
  void set_turn(std::int64_t index, std::int64_t position);
  void rotate(const RopeStrip& strip);

 private:
  kernels::Rotation rotation_of(const RopeStrip& strip) const;
  void rotate_row(const RopeStrip& strip, std::int64_t row);

  std::shared_ptr<const RopeAngles> angles_;
  RopeTurner turner_;
  kernels::Rotation rotation_;  ///< all but its rows
  Dtype to_;
  double cosine_factor_ = 1;
  double sine_factor_ = 1;
  bool direct_ = true;          ///< the kernel writes `to` itself
  AlignedBytes turns_;          ///< of num_turns, as kernels::make_turn writes them
  std::vector<double> row_;     ///< a row side by side
  std::vector<double> turned_;  ///< and turned, in a dtype that the kernel writes
};

}  // namespace attention_detail
}  // namespace qkv

#endif  // QKV_SRC_ATTENTION_ROPE_ROWS_H_
