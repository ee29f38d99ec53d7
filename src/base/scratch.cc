#include "base/scratch.h"

#include <utility>
#include <vector>

#include "base/aligned.h"

namespace qkv {
namespace {

constexpr std::size_t kFirstSlab = std::size_t{256} << 10;

struct Slab {
  explicit Slab(std::size_t bytes) : memory(allocate_aligned(bytes)), size(bytes) {}
  AlignedBytes memory;
  std::size_t size = 0;
};

/// Pieces already handed out must not move, so growth adds a slab; the next arena joins the slabs into one.
struct ThreadScratch {
  std::vector<Slab> slabs;
  std::size_t used = 0;  // of the last slab

  std::size_t held() const noexcept {
    std::size_t bytes = 0;
    for (const Slab& slab : slabs) bytes += slab.size;
    return bytes;
  }
};

thread_local ThreadScratch* t_scratch = nullptr;

/// Frees a thread's scratch at its end. What is asked for after that (by a destructor of a static object, in the main
/// thread) is made anew and left to the end of the process.
struct FreeAtThreadEnd {
  ~FreeAtThreadEnd() { delete std::exchange(t_scratch, nullptr); }
};

ThreadScratch& thread_scratch() {
  if (t_scratch == nullptr) {
    t_scratch = new ThreadScratch;
    static thread_local const FreeAtThreadEnd at_end;
  }
  return *t_scratch;
}

}  // namespace

ScratchArena::ScratchArena() {
  ThreadScratch& scratch = thread_scratch();
  scratch.used = 0;
  if (scratch.slabs.size() < 2) return;
  const std::size_t bytes = scratch.held();
  scratch.slabs.clear();
  scratch.slabs.emplace_back(bytes);
}

void* ScratchArena::take_bytes(std::size_t bytes) {
  ThreadScratch& scratch = thread_scratch();
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (scratch.slabs.empty() || scratch.used + bytes > scratch.slabs.back().size) {
    scratch.slabs.emplace_back(bytes > kFirstSlab ? bytes : kFirstSlab);
    scratch.used = 0;
  }
  void* piece = scratch.slabs.back().memory.get() + scratch.used;
  scratch.used += bytes;
  return piece;
}

std::size_t scratch_bytes() noexcept { return t_scratch == nullptr ? 0 : t_scratch->held(); }

}  // namespace qkv
