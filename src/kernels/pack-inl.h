#if defined(QKV_SRC_KERNELS_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_PACK_INL_H_
#undef QKV_SRC_KERNELS_PACK_INL_H_
#else
#define QKV_SRC_KERNELS_PACK_INL_H_
#endif

#include <algorithm>

#include "kernels/packed_head.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

// Packing reads every number of K and V once, so it also finds out whether any is not finite or too large for plain
// arithmetic. Magnitudes are compared as integers: NaN orders above infinity and cannot hide it.

using F32x4 = hn::CappedTag<float, 4>;
using I32x4 = hn::RebindToSigned<F32x4>;

/// Largest |x| so far, by bits.
template <class DF, class DI, class V, class VMax>
HWY_INLINE VMax raise_magnitude(DF /*floats*/, DI ints, V x, VMax largest) {
  return hn::Max(largest, hn::BitCast(ints, hn::Abs(x)));
}

HWY_INLINE std::uint32_t magnitude_bits(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits & 0x7fffffffu;
}

/// Panel rows [dim][key] from four key rows that lie `key_stride` apart and are contiguous along dim.
/// A 4 x 4 block at a time, in 128-bit registers: the same code on every target.
inline std::uint32_t pack_four_keys(const float* HWY_RESTRICT source, std::int64_t key_stride, std::int64_t dims,
                                    float* HWY_RESTRICT panel) {
  std::uint32_t largest = 0;
  std::int64_t d = 0;
#if HWY_TARGET != HWY_SCALAR
  const F32x4 f4;
  const I32x4 i4;
  auto max_bits = hn::Zero(i4);
  for (; d + 4 <= dims; d += 4) {
    const auto a = hn::LoadU(f4, source + d);
    const auto b = hn::LoadU(f4, source + key_stride + d);
    const auto c = hn::LoadU(f4, source + 2 * key_stride + d);
    const auto e = hn::LoadU(f4, source + 3 * key_stride + d);
    max_bits = raise_magnitude(f4, i4, a, max_bits);
    max_bits = raise_magnitude(f4, i4, b, max_bits);
    max_bits = raise_magnitude(f4, i4, c, max_bits);
    max_bits = raise_magnitude(f4, i4, e, max_bits);
    const auto ac_low = hn::InterleaveLower(f4, a, c);   // a0 c0 a1 c1
    const auto ac_high = hn::InterleaveUpper(f4, a, c);  // a2 c2 a3 c3
    const auto be_low = hn::InterleaveLower(f4, b, e);
    const auto be_high = hn::InterleaveUpper(f4, b, e);
    hn::StoreU(hn::InterleaveLower(f4, ac_low, be_low), f4, panel + (d + 0) * kPanelKeys);
    hn::StoreU(hn::InterleaveUpper(f4, ac_low, be_low), f4, panel + (d + 1) * kPanelKeys);
    hn::StoreU(hn::InterleaveLower(f4, ac_high, be_high), f4, panel + (d + 2) * kPanelKeys);
    hn::StoreU(hn::InterleaveUpper(f4, ac_high, be_high), f4, panel + (d + 3) * kPanelKeys);
  }
  largest = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(i4, max_bits)));
#endif
  for (; d < dims; ++d) {
    for (int i = 0; i < 4; ++i) {
      const float x = source[i * key_stride + d];
      largest = std::max(largest, magnitude_bits(x));
      panel[d * kPanelKeys + i] = x;
    }
  }
  return largest;
}

/// The general way, for K with any strides and for the last keys of a head.
inline std::uint32_t pack_one_key(const float* source, std::int64_t dim_stride, std::int64_t dims, float* panel) {
  std::uint32_t largest = 0;
  for (std::int64_t d = 0; d < dims; ++d) {
    const float x = source[d * dim_stride];
    largest = std::max(largest, magnitude_bits(x));
    panel[d * kPanelKeys] = x;
  }
  return largest;
}

/// Packs the keys of one word; panel columns beyond the last key become 0.
inline std::uint32_t pack_key_word(const ForwardProblem& problem, const float* keys, const PackedHead& head,
                                   std::int64_t begin, std::int64_t end) {
  std::uint32_t largest = 0;
  const std::int64_t dims = problem.head_dim;
  for (std::int64_t j = begin; j < begin + kWordKeys;) {
    const std::int64_t local = j - head.range.begin;
    float* panel = head.keys + local / kPanelKeys * kPanelKeys * dims + local % kPanelKeys;
    if (problem.k.col == 1 && kPanelKeys % 4 == 0 && j + 4 <= end) {
      largest = std::max(largest, pack_four_keys(keys + j * problem.k.row, problem.k.row, dims, panel));
      j += 4;
      continue;
    }
    if (j < end) {
      largest = std::max(largest, pack_one_key(keys + j * problem.k.row, problem.k.col, dims, panel));
    } else {
      for (std::int64_t d = 0; d < dims; ++d) panel[d * kPanelKeys] = 0.0f;
    }
    ++j;
  }
  return largest;
}

/// Copies the V rows of one word where the tile cannot read them in place, and returns their largest magnitude.
inline std::uint32_t pack_value_word(const ForwardProblem& problem, const float* values, const PackedHead& head,
                                     std::int64_t begin, std::int64_t end) {
  std::uint32_t largest = 0;
  const std::int64_t columns = problem.value_dim;
  VI max_bits = hn::Zero(kI32);
  for (std::int64_t j = begin; j < end; ++j) {
    const float* row = values + j * problem.v.row;
    std::int64_t c = 0;
    if (head.value_copy == nullptr) {
      for (; c + kLanes <= columns; c += kLanes)
        max_bits = raise_magnitude(kF32, kI32, hn::LoadU(kF32, row + c), max_bits);
      for (; c < columns; ++c) largest = std::max(largest, magnitude_bits(row[c]));
      continue;
    }
    float* copy = head.value_copy + (j - head.range.begin) * head.value_stride;
    for (; c < columns; ++c) {
      copy[c] = row[c * problem.v.col];
      largest = std::max(largest, magnitude_bits(copy[c]));
    }
    for (; c < head.value_stride; ++c) copy[c] = 0.0f;
  }
  return std::max(largest, static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(kI32, max_bits))));
}

/// Packs words [word_begin, word_end) of a head.
void pack_words(const ForwardProblem& problem, std::int64_t batch, std::int64_t kv_head, const PackedHead& head,
                std::int64_t word_begin, std::int64_t word_end) {
  const float* keys = problem.k.at<float>(batch, kv_head);
  const float* values = problem.v.at<float>(batch, kv_head);
  for (std::int64_t word = word_begin; word < word_end; ++word) {
    const std::int64_t begin = head.range.begin + word * kWordKeys;
    const std::int64_t end = std::min(begin + kWordKeys, head.range.end);
    head.key_magnitude[word] = pack_key_word(problem, keys, head, begin, end);
    head.value_magnitude[word] = problem.value_dim > 0 ? pack_value_word(problem, values, head, begin, end) : 0;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
