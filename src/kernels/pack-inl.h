#if defined(QKV_SRC_KERNELS_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SRC_KERNELS_PACK_INL_H_
#undef QKV_SRC_KERNELS_PACK_INL_H_
#else
#define QKV_SRC_KERNELS_PACK_INL_H_
#endif

#include <algorithm>
#include <type_traits>

#include "base/aligned.h"
#include "kernels/element.h"
#include "kernels/magnitude-inl.h"
#include "kernels/pairs-inl.h"
#include "kernels/row_block.h"
#include "kernels/storage-inl.h"
// After highway_targets.h, which says what is built.
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {

/// Who reads what is packed. Many rows hide the time that it takes, and their products are bounded by magnitudes, which
/// packing finds on its way. A few rows wait for memory: they look at their products themselves, and ask for the next keys
/// ahead of time (without that, a cache of 32768 keys was read at 45 % of the memory's bandwidth instead of 60).
enum class Readers { kMany, kFew };

#if HWY_TARGET != HWY_SCALAR
/// Four words of 32 bits from each of every fourth key: block b of 128 bits is what lies `b * step` bytes on.
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const char* source, std::int64_t step) {
  constexpr auto kCount = static_cast<std::int64_t>(hn::MaxLanes(D()));
  if constexpr (kCount <= 4) {
    return hn::LoadU(d, reinterpret_cast<const float*>(source));
  } else {
    const hn::Half<D> half;
    const char* upper = source + kCount / 8 * step;
    return hn::Combine(d, load_blocks(half, upper, step), load_blocks(half, source, step));
  }
}

/// Calls emit(word, that word of each key of a vector) for whole fours of the words of 32 bits that a key has; keys lie
/// `key_bytes` apart. Keys 0, 4, 8.. share one register, 1, 5, 9.. the next: transposing each 4 x 4 block puts keys in
/// order. @return words done
template <class Emit>
HWY_INLINE std::int64_t transpose_keys(const char* source, std::int64_t key_bytes, std::int64_t words,
                                       const Emit& emit) {
  std::int64_t word = 0;
  for (; word + 4 <= words; word += 4, source += 16) {
    const VF a = load_blocks(kF32, source, 4 * key_bytes);
    const VF b = load_blocks(kF32, source + key_bytes, 4 * key_bytes);
    const VF c = load_blocks(kF32, source + 2 * key_bytes, 4 * key_bytes);
    const VF e = load_blocks(kF32, source + 3 * key_bytes, 4 * key_bytes);
    const VF ac_low = hn::InterleaveLower(kF32, a, c);   // a0 c0 a1 c1
    const VF ac_high = hn::InterleaveUpper(kF32, a, c);  // a2 c2 a3 c3
    const VF be_low = hn::InterleaveLower(kF32, b, e);
    const VF be_high = hn::InterleaveUpper(kF32, b, e);
    emit(word + 0, hn::InterleaveLower(kF32, ac_low, be_low));
    emit(word + 1, hn::InterleaveUpper(kF32, ac_low, be_low));
    emit(word + 2, hn::InterleaveLower(kF32, ac_high, be_high));
    emit(word + 3, hn::InterleaveUpper(kF32, ac_high, be_high));
  }
  return word;
}
#endif

/// A vector's number of keys in consecutive rows, contiguous along dim.
template <class T>
struct KeyRows {
  const T* first;
  std::int64_t stride;
  VF scales;  ///< of whole numbers: one a key
};

#if HWY_TARGET != HWY_SCALAR
/// Calls emit(dim, that dim of each key) for whole fours of words of 32 bits: of float32, or of what shares a word, which
/// is transposed together and then taken apart. @return dims done
template <class T, class Emit>
HWY_INLINE std::int64_t transpose_rows(const KeyRows<T>& keys, std::int64_t dims, const Emit& emit) {
  constexpr auto kSharing = static_cast<std::int64_t>(4 / sizeof(T));
  const auto emit_word = [&](std::int64_t word, VF all) HWY_ATTR {
    const std::int64_t dim = word * kSharing;
    if constexpr (std::is_same_v<T, BFloat16>) {
      const auto bits = hn::BitCast(kU32, all);
      emit(dim, hn::BitCast(kF32, hn::ShiftLeft<16>(bits)));
      emit(dim + 1, hn::BitCast(kF32, hn::And(bits, hn::Set(kU32, 0xffff0000u))));
    } else if constexpr (std::is_same_v<T, std::int8_t>) {
      const auto bits = hn::BitCast(kI32, all);
      const auto number = [&](VI upper)
                              HWY_ATTR { return hn::Mul(hn::ConvertTo(kF32, hn::ShiftRight<24>(upper)), keys.scales); };
      emit(dim, number(hn::ShiftLeft<24>(bits)));
      emit(dim + 1, number(hn::ShiftLeft<16>(bits)));
      emit(dim + 2, number(hn::ShiftLeft<8>(bits)));
      emit(dim + 3, number(bits));
    } else {
      emit(dim, all);
    }
  };
  const std::int64_t key_bytes = keys.stride * static_cast<std::int64_t>(sizeof(T));
  return kSharing * transpose_keys(reinterpret_cast<const char*>(keys.first), key_bytes, dims / kSharing, emit_word);
}
#endif

/// Panel rows [dim][key]. @return bits of the largest magnitude, if asked for
template <Readers kReaders, class T>
std::uint32_t pack_vector_of_keys(const KeyRows<T>& keys, std::int64_t dims, float* HWY_RESTRICT panel) {
  std::uint32_t largest = 0;
  std::int64_t d = 0;
#if HWY_TARGET != HWY_SCALAR
  VI max_bits = hn::Zero(kI32);
  d = transpose_rows(keys, dims, [&](std::int64_t dim, VF x) HWY_ATTR {
    if constexpr (kReaders == Readers::kMany) max_bits = raise_magnitude(x, max_bits);
    hn::StoreU(x, kF32, panel + dim * kPanel);
  });
  if constexpr (kReaders == Readers::kMany) largest = largest_of(max_bits);
#endif
  if (d == dims) return largest;
  float scales[kLanes];
  hn::StoreU(keys.scales, kF32, scales);
  for (; d < dims; ++d) {
    for (int i = 0; i < kLanes; ++i) {
      const float x = read_scaled(keys.first[i * keys.stride + d], scales[i]);
      if constexpr (kReaders == Readers::kMany) largest = std::max(largest, magnitude_bits(x));
      panel[d * kPanel + i] = x;
    }
  }
  return largest;
}

/// Panel rows [pair of dims][key] of keys of bfloat16, an odd last dim beside 0. @return bits of the largest magnitude
inline std::uint32_t pack_pairs_of_keys(const KeyRows<BFloat16>& keys, std::int64_t dims, float* HWY_RESTRICT panel) {
  VI largest = hn::Zero(kI32);
  const auto emit = [&](std::int64_t pair, VF numbers) HWY_ATTR {
    hn::StoreU(without_small(numbers, kLeastKey, largest), kF32, panel + pair * kPanel);
  };
  std::int64_t pair = 0;
#if HWY_TARGET != HWY_SCALAR
  const std::int64_t key_bytes = keys.stride * static_cast<std::int64_t>(sizeof(BFloat16));
  pair = transpose_keys(reinterpret_cast<const char*>(keys.first), key_bytes, dims / 2, emit);
#endif
  for (; 2 * pair < dims; ++pair) {
    BFloat16 numbers[2 * kLanes] = {};
    for (std::int64_t i = 0; i < kLanes; ++i) {
      const BFloat16* from = keys.first + i * keys.stride + 2 * pair;
      numbers[2 * i] = from[0];
      if (2 * pair + 1 < dims) numbers[2 * i + 1] = from[1];
    }
    emit(pair, load_pairs(numbers));
  }
  return largest_of_pairs(largest);
}

/// Dims that go by way of the stack at a time.
inline constexpr std::int64_t kStagedDims = 64;

/// Dims of one key as f32.
template <class T>
HWY_INLINE void stage_key(const T* HWY_RESTRICT from, std::int64_t stride, float scale, std::int64_t dims,
                          float* HWY_RESTRICT to) {
  std::int64_t d = 0;
  if (stride == 1) {
    for (; d + kLanes <= dims; d += kLanes) store(load_scaled(from + d, scale), to + d);
  }
  for (; d < dims; ++d) to[d] = read_scaled(from[d * stride], scale);
}

/// The general way, for K of any type, strides and places and for the last keys of a head: a vector of keys by way of the
/// stack. Lanes from keys.end on become 0.
template <Readers kReaders, class T>
std::uint32_t pack_staged(const ForwardProblem& problem, const PackedHead& head, KeyRange keys, float* panel) {
  alignas(kAlignment) float staged[kLanes * kStagedDims];
  const Operand& k = problem.k;
  std::uint32_t largest = 0;
  for (std::int64_t first = 0; first < problem.head_dim; first += kStagedDims) {
    const std::int64_t dims = std::min(kStagedDims, problem.head_dim - first);
    for (std::int64_t i = 0; i < kLanes; ++i) {
      float* to = staged + i * kStagedDims;
      if (keys.begin + i >= keys.end) {
        std::fill_n(to, dims, 0.0f);
        continue;
      }
      const KeyPlace place = problem.places_of_k()(head.batch, keys.begin + i);
      const float scale = kHasScale<T> ? *problem.k_scales.at<float>(place.entry, head.kv_head, place.row) : 1.0f;
      stage_key(k.at<T>(place.entry, head.kv_head, place.row, first), k.col, scale, dims, to);
    }
    const KeyRows<float> rows{staged, kStagedDims, hn::Zero(kF32)};
    largest = std::max(largest, pack_vector_of_keys<kReaders>(rows, dims, panel + first * kPanel));
  }
  return largest;
}

/// pack_staged in pairs.
inline std::uint32_t pack_staged_pairs(const ForwardProblem& problem, const PackedHead& head, KeyRange keys,
                                       float* panel) {
  BFloat16 staged[kLanes * kStagedDims];
  const Operand& k = problem.k;
  std::uint32_t largest = 0;
  for (std::int64_t first = 0; first < problem.head_dim; first += kStagedDims) {
    const std::int64_t dims = std::min(kStagedDims, problem.head_dim - first);
    for (std::int64_t i = 0; i < kLanes; ++i) {
      BFloat16* to = staged + i * kStagedDims;
      std::fill_n(to, dims, BFloat16{});
      if (keys.begin + i >= keys.end) continue;
      const KeyPlace place = problem.places_of_k()(head.batch, keys.begin + i);
      const BFloat16* from = k.at<BFloat16>(place.entry, head.kv_head, place.row, first);
      for (std::int64_t d = 0; d < dims; ++d) to[d] = from[d * k.col];
    }
    const KeyRows<BFloat16> rows{staged, kStagedDims, hn::Zero(kF32)};
    largest = std::max(largest, pack_pairs_of_keys(rows, dims, panel + first / 2 * kPanel));
  }
  return largest;
}

/// Between the rows that are read and those that memory is asked for: some way ahead, but what has been asked for must
/// still be in L1 when its turn comes, beside what is being read.
inline constexpr std::int64_t kBytesAhead = 4096;

/// Asks for a vector's number of keys some way behind the first of `count` consecutive rows.
template <class T>
HWY_INLINE void ask_for_keys(const ForwardProblem& problem, const T* first, std::int64_t count) {
  const std::int64_t bytes = problem.head_dim * static_cast<std::int64_t>(sizeof(T));
  const std::int64_t ahead = align_up(kBytesAhead / bytes, kLanes);
  const std::int64_t end = std::min<std::int64_t>(ahead + kLanes, count);
  for (std::int64_t key = ahead; key < end; ++key) {
    const char* row = reinterpret_cast<const char*>(first + key * problem.k.row);
    for (std::int64_t byte = 0; byte < bytes; byte += 64) hwy::Prefetch(row + byte);
  }
}

/// The scales of a vector's number of keys in consecutive rows.
template <class T>
HWY_INLINE VF key_scales(const Operand& scales, std::int64_t kv_head, const KeyPlace& place) {
  if constexpr (!kHasScale<T>) return hn::Zero(kF32);
  const float* first = scales.at<float>(place.entry, kv_head, place.row);
  if (scales.row == 1) return hn::LoadU(kF32, first);
  float lanes[kLanes];
  for (std::int64_t i = 0; i < kLanes; ++i) lanes[i] = first[i * scales.row];
  return hn::LoadU(kF32, lanes);
}

/// How keys are packed: as floats, converted if need be, or bfloat16 as pairs.
template <Readers kReaders, class T>
struct AsFloats {
  using Number = T;
  static constexpr bool kTransposes = !std::is_same_v<T, Float16>;

  static std::uint32_t rows(const KeyRows<T>& keys, std::int64_t dims, float* panel) {
    return pack_vector_of_keys<kReaders>(keys, dims, panel);
  }
  static std::uint32_t staged(const ForwardProblem& problem, const PackedHead& head, KeyRange keys, float* panel) {
    return pack_staged<kReaders, T>(problem, head, keys, panel);
  }
};
struct AsPairs {
  using Number = BFloat16;
  static constexpr bool kTransposes = true;

  static std::uint32_t rows(const KeyRows<BFloat16>& keys, std::int64_t dims, float* panel) {
    return pack_pairs_of_keys(keys, dims, panel);
  }
  static std::uint32_t staged(const ForwardProblem& problem, const PackedHead& head, KeyRange keys, float* panel) {
    return pack_staged_pairs(problem, head, keys, panel);
  }
};

/// Packs keys from a multiple of a vector on. Lanes beyond the last key of a vector become 0; vectors without a key stay
/// as they are: no tile reads them.
template <Readers kReaders, class Form>
std::uint32_t pack_keys(const ForwardProblem& problem, const PackedHead& head, KeyRange keys) {
  using T = typename Form::Number;
  std::uint32_t largest = 0;
  const std::int64_t dims = problem.head_dim;
  const std::int64_t depth = depth_of(problem);
  for (std::int64_t j = keys.begin; j < keys.end; j += kLanes) {
    const std::int64_t local = head.span.index_of(j);
    float* panel = head.keys + local / kPanel * kPanel * depth + local % kPanel;
    const KeyPlace place = problem.places_of_k()(head.batch, j);
    const T* first = problem.k.at<T>(place.entry, head.kv_head, place.row);
    if constexpr (kReaders == Readers::kFew) ask_for_keys(problem, first, std::min(place.count, problem.kv_len - j));
    if constexpr (Form::kTransposes) {
      if (problem.k.col == 1 && j + kLanes <= keys.end && place.count >= kLanes) {
        const KeyRows<T> rows{first, problem.k.row, key_scales<T>(problem.k_scales, head.kv_head, place)};
        largest = std::max(largest, Form::rows(rows, dims, panel));
        continue;
      }
    }
    const KeyRange staged{j, std::min<std::int64_t>(j + kLanes, keys.end)};
    largest = std::max(largest, Form::staged(problem, head, staged, panel));
  }
  return largest;
}

/// Calls visit(form): how the keys of a call are packed.
template <Readers kReaders, class Visit>
HWY_INLINE void visit_form(const ForwardProblem& problem, const Visit& visit) {
  if constexpr (kHasPairs) {
    if (multiplies_pairs(problem)) return visit(AsPairs());
  }
  visit_kept(problem.k.dtype, [&]<class T>(T) { visit(AsFloats<kReaders, T>()); });
}

/// Packs words [word_begin, word_end) of a head that many rows read.
inline void pack_words(const ForwardProblem& problem, const PackedHead& head, std::int64_t word_begin,
                       std::int64_t word_end) {
  visit_form<Readers::kMany>(problem, [&]<class Form>(Form) {
    for (std::int64_t word = word_begin; word < word_end; ++word) {
      head.key_magnitude[word] = pack_keys<Readers::kMany, Form>(problem, head, head.keys_of(word));
    }
  });
}

/// Packs some keys, from a multiple of a panel on, for rows that keep no packed head.
inline void pack_for_few(RowBlock& block, KeyRange keys) {
  block.head.span = {keys, {}};
  block.head.keys = block.own_keys;
  visit_form<Readers::kFew>(block.problem,
                            [&]<class Form>(Form) { pack_keys<Readers::kFew, Form>(block.problem, block.head, keys); });
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
