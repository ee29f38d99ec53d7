// Files of caches that turn: every option comes back to the bit, and what does not fit together is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "attention/kv_ropes.h"
#include "base/safetensors.h"
#include "support/on_target.h"
#include "support/temporary_folder.h"

namespace qkv::support {
namespace {

using ::testing::HasSubstr;

class RopeFile : public ::testing::Test {
 protected:
  /// What load says of the file of a cache with some of the metadata changed; "" takes away.
  std::string error_with(const KVCache& cache, const std::map<std::string, std::string>& changes) const {
    cache.save(path_);
    std::map<std::string, std::string> metadata;
    std::map<std::string, Tensor> entries;
    {
      const SafetensorsFile file(path_);
      metadata = file.metadata();
      for (const std::string& name : file.names()) entries[name] = file.read(name);
    }
    for (const auto& [key, text] : changes) {
      metadata.erase(key);
      if (!text.empty()) metadata[key] = text;
    }
    std::vector<qkv::NamedView> views;
    for (const auto& [name, tensor] : entries) views.push_back({name, tensor.view()});
    write_safetensors(path_, metadata, views);
    return error_of<ValueError>([&] { KVCache::load(path_); });
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "cache.st";
};

void expect_same_rope(const Rope& a, const Rope& b) {
  EXPECT_EQ(a.head_dim(), b.head_dim());
  EXPECT_EQ(a.options().base, b.options().base);
  EXPECT_EQ(a.options().rotary_dim, b.options().rotary_dim);
  EXPECT_EQ(a.options().layout, b.options().layout);
  EXPECT_EQ(a.options().max_position, b.options().max_position);
  EXPECT_EQ(a.options().scaling.index(), b.options().scaling.index());
  EXPECT_EQ(a.attention_factor(), b.attention_factor());
  EXPECT_EQ(a.frequencies(), b.frequencies());
}

TEST_F(RopeFile, EveryOptionComesBack) {
  Random random(1);
  const Tokens tokens(random, {2, 2, 40, kRopeDim});
  const Tensor q = random.normal_tensor({2, 4, 1, kRopeDim}, Dtype::kFloat32);
  const auto check = [&](auto cache, const Rope& rope) {
    append(cache, tokens, 0, 30);
    cache.save(path_);
    auto loaded = decltype(cache)::load(path_);
    ASSERT_TRUE(loaded.options().rope.has_value());
    expect_same_rope(*loaded.options().rope, rope);
    for (auto* each : {&cache, &loaded}) append(*each, tokens, 30, 40);
    EXPECT_TRUE(same_bits(attend_to(q, loaded.view()), attend_to(q, cache.view())));
  };
  for (const auto& [name, rope] : ropes_of_caches()) {
    SCOPED_TRACE(name);
    check(KVCache(with_rope(small_options(Dtype::kBFloat16), rope)), rope);
    check(PagedKVCache(with_rope(small_pages(Dtype::kInt8), rope)), rope);
  }
}

TEST_F(RopeFile, EveryNumberOfAScalingComesBack) {
  const YarnScaling yarn{.factor = 1.1,
                         .original_max_position = 123,
                         .attention_factor = 0.1 + 0.2,
                         .beta_fast = 31.3,
                         .beta_slow = 1.7,
                         .mscale = 0.7,
                         .mscale_all_dim = 1e-300,
                         .truncate = false};
  const Rope rope(kRopeDim, {.base = 1 + 0x1p-52, .scaling = yarn, .max_position = 1 << 20});
  KVCache(with_rope(small_options(), rope)).save(path_);
  const Rope loaded = *KVCache::load(path_).options().rope;
  expect_same_rope(loaded, rope);
  const auto& back = std::get<YarnScaling>(loaded.options().scaling);
  EXPECT_EQ(back.factor, yarn.factor);
  EXPECT_EQ(back.original_max_position, yarn.original_max_position);
  EXPECT_EQ(back.attention_factor, yarn.attention_factor);
  EXPECT_EQ(back.beta_fast, yarn.beta_fast);
  EXPECT_EQ(back.beta_slow, yarn.beta_slow);
  EXPECT_EQ(back.mscale, yarn.mscale);
  EXPECT_EQ(back.mscale_all_dim, yarn.mscale_all_dim);
  EXPECT_EQ(back.truncate, yarn.truncate);
}

TEST_F(RopeFile, ACacheWithoutOneHasNone) {
  KVCache(small_options()).save(path_);
  EXPECT_FALSE(KVCache::load(path_).options().rope.has_value());
}

TEST_F(RopeFile, WhatSaveHasNotWrittenIsRefused) {
  const YarnScaling yarn{.factor = 4, .original_max_position = 16};
  const KVCache cache(with_rope(small_options(), Rope(kRopeDim, {.scaling = yarn})));
  const auto expect = [&](const std::map<std::string, std::string>& changes, const std::string& text) {
    EXPECT_THAT(error_with(cache, changes), HasSubstr("cache.st: " + text));
  };
  expect({{"rope.base", ""}}, "metadata: 'rope.base' is missing");
  expect({{"rope.base", "1e4x"}}, "metadata: 'rope.base': expected a number, got '1e4x'");
  expect({{"rope.base", "nan"}}, "qkv::Rope: base: expected a finite number above 1, got nan");
  expect({{"rope.base", "1e999"}}, "metadata: 'rope.base': expected a number, got '1e999'");
  expect({{"rope.layout", "whole"}}, "metadata: 'rope.layout': expected one of half, interleaved, got 'whole'");
  expect({{"rope.layout", ""}}, "metadata: 'rope.layout' is missing");
  expect({{"rope.scaling", "longrope"}},
         "metadata: 'rope.scaling': expected one of none, linear, dynamic, yarn, llama3, got 'longrope'");
  expect({{"rope.scaling", "llama3"}}, "metadata: 'rope.low_freq_factor' is missing");
  expect({{"rope.rotary_dim", "26"}}, "qkv::Rope: rotary_dim: expected an even number from 2 to head_dim = 24, got 26");
  expect({{"rope.rotary_dim", "8.5"}}, "metadata: 'rope.rotary_dim': expected an integer, got '8.5'");
  expect({{"rope.truncate", "1"}}, "metadata: 'rope.truncate': expected one of false, true, got '1'");
  expect({{"rope.factor", "-2"}}, "qkv::Rope: scaling.factor: expected a finite number from 1 on, got -2");
  expect({{"rope.scaling", "dynamic"}, {"rope.max_position", "8"}}, "qkv::KVCache: rope: dynamic scaling changes");
}

TEST_F(RopeFile, LengthsOfARingEndWherePositionsDo) {
  const Rope rope(2);
  KVCache cache({.head_dim = 2, .capacity = 8, .window = 4, .rope = rope});
  const float one[2] = {1, 1};
  const ConstTensorView many(one, Dtype::kFloat32, {1, 1, (std::int64_t{1} << 53), 2}, {0, 0, 0, 1});
  cache.append(many, many);
  cache.save(path_);
  EXPECT_EQ(KVCache::load(path_).lengths()[0], std::int64_t{1} << 53);
  KVCache longer({.head_dim = 2, .capacity = 8, .window = 4});
  longer.append(many, many);
  longer.append(many, many);
  EXPECT_THAT(
      error_with(longer,
                 {{"rope.base", "10000"}, {"rope.rotary_dim", "2"}, {"rope.layout", "half"}, {"rope.scaling", "none"}}),
      HasSubstr("tensor 'lengths': expected 0 to 9007199254740992 for sequence 0, got 18014398509481984"));
}

}  // namespace
}  // namespace qkv::support
