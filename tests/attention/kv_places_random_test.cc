// Random calls over keys that turn by their places: a row has the bits of a call over keys that were turned for it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "attention/kept_pair.h"
#include "attention/rope_rows.h"

namespace qkv::support {
namespace {

Rope draw_rope(Random& random, std::int64_t head_dim) {
  RopeOptions options{.base = random.uniform(20, 500)};
  if (random.chance(0.5)) options.layout = RopeLayout::kInterleaved;
  options.rotary_dim = 2 * random.integer(1, head_dim / 2);
  switch (random.integer(0, *options.rotary_dim >= 4 ? 3 : 2)) {
    case 1:
      options.scaling = LinearScaling{random.uniform(1, 3)};
      break;
    case 2:
      options.scaling = YarnScaling{.factor = 3, .original_max_position = 20};
      break;
    case 3:
      options.scaling = DynamicScaling{random.uniform(1, 4)};
      options.max_position = random.integer(1, 60);
      break;
    default:
      break;
  }
  return Rope(head_dim, options);
}

Pair draw_turning_pair(Random& random, Dtype dtype, Keeping keeping, std::int64_t most) {
  Pair pair;
  do {
    pair = draw_pair(random, dtype, keeping, most);
  } while (pair.call.head_dim < 2);
  // A ring holds what the window that it was drawn for reaches; the others hold everything.
  std::optional<std::int64_t>& left = pair.call.options.window.left;
  if (keeping != Keeping::kRing && !left && random.chance(0.6)) left = random.integer(0, 20);
  pair.call.slopes.reset();
  pair.rope = draw_rope(random, pair.call.head_dim);
  pair.text += left ? " left " + std::to_string(*left) : "";
  return pair;
}

/// How a row and the keys that it sees turn, written from the words of KVView.
struct RowTurn {
  std::int64_t shift = 0;
  std::int64_t seq_len = 0;
  friend auto operator<=>(const RowTurn&, const RowTurn&) = default;
};

RowTurn turn_of(const Pair& pair, std::int64_t b, std::int64_t row) {
  const std::int64_t position = position_of(pair.call, pair.kept.lengths, b, row);
  RowTurn turn;
  if (const auto left = pair.call.options.window.left) {
    turn.shift = std::max<std::int64_t>(0, position - *left - pair.kept.num_sinks);
  }
  if (std::holds_alternative<DynamicScaling>(pair.rope->options().scaling)) turn.seq_len = position - turn.shift + 1;
  return turn;
}

/// Every row of x at position_of(b, i), turned and kept in a dtype.
template <class PositionOf>
std::unique_ptr<Guarded> turned_rows(const Rope& rope, const ConstTensorView& x, Dtype to, std::int64_t seq_len,
                                     const PositionOf& position_of_row) {
  Tensor rows(x.shape(), x.dtype());
  copy(x, rows);
  Tensor out(x.shape(), to);
  const auto angles = attention_detail::RopeRows::angles_of(rope, seq_len, 1);
  attention_detail::RopeRows turner(rope, RopePass::kForward, {x.dtype(), to}, angles);
  const std::int64_t columns = x.extent(3);
  std::int64_t offset = 0;
  for_each_index({x.extent(0), x.extent(1), x.extent(2)}, [&](const Extents& at) {
    turner.set_turn(0, position_of_row(at[0], at[2]));
    turner.rotate({.from = rows.as<char>() + offset * static_cast<std::int64_t>(size_of(x.dtype())),
                   .to = out.as<char>() + offset * static_cast<std::int64_t>(size_of(to)),
                   .count = 1});
    offset += columns;
  });
  auto guarded = std::make_unique<Guarded>(out.shape(), to);
  copy(out, *guarded);
  return guarded;
}

/// The call with q and k turned as this turn has it: rows that turn otherwise come to nothing.
Results run_turned(Pair& pair, const RowTurn& turn, const Wanted& wanted) {
  Call& call = pair.call;
  const std::int64_t sinks = pair.kept.num_sinks;
  auto q = turned_rows(*pair.rope, *call.q, call.dtype, turn.seq_len, [&](std::int64_t b, std::int64_t i) {
    return position_of(call, pair.kept.lengths, b, i) - turn.shift;
  });
  const Dtype turned = call.dtype == Dtype::kFloat64 ? Dtype::kFloat64 : Dtype::kFloat32;
  auto k = turned_rows(*pair.rope, *call.k, turned, turn.seq_len,
                       [&](std::int64_t, std::int64_t j) { return j < sinks ? j : j - turn.shift; });
  std::swap(call.q, q);
  std::swap(call.k, k);
  Results results = run_all(call, wanted);
  std::swap(call.q, q);
  std::swap(call.k, k);
  return results;
}

class TurnedInPlace : public OnTarget {};

TEST_P(TurnedInPlace, ARowHasTheBitsOfKeysThatWereTurnedForIt) {
  for (const Keeping keeping : kEveryKeeping) {
    for (std::uint64_t seed = 1; seed <= (kSanitized ? 4U : 16U) && !HasFailure(); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Random random(seed);
      Pair pair = draw_turning_pair(random, dtype(), keeping, 70);
      SCOPED_TRACE(pair.text);
      const Results kept = run_kept(pair, {});
      const Extents rows{pair.call.batch, pair.call.q_len};
      std::vector<RowTurn> turns;
      for_each_index(rows, [&](const Extents& at) { turns.push_back(turn_of(pair, at[0], at[1])); });
      window_to_mask(pair.call, pair.kept);
      for (const RowTurn& turn : std::set<RowTurn>(turns.begin(), turns.end())) {
        const Results expected = run_turned(pair, turn, {});
        for_each_index(rows, [&](const Extents& at) {
          if (turns[static_cast<std::size_t>(at[0] * rows[1] + at[1])] != turn || HasFailure()) return;
          const auto row = [&](const Results& results) {
            return sliced(sliced(results.views(), 0, at[0], at[0] + 1), 2, at[1], at[1] + 1);
          };
          SCOPED_TRACE("batch " + std::to_string(at[0]) + " row " + std::to_string(at[1]));
          expect_same_bits(row(kept), row(expected));
        });
      }
    }
  }
}

TEST_P(TurnedInPlace, ThreadsChangeNothing) {
  for (const Keeping keeping : kEveryKeeping) {
    for (std::uint64_t seed = 101; seed <= (kSanitized ? 102U : 108U) && !HasFailure(); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Random random(seed);
      const Pair pair = draw_turning_pair(random, dtype(), keeping, 200);
      SCOPED_TRACE(pair.text);
      const auto with_threads = [&](int threads) {
        const ThreadScope scope(threads);
        return run_kept(pair, {.matrices = seed % 2 == 0});
      };
      const Results one = with_threads(1);
      for (const int threads : {2, 5}) expect_same_bits(with_threads(threads), one);
    }
  }
}

class TurnedInPlaceAtAll : public OnTarget {};

TEST_P(TurnedInPlaceAtAll, IsWhatTheReferenceMakesOfIt) {
  for (const Keeping keeping : kEveryKeeping) {
    for (std::uint64_t seed = 201; seed <= (kSanitized ? 204U : 220U) && !HasFailure(); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Random random(seed);
      const Pair pair = draw_turning_pair(random, dtype(), keeping, 90);
      SCOPED_TRACE(pair.text);
      expect_close(run_kept(pair, {}), run_kept(pair, {}, true));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, TurnedInPlace, ::testing::ValuesIn(kernel_settings()), setting_name);
INSTANTIATE_TEST_SUITE_P(Targets, TurnedInPlaceAtAll, ::testing::ValuesIn(kernel_settings()), setting_name);
INSTANTIATE_TEST_SUITE_P(Halves, TurnedInPlaceAtAll, ::testing::ValuesIn(half_settings()), setting_name);

}  // namespace
}  // namespace qkv::support
