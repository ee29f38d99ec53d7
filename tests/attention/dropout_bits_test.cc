// Random calls with dropout: against the reference, and the same bits however they are cut.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "attention/bits.h"
#include "support/draw_dropout.h"
#include "support/part.h"

namespace qkv::support {
namespace {

/// What dropout multiplies: out, and so its error.
NamedViews with_wider_out(const Results& results, const Dropout& dropout) {
  NamedViews views = results.views();
  views.front().tolerance.coefficient /= 1 - dropout.p;
  return views;
}

NamedViews all_but_out(const Results& results) {
  NamedViews views = results.views();
  views.erase(views.begin());
  return views;
}

class DropoutBits : public Bits {
 protected:
  /// The random calls of the suite, with dropout.
  template <class Body>
  void for_dropped_calls(std::uint64_t first_seed, int count, std::int64_t most, Body body) {
    for_random_calls(first_seed, count, most, [&](Random& random, Call& call) {
      call.options.dropout = draw_dropout(random);
      SCOPED_TRACE("p " + std::to_string(call.options.dropout.p));
      body(random, call);
    });
  }
};

TEST_P(DropoutBits, IsThatOfTheReference) {
  for_dropped_calls(1, 40, 60, [](Random& random, Call& call) {
    const Wanted wanted{.matrices = random.chance(0.5)};
    const Results expected = run_all(call, wanted, &reference::attention);
    expect_close(with_wider_out(run_all(call, wanted), call.options.dropout),
                 with_wider_out(expected, call.options.dropout));
  });
  for_dropped_calls(101, 20, 600, [](Random&, Call& call) {
    if (call.kv_len <= 256) return;  // of more than one block
    const Results expected = run_all(call, {.matrices = false}, &reference::attention);
    expect_close(with_wider_out(run_all(call, {.matrices = false}), call.options.dropout),
                 with_wider_out(expected, call.options.dropout));
  });
}

TEST_P(DropoutBits, ChangesOutAlone) {
  for_dropped_calls(201, 20, 200, [](Random& random, Call& call) {
    const Wanted wanted{.stage = static_cast<LogitsStage>(random.integer(0, 2))};
    const Results with = run_all(call, wanted);
    call.options.dropout = {};
    expect_same_bits(all_but_out(with), all_but_out(run_all(call, wanted)));
  });
}

TEST_P(DropoutBits, OfProbabilityZeroIsNone) {
  for_dropped_calls(301, 15, 200, [](Random& random, Call& call) {
    call.options.dropout = {.p = 0, .seed = random.bits()};
    const Results with = run_all(call);
    call.options.dropout = {};
    expect_same_bits(with, run_all(call));
  });
}

TEST_P(DropoutBits, OfProbabilityOneLeavesZero) {
  for_dropped_calls(401, 10, 200, [](Random&, Call& call) {
    call.options.dropout.p = 1;
    const auto out = run(call);
    for_each_index(out->view().shape(), [&](const Extents& at) {
      ASSERT_EQ(read(*out, at), 0) << to_string(at);
      ASSERT_FALSE(std::signbit(read(*out, at))) << to_string(at);
    });
  });
}

TEST_P(DropoutBits, PartsGiveTheBitsOfTheWhole) {
  for_dropped_calls(501, 20, 300, [](Random& random, Call& call) {
    const Results whole = run_all(call);
    const std::int64_t first = random.integer(0, call.q_len);
    const std::int64_t last = random.integer(first, call.q_len);
    Part(call).rows(first, last).expect_bits_of(whole);
    if (call.q_len > 0) Part(call).rows(last - (last > 0), last - (last > 0) + 1).expect_bits_of(whole);
    // Batches and heads count from 0: the first ones are the same alone.
    Part(call).batches(0, random.integer(1, call.batch)).expect_bits_of(whole);
    Part(call).kv_heads(0, random.integer(1, call.num_kv_heads)).expect_bits_of(whole);
  });
}

TEST_P(DropoutBits, ThreadsChangeNothing) {
  for_dropped_calls(601, 8, 300, [](Random&, Call& call) {
    const auto with_threads = [&](int threads) {
      const ThreadScope scope(threads);
      return run_all(call);
    };
    const Results one = with_threads(1);
    for (const int threads : {2, 3, 8}) expect_same_bits(with_threads(threads), one);
  });
}

INSTANTIATE_TEST_SUITE_P(On, DropoutBits, ::testing::ValuesIn(kernel_settings()), setting_name);
INSTANTIATE_TEST_SUITE_P(Half, DropoutBits, ::testing::ValuesIn(half_settings()), setting_name);

}  // namespace
}  // namespace qkv::support
