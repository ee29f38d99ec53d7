// Pages: shared until somebody writes, given back, never lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "attention/kv_tokens.h"
#include "support/on_target.h"

namespace qkv::support {
namespace {

using ::testing::HasSubstr;

TEST(PagedKVCache, APrefixIsSharedUntilSomebodyWrites) {
  Random random(10);
  const Tokens prefix(random, {1, 2, 21, 24});
  const Tokens rest(random, {3, 2, 13, 24});
  const Tensor q = random.normal_tensor({3, 2, 1, 24}, Dtype::kFloat32);
  PagedKVCacheOptions options = small_pages(Dtype::kInt8, 8);
  options.batch = 1;
  PagedKVCache cache(options);
  append(cache, prefix, 0, 21);
  cache.grow(3);
  cache.share(0, 1, 21);
  cache.share(0, 2, 10);
  EXPECT_EQ(cache.num_free_pages(), 20 - 3);
  append(cache, rest, 0, 13);
  // 34, 34 and 23 keys in pages of 8, of which 2 and 1 whole pages are shared.
  EXPECT_EQ(cache.num_free_pages(), 20 - (5 + 3 + 2));
  const Tensor out = attend_to(q, cache.view());
  for (std::int64_t b = 0; b < 3; ++b) {
    PagedKVCache alone(options);
    append(alone, prefix, 0, b == 2 ? 10 : 21);
    alone.append(rest.k.view().slice(0, b, b + 1), rest.v.view().slice(0, b, b + 1));
    Tensor expected({1, 2, 1, 24}, Dtype::kFloat32);
    attention(q.view().slice(0, b, b + 1), alone.view(), expected);
    EXPECT_TRUE(same_bits(out.view().slice(0, b, b + 1), expected)) << b;
  }
  cache.truncate(std::vector<std::int64_t>{0, 0, 0});
  EXPECT_EQ(cache.num_free_pages(), 20);
}

TEST(PagedKVCache, TheLastUserOfAPageWritesInPlace) {
  Random random(11);
  const Tokens prefix(random, {1, 1, 6, 8});
  const Tokens next(random, {2, 1, 2, 8});
  PagedKVCache cache({.head_dim = 8, .num_pages = 2, .page_size = 8});
  append(cache, prefix, 0, 6);
  cache.grow(2);
  cache.share(0, 1, 6);
  append(cache, next, 0, 2);  // one copy, not two: there is no third page
  EXPECT_EQ(cache.num_free_pages(), 0);
  EXPECT_THAT(cache.lengths(), ::testing::ElementsAre(8, 8));
}

TEST(PagedKVCache, SharingNamesWhatIsWrong) {
  Random random(12);
  PagedKVCache cache(small_pages());
  append(cache, Tokens(random, {2, 2, 5, 24}), 0, 5);
  EXPECT_THAT(error_of<ValueError>([&] { cache.share(0, 2, 1); }),
              HasSubstr("to: expected one of the 2 sequences, from 0 on, got 2"));
  EXPECT_THAT(error_of<ValueError>([&] { cache.share(-1, 1, 1); }),
              HasSubstr("from: expected one of the 2 sequences, from 0 on, got -1"));
  EXPECT_THAT(error_of<ValueError>([&] { cache.share(0, 1, 1); }),
              HasSubstr("expected an empty sequence, got 1 with 5"));
  cache.truncate(std::vector<std::int64_t>{5, 0});
  EXPECT_THAT(error_of<ValueError>([&] { cache.share(0, 1, 6); }), HasSubstr("length: expected 0 to 5"));
}

}  // namespace
}  // namespace qkv::support
