// The same bits: a row depends on its own query, its visible keys at their positions, and the options; on nothing else.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/bits.h"
#include "support/part.h"
#include "support/random_call.h"
#include "support/visible_keys.h"

namespace qkv::support {
namespace {

void fill_key(const TensorView& operand, std::int64_t batch, std::int64_t head, std::int64_t key, double value) {
  for (std::int64_t c = 0; c < operand.extent(3); ++c) write(operand, {batch, head, key, c}, value);
}

/// Rows that see `key` become NaN; the others keep their bits.
void expect_poison_stays(const Call& call, const Guarded& clean, const Guarded& poisoned, const Tensor& visible,
                         const Extents& at) {
  const std::int64_t group = call.num_heads / call.num_kv_heads;
  for_each_index({call.batch, call.num_heads, call.q_len}, [&](const Extents& row) {
    const bool same_head = row[0] == at[0] && row[1] / group == at[1];
    const bool sees = same_head && read(visible, {row[0], row[1], row[2], at[2]}) != 0;
    for (std::int64_t c = 0; c < call.value_dim; ++c) {
      const Extents index{row[0], row[1], row[2], c};
      if (sees) {
        EXPECT_TRUE(std::isnan(read(poisoned, index))) << "a visible NaN is hidden at " << to_string(index);
      } else {
        const double before = read(clean, index);
        const double after = read(poisoned, index);
        EXPECT_TRUE(before == after && std::signbit(before) == std::signbit(after))
            << "a hidden NaN shows at " << to_string(index) << ": " << before << " became " << after;
      }
    }
  });
}

TEST_P(Bits, PoisonInOneKeyReachesOnlyRowsThatSeeIt) {
  for_random_calls(1, 120, 150, [](Random& random, Call& call) {
    if (call.kv_len == 0) return;
    const Tensor visible = visible_keys(call);
    const auto clean = run(call);
    for (int round = 0; round < 4; ++round) {
      const Extents at{random.integer(0, call.batch - 1), random.integer(0, call.num_kv_heads - 1),
                       random.integer(0, call.kv_len - 1)};
      const bool in_keys = round % 2 == 0;
      const TensorView operand = in_keys ? *call.k : *call.v;
      Tensor saved(operand.shape(), operand.dtype());
      copy(operand, saved);
      fill_key(operand, at[0], at[1], at[2], kNaN);
      SCOPED_TRACE(std::string(in_keys ? "k" : "v") + " poisoned at " + to_string(at));
      expect_poison_stays(call, *clean, *run(call), visible, at);
      copy(saved, operand);
    }
  });
}

TEST_P(Bits, EverythingHiddenMayHoldAnything) {
  for_random_calls(301, 100, 150, [](Random& random, Call& call) {
    const Tensor visible = visible_keys(call);
    const Results clean = run_all(call);
    const std::int64_t group = call.num_heads / call.num_kv_heads;
    const double poisons[] = {kNaN, kInf, -kInf, 3e38};
    for_each_index({call.batch, call.num_kv_heads, call.kv_len}, [&](const Extents& at) {
      bool seen = false;
      for (std::int64_t h = at[1] * group; h < (at[1] + 1) * group; ++h) {
        for (std::int64_t i = 0; i < call.q_len; ++i) seen |= read(visible, {at[0], h, i, at[2]}) != 0;
      }
      if (seen) return;
      fill_key(*call.k, at[0], at[1], at[2], poisons[random.integer(0, 3)]);
      fill_key(*call.v, at[0], at[1], at[2], poisons[random.integer(0, 3)]);
    });
    expect_same_bits(run_all(call), clean);
  });
}

TEST_P(Bits, PartsGiveTheBitsOfTheWhole) {
  for_random_calls(501, 100, 200, [](Random& random, Call& call) {
    const Results whole = run_all(call);
    const auto expect_part = [&whole](Part part, const std::string& what) {
      SCOPED_TRACE(what);
      part.expect_bits_of(whole);
    };
    const std::int64_t batch = random.integer(0, call.batch - 1);
    expect_part(Part(call).batches(batch, batch + 1), "batch " + std::to_string(batch) + " alone");
    const std::int64_t head = random.integer(0, call.num_kv_heads - 1);
    expect_part(Part(call).kv_heads(head, head + 1), "kv head " + std::to_string(head) + " alone");
    if (call.q_len == 0) return;
    const std::int64_t row = random.integer(0, call.q_len - 1);
    expect_part(Part(call).rows(row, row + 1), "row " + std::to_string(row) + " alone");
    const std::int64_t cut = random.integer(0, call.q_len);
    expect_part(Part(call).rows(0, cut), "rows before " + std::to_string(cut));
    expect_part(Part(call).rows(cut, call.q_len), "rows from " + std::to_string(cut));
  });
}

TEST_P(Bits, KeysBeyondTheVisibleOnesChangeNothing) {
  for_random_calls(701, 80, 200, [](Random& random, Call& call) {
    const std::int64_t end = random.integer(0, call.kv_len);
    // Hide the keys from `end` on by a mask, then leave them out altogether.
    Tensor mask({call.batch, call.num_heads, call.q_len, call.kv_len}, Dtype::kBool);
    for_each_index(mask.shape(), [&](const Extents& index) {
      const bool was = !call.mask || read(ConstTensorView(*call.mask).broadcast_to(mask.shape()), index) != 0;
      write(mask, index, was && index[3] < end ? 1 : 0);
    });
    call.mask = std::make_unique<Guarded>(mask.shape(), Dtype::kBool);
    copy(mask, *call.mask);
    SCOPED_TRACE("kv_len " + std::to_string(end));
    Part(call).keys(end).expect_bits_of(run_all(call));
  });
}

TEST_P(Bits, OutputsAskedForChangeNothing) {
  for_random_calls(1101, 60, 150, [](Random& random, Call& call) {
    const auto alone = run(call);
    const Results all = run_all(call, {.stage = static_cast<LogitsStage>(random.integer(0, 2))});
    EXPECT_TRUE(same_bits(all.out, *alone));
  });
}

TEST_P(Bits, StridesChangeNothing) {
  for_random_calls(1301, 60, 150, [](Random& random, Call& call) {
    const Results before = run_all(call);
    for (auto* operand : {&call.q, &call.k, &call.v, &call.mask, &call.bias}) {
      if (*operand == nullptr) continue;
      auto moved =
          std::make_unique<Guarded>((*operand)->view().shape(), (*operand)->view().dtype(), draw_layout(random));
      copy(**operand, *moved);
      *operand = std::move(moved);
    }
    expect_same_bits(run_all(call, {.layout = draw_layout(random)}), before);
  });
}

TEST_P(Bits, TheWayOfHidingChangesNothing) {
  for_random_calls(1501, 60, 200, [](Random& random, Call& call) {
    call.bias.reset();  // a bias is another formula
    call.mask.reset();
    const Tensor visible = visible_keys(call);
    const Results by_options = run_all(call);
    Call masked = std::move(call);
    masked.mask = std::make_unique<Guarded>(visible.shape(), Dtype::kBool, draw_layout(random));
    copy(visible, *masked.mask);
    {
      SCOPED_TRACE("mask added to the options");
      expect_same_bits(run_all(masked), by_options);
    }
    if (masked.slopes) return;  // ALiBi needs the positions, nothing else does
    masked.options.causal = false;
    masked.options.window = {};
    masked.kv_lens.reset();
    masked.offsets.reset();
    masked.options.query_offset = {};
    SCOPED_TRACE("mask instead of the options");
    expect_same_bits(run_all(masked), by_options);
  });
}

TEST_P(Bits, OrderInTheBatchChangesNothing) {
  for_random_calls(1701, 40, 120, [](Random&, Call& call) {
    call.mask.reset();
    call.bias.reset();
    call.sinks.reset();
    call.slopes.reset();
    const Results forward = run_all(call);
    Call turned = std::move(call);
    for (auto* operand : {&turned.q, &turned.k, &turned.v, &turned.kv_lens, &turned.offsets}) {
      if (*operand == nullptr) continue;
      auto other = std::make_unique<Guarded>((*operand)->view().shape(), (*operand)->view().dtype());
      for_each_index(other->view().shape(), [&](const Extents& index) {
        Extents from = index;
        from[0] = turned.batch - 1 - index[0];
        write(*other, index, read(**operand, from));
      });
      *operand = std::move(other);
    }
    const Results backward = run_all(turned);
    for (std::int64_t b = 0; b < turned.batch; ++b) {
      const std::int64_t from = turned.batch - 1 - b;
      expect_same_bits(sliced(forward.views(), 0, b, b + 1), sliced(backward.views(), 0, from, from + 1));
    }
  });
}

TEST_P(Bits, ColumnsOfVDoNotDependOnOthers) {
  // Many columns are computed in parts; what else is asked for is written once.
  const TargetScope scope(GetParam().target);
  Random random(2);
  Call call;
  call.dtype = GetParam().dtype;
  call.num_heads = 2;
  call.q_len = 7;
  call.kv_len = 300;
  call.head_dim = 16;
  call.value_dim = 1100;
  call.make_operands(random);
  call.stats_keys = {0, 17};
  const Results all = run_all(call);
  for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 512}, {500, 530}, {1023, 1100}}) {
    const auto part = attend(&attention, *call.q, *call.k, call.v->view().slice(3, begin, end), {}, all.wanted);
    EXPECT_TRUE(same_bits(part.out, all.out.view().slice(3, begin, end))) << begin;
    NamedViews parts = part.views();
    NamedViews whole = all.views();
    parts.erase(parts.begin());
    whole.erase(whole.begin());
    expect_same_bits(parts, whole);
  }
  expect_close(all, run_all(call, {}, &reference::attention));
}

TEST_P(Bits, DecodingIsPrefill) {
  // A few rows pack their keys block by block and read V where it lies, unless weights or logits are asked for.
  if (GetParam().target == "reference") GTEST_SKIP() << "one row at a time anyway, and slow";
  for_random_calls(1201, 30, 600, [](Random& random, Call& call) {
    if (call.q_len < 2) return;
    const Results whole = run_all(call, {.matrices = false});
    for (int round = 0; round < 4; ++round) {
      const std::int64_t row = random.integer(0, call.q_len - 1);
      const std::int64_t end = std::min(call.q_len, row + random.integer(1, 3));
      SCOPED_TRACE("rows " + std::to_string(row) + " to " + std::to_string(end));
      Part(call).rows(row, end).expect_bits_of(whole);
    }
  });
}

TEST_P(Bits, LongRowsAcrossChunks) {
  // More than two chunks of 4096 keys: one row at a time against many, and a cut inside a chunk.
  if (GetParam().target == "reference") GTEST_SKIP() << "one row at a time anyway, and slow";
  const TargetScope scope(GetParam().target);
  Random random(1);
  Call call;
  call.dtype = GetParam().dtype;
  call.num_heads = 2;
  call.q_len = 13;
  call.kv_len = 8192 + 700;
  call.head_dim = 16;
  call.value_dim = 24;
  call.make_operands(random);
  call.options.causal = true;
  call.stats_keys = {0, 4096, 8190, 8200};
  const Results whole = run_all(call);
  const Results without_matrices = run_all(call, {.matrices = false});
  for (std::int64_t row = 0; row < call.q_len; ++row) {
    SCOPED_TRACE("row " + std::to_string(row));
    Part(call).rows(row, row + 1).expect_bits_of(whole);
    Part(call).rows(row, row + 1).expect_bits_of(without_matrices);
  }
  SCOPED_TRACE("rows 0 to 4");
  Part(call).rows(0, 5).keys(call.kv_len - 8).expect_bits_of(whole);
}

INSTANTIATE_TEST_SUITE_P(On, Bits, ::testing::ValuesIn(every_setting()), setting_name);
INSTANTIATE_TEST_SUITE_P(Half, Bits, ::testing::ValuesIn(half_settings()), setting_name);

}  // namespace
}  // namespace qkv::support
