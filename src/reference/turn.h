#ifndef QKV_SRC_REFERENCE_TURN_H_
#define QKV_SRC_REFERENCE_TURN_H_

#include <cstdint>
#include <vector>

#include "qkv/dtype.h"
#include "qkv/position.h"

namespace qkv::reference {

/// Turns rows by their positions, from the formula of a rotation alone.
class Turn {
 public:
  /// For a sequence of a length, which dynamic scaling goes by.
  Turn(const Rope& rope, std::int64_t seq_len);

  /// A row as it is turned for `from`, its dtype (16 bits in float32, others in double), and as `to` holds the result.
  std::vector<double> operator()(const std::vector<double>& row, std::int64_t position, Dtype from, Dtype to) const;

 private:
  template <class Number>
  std::vector<double> turned(const std::vector<double>& row, std::int64_t position) const;

  std::vector<double> frequencies_;
  double factor_;
  bool interleaved_;
};

}  // namespace qkv::reference

#endif  // QKV_SRC_REFERENCE_TURN_H_
