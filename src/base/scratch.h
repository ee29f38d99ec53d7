#ifndef QKV_SRC_BASE_SCRATCH_H_
#define QKV_SRC_BASE_SCRATCH_H_

#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <type_traits>

#include "base/checked.h"

namespace qkv {

/// Hands out pieces of this thread's scratch memory, which is kept from call to call and grows as needed. Opening an
/// arena takes back everything that the thread's last one gave: one arena a thread at a time. Pieces are aligned to 64
/// bytes and hold no defined values.
class ScratchArena {
 public:
  ScratchArena();

  template <class T>
  T* take(std::int64_t count) {
    static_assert(std::is_trivially_destructible_v<T>, "nobody destroys what lies in an arena");
    const std::optional<std::int64_t> bytes = checked_mul(count, sizeof(T));
    if (!bytes) throw std::bad_alloc();
    return static_cast<T*>(take_bytes(static_cast<std::size_t>(*bytes)));
  }

 private:
  void* take_bytes(std::size_t bytes);
};

/// Bytes of scratch that this thread holds.
std::size_t scratch_bytes() noexcept;

}  // namespace qkv

#endif  // QKV_SRC_BASE_SCRATCH_H_
