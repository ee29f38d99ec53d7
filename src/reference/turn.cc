#include "reference/turn.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "qkv/tensor.h"
#include "reference/element.h"

namespace qkv::reference {
namespace {

/// The numbers as a dtype holds them.
std::vector<double> rounded(std::vector<double> numbers, Dtype dtype) {
  Tensor stored({static_cast<std::int64_t>(numbers.size())}, dtype);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    store(stored, {at}, numbers[i]);
    numbers[i] = number(stored, {at});
  }
  return numbers;
}

}  // namespace

Turn::Turn(const Rope& rope, std::int64_t seq_len)
    : frequencies_(rope.frequencies(std::max<std::int64_t>(seq_len, 1))),
      factor_(rope.attention_factor()),
      interleaved_(rope.options().layout == RopeLayout::kInterleaved) {}

std::vector<double> Turn::operator()(const std::vector<double>& row, std::int64_t position, Dtype from,
                                     Dtype to) const {
  const bool sixteen_bits = from == Dtype::kFloat16 || from == Dtype::kBFloat16;
  return rounded(sixteen_bits ? turned<float>(row, position) : turned<double>(row, position), to);
}

template <class Number>
std::vector<double> Turn::turned(const std::vector<double>& row, std::int64_t position) const {
  std::vector<double> result = row;
  const std::size_t pairs = frequencies_.size();
  for (std::size_t i = 0; i < pairs; ++i) {
    const std::size_t first = interleaved_ ? 2 * i : i;
    const std::size_t second = interleaved_ ? 2 * i + 1 : i + pairs;
    const double angle = static_cast<double>(position) * frequencies_[i];
    const auto cosine = static_cast<Number>(factor_ * std::cos(angle));
    const auto sine = static_cast<Number>(factor_ * std::sin(angle));
    const auto x = static_cast<Number>(row[first]);
    const auto y = static_cast<Number>(row[second]);
    result[first] = static_cast<double>(x * cosine - y * sine);
    result[second] = static_cast<double>(y * cosine + x * sine);
  }
  return result;
}

}  // namespace qkv::reference
