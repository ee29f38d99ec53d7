#include "kernels/prefetch.h"

namespace qkv::kernels {
namespace {

constexpr std::int64_t kLineBytes = 64;
/// More than this would push out of L2 what is being computed; such heads keep a core busy long enough to load as they
/// go.
constexpr std::int64_t kMostBytes = std::int64_t{192} << 10;

enum class Access { kRead, kWrite };

/// Lines of rows [begin, end) of one head, into L2.
template <Access kAccess, class Byte>
void prefetch_rows(const Strided<Byte>& rows, std::int64_t batch, std::int64_t head, KeyRange range,
                   std::int64_t columns) {
  if (rows.col != 1) return;
  const auto item = static_cast<std::int64_t>(size_of(rows.dtype));
  const std::int64_t bytes = columns * item;
  const std::int64_t step = rows.row * item;
  const auto* first = static_cast<const char*>(rows.address(batch, head));
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const char* row = first + i * step;
    for (std::int64_t byte = 0; byte < bytes; byte += kLineBytes) {
      __builtin_prefetch(row + byte, kAccess == Access::kWrite ? 1 : 0, 2);
    }
  }
}

/// No product overflows: NextHead leaves long ranges alone.
KeyRange part_of(KeyRange range, std::int64_t begin, std::int64_t end, std::int64_t whole) {
  const std::int64_t count = range.end - range.begin;
  return {range.begin + count * begin / whole, range.begin + count * end / whole};
}

}  // namespace

NextHead::NextHead(const ForwardProblem& problem, std::int64_t batch, std::int64_t kv_head, KeyRange range)
    : problem_(&problem), batch_(batch), kv_head_(kv_head), range_(range) {
  if (!problem.key_places.consecutive() || problem.k_places) problem_ = nullptr;
  const double rows = static_cast<double>(problem.rows_of_head()) + static_cast<double>(range.end - range.begin);
  const double columns = static_cast<double>(problem.head_dim) + static_cast<double>(problem.value_dim);
  if (rows * columns * static_cast<double>(size_of(problem.dtype)) > static_cast<double>(kMostBytes))
    problem_ = nullptr;
}

void NextHead::prefetch(std::int64_t begin, std::int64_t end, std::int64_t whole) const {
  if (problem_ == nullptr) return;
  const ForwardProblem& problem = *problem_;
  const KeyRange keys = part_of(range_, begin, end, whole);
  prefetch_rows<Access::kRead>(problem.k, batch_, kv_head_, keys, problem.head_dim);
  prefetch_rows<Access::kRead>(problem.v, batch_, kv_head_, keys, problem.value_dim);
  const KeyRange rows = part_of({0, problem.q_len}, begin, end, whole);
  for (std::int64_t h = kv_head_ * problem.group_size(); h < (kv_head_ + 1) * problem.group_size(); ++h) {
    prefetch_rows<Access::kRead>(problem.q, batch_, h, rows, problem.head_dim);
    prefetch_rows<Access::kWrite>(problem.out, batch_, h, rows, problem.value_dim);
  }
}

}  // namespace qkv::kernels
