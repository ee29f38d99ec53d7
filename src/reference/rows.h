#ifndef QKV_SRC_REFERENCE_ROWS_H_
#define QKV_SRC_REFERENCE_ROWS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "reference/attention.h"
#include "reference/turn.h"

namespace qkv::reference {

// One row of attention, from its query to the weights of the keys that it sees.

/// Extents by axis from the end: 1 = the last. A missing leading axis has extent 1.
inline std::int64_t extent(const ConstTensorView& view, int from_end) {
  return view.rank() < from_end ? 1 : view.extent(view.rank() - from_end);
}

/// One row of q.
struct Row {
  std::int64_t b = 0;
  std::int64_t h = 0;
  std::int64_t i = 0;
  std::int64_t kv_head = 0;
  std::int64_t filled = 0;    // keys from here on are hidden
  std::int64_t position = 0;  // among the keys
  std::vector<double> query = {};
  std::int64_t shift = 0;         // how far keys behind the sinks have moved up: as many as the window has left
  std::optional<Turn> turn = {};  // of rows whose keys turn by their places
};

/// One key that a row sees.
struct Visible {
  std::int64_t key = 0;
  double raw = 0;     // scale * q k
  double logit = 0;   // after softcap, bias and ALiBi
  double weight = 0;  // softmax of the logits
};

Row make_row(const Inputs& in, std::int64_t b, std::int64_t h, std::int64_t i);

/// scale * q k
double scaled_logit(const Inputs& in, const Row& row, std::int64_t j);

/// After softcap.
double capped(const Inputs& in, double raw);

/// The keys that the row sees, in order, without weights; of the others not even K is read.
std::vector<Visible> visible_keys(const Inputs& in, const Row& row);

/// The larger; NaN if either is.
double nan_max(double a, double b);

/// The row's sink, -inf where there is none.
double sink_of(const Inputs& in, const Row& row);

/// Fills in the weights and returns the natural logarithm of the sum of exponentials. A sink is one more logit that has
/// no key. Infinite logits take their way through the formula: inf - inf makes NaN of the row.
double softmax(std::vector<Visible>& keys, double sink);

/// What dropout multiplies a weight by, from the words of docs/op/dropout.md.
double dropout_factor(const Inputs& in, const Row& row, std::int64_t j);

}  // namespace qkv::reference

#endif  // QKV_SRC_REFERENCE_ROWS_H_
