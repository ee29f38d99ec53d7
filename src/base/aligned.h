#ifndef QKV_SRC_BASE_ALIGNED_H_
#define QKV_SRC_BASE_ALIGNED_H_

#include <cstddef>
#include <memory>
#include <new>

namespace qkv {

/// A cache line, and the widest vector: where all memory of the library's own begins.
inline constexpr std::size_t kAlignment = 64;

struct AlignedFree {
  void operator()(void* memory) const noexcept { ::operator delete(memory, std::align_val_t{kAlignment}); }
};

using AlignedBytes = std::unique_ptr<std::byte, AlignedFree>;

/// Bytes of no defined value. @throws std::bad_alloc
inline AlignedBytes allocate_aligned(std::size_t bytes) {
  return AlignedBytes(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{kAlignment})));
}

}  // namespace qkv

#endif  // QKV_SRC_BASE_ALIGNED_H_
