// Files of caches whose keys turn by their places.
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

class PlacesFile : public ::testing::Test {
 protected:
  /// The metadata of the file, after one of its entries was changed; "" takes it away.
  std::string change(const std::string& key, const std::string& text) const {
    std::map<std::string, std::string> metadata;
    std::map<std::string, Tensor> entries;
    {
      const SafetensorsFile file(path_);
      metadata = file.metadata();
      for (const std::string& name : file.names()) entries[name] = file.read(name);
    }
    const std::string before = metadata.contains(key) ? metadata[key] : "none";
    metadata.erase(key);
    if (!text.empty()) metadata[key] = text;
    std::vector<qkv::NamedView> views;
    for (const auto& [name, tensor] : entries) views.push_back({name, tensor.view()});
    write_safetensors(path_, metadata, views);
    return before;
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "cache.st";
};

TEST_F(PlacesFile, BringsThemBack) {
  Random random(11);
  const Tokens all(random, {2, 2, 60, kRopeDim});
  const Tensor q = random.normal_tensor({2, 4, 2, kRopeDim}, Dtype::kFloat32);
  const auto check = [&](auto cache, const AttentionOptions& options) {
    append(cache, all, 0, 50);
    cache.save(path_);
    auto loaded = decltype(cache)::load(path_);
    EXPECT_EQ(loaded.options().positions, CachePositions::kCache);
    for (auto* each : {&cache, &loaded}) append(*each, all, 50, 51);
    EXPECT_TRUE(same_bits(attend_to(q, loaded.view(), options), attend_to(q, cache.view(), options)));
  };
  for (const auto& [name, rope] : ropes_in_places()) {
    SCOPED_TRACE(name);
    check(KVCache(ring_in_places(Dtype::kBFloat16, rope)), {});
    check(PagedKVCache(in_places(with_rope(small_pages(Dtype::kInt8), rope))), {.window = {.left = 8}});
  }
}

TEST_F(PlacesFile, WithoutANameAreAbsolute) {
  KVCache(with_rope(small_options(), Rope(kRopeDim))).save(path_);
  EXPECT_EQ(change("positions", ""), "none") << "files of absolute positions are those that there have always been";
  EXPECT_EQ(KVCache::load(path_).options().positions, CachePositions::kAbsolute);
  change("positions", "absolute");
  EXPECT_EQ(KVCache::load(path_).options().positions, CachePositions::kAbsolute);
}

TEST_F(PlacesFile, WhatSaveHasNotWrittenIsRefused) {
  const auto error = [this] { return error_of<ValueError>([this] { KVCache::load(path_); }); };
  KVCache(in_places(with_rope(small_options(), Rope(kRopeDim)))).save(path_);
  EXPECT_EQ(change("positions", "relative"), "cache");
  EXPECT_THAT(error(), HasSubstr("cache.st: metadata: 'positions': expected absolute or cache, got 'relative'"));
  KVCache(small_options()).save(path_);
  change("positions", "cache");
  EXPECT_THAT(error(), HasSubstr("cache.st: qkv::KVCache: positions: places in the cache are what a rope turns"));
}

}  // namespace
}  // namespace qkv::support
