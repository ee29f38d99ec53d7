// Keys in slots, pages and rings: the bits are those of keys that lie one after the other.
#include "qkv/kv_view.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "attention/kept_pair.h"

namespace qkv::support {
namespace {

class KeptKeys : public OnTarget {};

TEST_P(KeptKeys, GiveTheBitsOfKeysInARow) {
  for (const Keeping keeping : kEveryKeeping) {
    for (std::uint64_t seed = 1; seed <= (kSanitized ? 12U : 45U) && !HasFailure(); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Random random(seed);
      Pair pair = draw_pair(random, dtype(), keeping, 300);
      SCOPED_TRACE(pair.text);
      const Wanted wanted{.matrices = random.chance(0.4)};
      const Results kept = run_kept(pair, wanted);
      window_to_mask(pair.call, pair.kept);
      expect_same_bits(kept, run_all(pair.call, wanted));
    }
  }
}

TEST_P(KeptKeys, AreWhatTheReferenceMakesOfThem) {
  for (const Keeping keeping : kEveryKeeping) {
    for (std::uint64_t seed = 201; seed <= (kSanitized ? 208U : 225U) && !HasFailure(); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Random random(seed);
      const Pair pair = draw_pair(random, dtype(), keeping, 150);
      SCOPED_TRACE(pair.text);
      expect_close(run_kept(pair, {}), run_kept(pair, {}, true));
    }
  }
}

TEST_P(KeptKeys, TheReferenceGathersThem) {
  for (const Keeping keeping : kEveryKeeping) {
    for (std::uint64_t seed = 301; seed <= (kSanitized ? 308U : 325U) && !HasFailure(); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Random random(seed);
      Pair pair = draw_pair(random, dtype(), keeping, 60);
      SCOPED_TRACE(pair.text);
      const Results kept = run_kept(pair, {}, true);
      window_to_mask(pair.call, pair.kept);
      expect_same_bits(kept, run_all(pair.call, {}, &reference::attention));
    }
  }
}

TEST_P(KeptKeys, OfALongSequenceLeaveAHoleBehindTheSinks) {
  for (std::uint64_t seed = 401; seed <= (kSanitized ? 403U : 412U) && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Pair pair{draw_call(random, dtype(), 40), {}, {}};
    Call& call = pair.call;
    // Lengths around the ends of chunks, and windows that leave whole chunks behind.
    constexpr std::int64_t kLengths[] = {600, 4096, 4097, 4400, 8192, 9000};
    call.kv_len = kLengths[random.integer(0, std::ssize(kLengths) - 1)];
    call.head_dim = random.integer(1, 20);
    call.value_dim = random.integer(1, 20);
    call.q_len = random.chance(0.5) ? random.integer(1, 4) : random.integer(5, 30);
    call.options = {.causal = random.chance(0.5), .window = {.left = random.integer(0, 300)}};
    for (auto* term : {&call.mask, &call.bias, &call.offsets}) term->reset();
    call.make_operands(random);
    call.stats_keys = {0, 2, call.kv_len - 1};
    pair.kept =
        KeptMaker(random, call, kEveryKeeping[random.integer(0, 2)]).make(false, random.chance(0.3) && is_f32());
    SCOPED_TRACE(call.describe() + " sinks " + std::to_string(pair.kept.num_sinks));
    const Wanted wanted{.matrices = random.chance(0.3)};
    const Results kept = run_kept(pair, wanted);
    {
      const ThreadScope on(3);
      expect_same_bits(run_kept(pair, wanted), kept);
    }
    window_to_mask(call, pair.kept);
    expect_same_bits(kept, run_all(call, wanted));
  }
}

TEST_P(KeptKeys, ThreadsChangeNothing) {
  for (const Keeping keeping : kEveryKeeping) {
    for (std::uint64_t seed = 601; seed <= (kSanitized ? 605U : 615U) && !HasFailure(); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Random random(seed);
      const Pair pair = draw_pair(random, dtype(), keeping, 400);
      SCOPED_TRACE(pair.text);
      const auto with_threads = [&](int threads) {
        const ThreadScope scope(threads);
        return run_kept(pair, {.matrices = seed % 2 == 0});
      };
      const Results one = with_threads(1);
      for (const int threads : {2, 3, 8}) expect_same_bits(with_threads(threads), one);
    }
  }
}

class KeptBesideHalf : public OnTarget {};

TEST_P(KeptBesideHalf, EightBitsGiveThoseOfFloat32RoundedOnce) {
  for (std::uint64_t seed = 501; seed <= 520 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Pair wide{draw_call(random, Dtype::kFloat32, 200), {}, {}};
    for_each_index(wide.call.q->shape(), [&](const Extents& at) {  // what 16 bits can hold
      Tensor number({}, dtype());
      write(number, {}, read(*wide.call.q, at));
      write(*wide.call.q, at, read(number, {}));
    });
    wide.kept = KeptMaker(random, wide.call, Keeping::kPages).make(true, true);
    const Results expected = run_kept(wide, {.matrices = false});
    Tensor narrow(wide.call.q->shape(), dtype());
    copy(*wide.call.q, narrow);
    Tensor rounded(expected.out.shape(), dtype());
    copy(expected.out, rounded);
    Tensor out(expected.out.shape(), dtype());
    AttentionOptions options = wide.call.full_options();
    options.kv_lens.reset();
    attention(narrow, wide.kept.view(), out, options);
    EXPECT_TRUE(same_bits(out, rounded));
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, KeptKeys, ::testing::ValuesIn(kernel_settings()), setting_name);
INSTANTIATE_TEST_SUITE_P(Halves, KeptBesideHalf, ::testing::ValuesIn(half_settings()), setting_name);
INSTANTIATE_TEST_SUITE_P(Halves, KeptKeys, ::testing::ValuesIn(half_settings()), setting_name);

}  // namespace
}  // namespace qkv::support
