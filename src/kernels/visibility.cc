#include "kernels/visibility.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/key_order.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace qkv::kernels {
namespace {

// No sum below overflows: ForwardProblem::kMostPosition bounds every term.

KeyRange range_at(const ForwardProblem& problem, std::int64_t batch, std::int64_t position) {
  std::int64_t begin = 0;
  std::int64_t end = problem.kv_lens[static_cast<std::size_t>(batch)];
  if (problem.causal) end = std::min(end, position + 1);
  if (problem.window_right != ForwardProblem::kUnbounded) {
    end = std::min(end, position + problem.window_right + 1);
  }
  if (problem.window_left != ForwardProblem::kUnbounded) {
    begin = std::max(begin, position - problem.window_left);
  }
  if (begin >= end) return {0, 0};
  return {begin, end};
}

/// Bits 0 .. count - 1, for any count.
std::uint64_t low_bits(std::int64_t count) {
  if (count <= 0) return 0;
  return count >= kWordKeys ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

/// Eight bools to eight bits. A bool that was made from other memory may hold any non-zero byte for true.
std::uint64_t pack_eight(const std::uint8_t* bools) {
  static_assert(std::endian::native == std::endian::little, "the byte order below is little-endian");
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, bools, 8);
  constexpr std::uint64_t kLow7 = 0x7f7f7f7f7f7f7f7f;
  const std::uint64_t nonzero = (((bytes & kLow7) + kLow7) | bytes) & ~kLow7;
  return ((nonzero >> 7) * 0x0102040810204080) >> 56;
}

/// 64 bools to 64 bits.
std::uint64_t pack_word(const std::uint8_t* bools) {
  std::uint64_t word = 0;
#if defined(__SSE2__)
  // Sixteen at a time: a fifth of the instructions, and every x86-64 has them.
  for (int i = 0; i < kWordKeys; i += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bools + i));
    const auto zeros = static_cast<std::uint64_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_setzero_si128())));
    word |= zeros << i;
  }
  return ~word;
#else
  for (int i = 0; i < kWordKeys; i += 8) word |= pack_eight(bools + i) << i;
  return word;
#endif
}

/// Bits of mask[begin .. end), counted from `base`; only those bytes are read.
std::uint64_t mask_word(const RowKeys& row, std::int64_t base, std::int64_t begin, std::int64_t end) {
  if (row.mask_stride == 0) return *row.mask != 0 ? low_bits(end - base) & ~low_bits(begin - base) : 0;
  std::uint64_t word = 0;
  std::int64_t j = begin;
  if (row.mask_stride == 1) {
    if (end - begin == kWordKeys) return pack_word(row.mask + begin);
    for (; j + 8 <= end; j += 8) word |= pack_eight(row.mask + j) << (j - base);
  }
  for (; j < end; ++j) word |= std::uint64_t{row.mask[j * row.mask_stride] != 0} << (j - base);
  return word;
}

/// How many of the first keys a row sees whatever its window.
std::int64_t sinks_at(const ForwardProblem& problem, std::int64_t batch, std::int64_t position) {
  if (problem.num_sink_keys == 0) return 0;
  std::int64_t sinks = std::min(problem.num_sink_keys, problem.kv_lens[static_cast<std::size_t>(batch)]);
  if (problem.causal) sinks = std::min(sinks, position + 1);
  return std::max<std::int64_t>(sinks, 0);
}

/// The bits of one range of a row's keys.
std::uint64_t range_word(const RowKeys& row, KeyRange range, std::int64_t base) {
  const std::int64_t begin = std::max(range.begin, base);
  const std::int64_t end = std::min(range.end, base + kWordKeys);
  if (begin >= end) return 0;
  if (row.mask != nullptr) return mask_word(row, base, begin, end);
  return low_bits(end - base) & ~low_bits(begin - base);
}

/// Where two ranges that begin with sinks meet, they are one.
void add_sinks(std::int64_t sinks, RowKeys& keys) {
  if (keys.range.empty()) {
    keys.range = {0, sinks};
  } else if (keys.range.begin <= sinks) {
    keys.range = {0, std::max(keys.range.end, sinks)};
  } else {
    keys.sinks = sinks;
  }
}

}  // namespace

RowKeys row_keys(const ForwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row) {
  RowKeys keys;
  keys.position = problem.query_offset[static_cast<std::size_t>(batch)] + row;
  keys.range = range_at(problem, batch, keys.position);
  if (const std::int64_t sinks = sinks_at(problem, batch, keys.position); sinks > 0) add_sinks(sinks, keys);
  if (problem.mask) {
    keys.mask = problem.mask.at<std::uint8_t>(batch, head, row);
    keys.mask_stride = problem.mask.col;
  }
  return keys;
}

KeyRange rows_range(const ForwardProblem& problem, std::int64_t batch, std::int64_t row_begin, std::int64_t row_end) {
  // Both ends of a row's range grow with its position, and rows that see nothing lie before or after those that see
  // something: the first and the last row that see anything bound the union.
  const std::int64_t offset = problem.query_offset[static_cast<std::size_t>(batch)];
  std::int64_t first = row_begin;
  std::int64_t last = row_end - 1;
  while (first <= last && range_at(problem, batch, offset + first).empty()) ++first;
  while (last >= first && range_at(problem, batch, offset + last).empty()) --last;
  if (first > last) return {0, 0};
  return {range_at(problem, batch, offset + first).begin, range_at(problem, batch, offset + last).end};
}

KeySpan rows_span(const ForwardProblem& problem, std::int64_t batch, std::int64_t row_begin, std::int64_t row_end) {
  if (row_begin >= row_end) return {};
  const KeyRange window = rows_range(problem, batch, row_begin, row_end);
  // More and more of them, as the rows' position grows.
  const std::int64_t last = problem.query_offset[static_cast<std::size_t>(batch)] + row_end - 1;
  const std::int64_t sinks = sinks_at(problem, batch, last);
  if (sinks == 0) return {window, {}};
  if (window.empty()) return {{0, sinks}, {}};
  return {{0, std::max(window.end, sinks)}, hole_between(sinks, window.begin)};
}

std::uint64_t visible_word(const RowKeys& row, std::int64_t base) {
  std::uint64_t word = range_word(row, row.range, base);
  if (row.sinks > base) word |= range_word(row, {0, row.sinks}, base);
  return word;
}

KeyRange hole_between(std::int64_t sinks, std::int64_t begin) {
  const KeyRange hole{align_up(sinks, kKeyBlock), align_down(begin, kKeyBlock)};
  return hole.empty() ? KeyRange{} : hole;
}

}  // namespace qkv::kernels
