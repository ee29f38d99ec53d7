#ifndef QKV_SRC_KERNELS_PLAIN_LOGITS_H_
#define QKV_SRC_KERNELS_PLAIN_LOGITS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/dropout.h"
#include "kernels/forward_problem.h"
#include "kernels/key_order.h"
#include "kernels/key_range.h"
#include "kernels/visibility.h"

namespace qkv::kernels {

/// The logits of one query row in double, key by key, and which keys it sees: what the plain kernels of both directions
/// begin with.
class PlainLogits {
 public:
  PlainLogits(const ForwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row)
      : problem_(problem),
        batch_(batch),
        head_(head),
        row_(row),
        kv_head_(head / problem.group_size()),
        keys_(row_keys(problem, batch, head, row)),
        query_(static_cast<std::size_t>(problem.head_dim)) {
    read_numbers(problem.q.address(batch, head, row), problem.q.dtype, problem.q.col, problem.head_dim, query_.data());
    if (problem.alibi_slopes) slope_ = problem.alibi_slopes.number(batch, head);
    if (problem.dropout > 0) dropout_ = row_dropout(problem, batch, head, keys_.position);
  }

  double logit(LogitsStage stage, std::int64_t key) const {
    const double* k = this->key(key);
    double product = 0;
    for (std::int64_t d = 0; d < problem_.head_dim; ++d) product += query_[static_cast<std::size_t>(d)] * k[d];
    const double x = problem_.scale * product;
    return stage == LogitsStage::kScaled ? x : finish(stage, key, x);
  }

  /// From scale * q k to the stages behind it.
  double finish(LogitsStage stage, std::int64_t key, double x) const {
    if (problem_.softcap > 0) x = problem_.softcap * std::tanh(x / problem_.softcap);
    if (stage == LogitsStage::kCapped) return x;
    if (problem_.bias) x += bias(key);
    if (problem_.alibi_slopes) {
      x -= slope_ * std::fabs(static_cast<double>(keys_.position) - static_cast<double>(key));
    }
    return x;
  }

  bool visible(std::int64_t key) const {
    return has_key(visible_word(keys_, align_down(key, kWordKeys)), key) && !hidden_by_bias(key);
  }

  /// Calls visit(key) for the keys of a range that the row sees, ascending.
  template <class Visit>
  void for_each_visible(KeyRange keys, const Visit& visit) const {
    keys = {std::max(keys.begin, keys_.begin()), std::min(keys.end, keys_.range.end)};
    for (std::int64_t base = align_down(keys.begin, kWordKeys); base < keys.end; base += kWordKeys) {
      const std::uint64_t word = visible_word(keys_, base);
      const std::int64_t end = std::min(base + kWordKeys, keys.end);
      for (std::int64_t key = std::max(base, keys.begin); key < end; ++key) {
        if (has_key(word, key) && !hidden_by_bias(key)) visit(key);
      }
    }
  }

 protected:
  double bias(std::int64_t key) const { return problem_.bias.number(batch_, head_, row_, key); }
  bool hidden_by_bias(std::int64_t key) const {
    return problem_.bias && bias(key) == -std::numeric_limits<double>::infinity();
  }

  /// Rows of k and v: in place where they lie as doubles side by side, else in memory that the next one takes.
  const double* key(std::int64_t key) const {
    return numbers_of(problem_.k, problem_.k_scales, problem_.places_of_k()(batch_, key), problem_.head_dim,
                      key_numbers_);
  }
  const double* value(std::int64_t key) const {
    return numbers_of(problem_.v, problem_.v_scales, problem_.key_places(batch_, key), problem_.value_dim,
                      value_numbers_);
  }

  /// 1 for a key whose weight dropout keeps, else 0. Keys of a word come one after the other.
  double kept(std::int64_t key) const {
    const std::int64_t base = align_down(key, kWordKeys);
    if (base != kept_base_) kept_word_ = kept_word(dropout_, kept_base_ = base);
    return has_key(kept_word_, key) ? 1 : 0;
  }

  const ForwardProblem& problem_;
  const std::int64_t batch_;
  const std::int64_t head_;
  const std::int64_t row_;
  const std::int64_t kv_head_;
  const RowKeys keys_;
  std::vector<double> query_;
  double slope_ = 0;

 private:
  const double* numbers_of(const Operand& operand, const Operand& scales, const KeyPlace& place, std::int64_t count,
                           std::vector<double>& memory) const {
    const void* from = operand.address(place.entry, kv_head_, place.row);
    if (operand.dtype == Dtype::kFloat64 && operand.col == 1) return static_cast<const double*>(from);
    memory.resize(static_cast<std::size_t>(count));
    read_numbers(from, operand.dtype, operand.col, count, memory.data());
    if (!scales) return memory.data();
    // Whole numbers as the other kernels read them: rounded to f32.
    const double scale = scales.number(place.entry, kv_head_, place.row);
    for (double& number : memory) number = static_cast<double>(static_cast<float>(number * scale));
    return memory.data();
  }

  RowDropout dropout_;
  mutable std::int64_t kept_base_ = -1;  ///< of kept_word_
  mutable std::uint64_t kept_word_ = 0;
  mutable std::vector<double> key_numbers_;
  mutable std::vector<double> value_numbers_;
};

}  // namespace qkv::kernels

#endif  // QKV_SRC_KERNELS_PLAIN_LOGITS_H_
