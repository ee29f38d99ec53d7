#include "kernels/dropout.h"

#include <cmath>

namespace qkv::kernels {

RowDropout row_dropout(const ForwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t position) {
  const auto at = static_cast<std::uint64_t>(position);
  const Philox::Counter counter = {Philox::lower(at), Philox::upper(at), static_cast<std::uint32_t>(head),
                                   static_cast<std::uint32_t>(problem.first_batch + batch)};
  return {Philox::words(counter, {Philox::lower(problem.seed), Philox::upper(problem.seed)}),
          static_cast<std::uint64_t>(std::llround(problem.dropout * 0x1p32))};
}

std::uint64_t kept_word(const RowDropout& row, std::int64_t base) {
  constexpr int kCounters = 16;  // of four numbers each
  const auto& [r0, r1, r2, r3] = row.state;
  std::uint64_t word = 0;
  for (int c = 0; c < kCounters; ++c) {
    const auto at = static_cast<std::uint64_t>(base / 4 + c);
    const Philox::Counter numbers =
        Philox::words({Philox::lower(at), Philox::upper(at), r2, r3}, {r0, r1}, kWordRounds);
    for (int i = 0; i < 4; ++i) {
      const bool kept = numbers[static_cast<std::size_t>(i)] >= row.threshold;
      word |= std::uint64_t{kept} << (kCounters * i + c);
    }
  }
  return word;
}

}  // namespace qkv::kernels
