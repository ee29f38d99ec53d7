// Caches in files: what comes back computes the same bits, and a file that save has not written is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "attention/kv_tokens.h"
#include "base/safetensors.h"
#include "support/on_target.h"
#include "support/temporary_folder.h"

namespace qkv::support {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using Metadata = std::map<std::string, std::string>;
using Entries = std::map<std::string, Tensor>;

class CacheFile : public ::testing::Test {
 protected:
  template <class Cache>
  std::string error_of_load() const {
    return error_of<ValueError>([&] { Cache::load(path_); });
  }
  /// Of the file of a cache with something changed in it.
  template <class Cache, class Change>
  std::string error_with(const Cache& cache, const Change& change) const {
    cache.save(path_);
    Metadata metadata;
    Entries entries;
    read(metadata, entries);
    change(metadata, entries);
    write(metadata, entries);
    return error_of_load<Cache>();
  }

  /// The file as save has written it, to be changed and written again.
  void read(Metadata& metadata, Entries& entries) const {
    const SafetensorsFile file(path_);
    metadata = file.metadata();
    for (const std::string& name : file.names()) entries[name] = file.read(name);
  }
  void write(const Metadata& metadata, const Entries& entries) const {
    std::vector<qkv::NamedView> views;
    for (const auto& [name, tensor] : entries) views.push_back({name, tensor.view()});
    write_safetensors(path_, metadata, views);
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "cache.st";
};

Tensor attend_to(const KVView& kv, std::int64_t batch) {
  Random random(99);
  const Tensor q = random.normal_tensor({batch, 4, 1, kv.k.extent(3)}, Dtype::kFloat32);
  Tensor out({batch, 4, 1, kv.v.extent(3)}, Dtype::kFloat32);
  attention(q, kv, out, {.causal = true});
  return out;
}

template <class Cache>
void expect_round_trip(Cache& cache, const std::filesystem::path& path) {
  cache.save(path);
  Cache loaded = Cache::load(path);
  EXPECT_THAT(loaded.lengths(), ElementsAreArray(cache.lengths().begin(), cache.lengths().end()));
  EXPECT_EQ(loaded.nbytes(), cache.nbytes());
  const std::int64_t batch = cache.options().batch;
  EXPECT_TRUE(same_bits(attend_to(loaded.view(), batch), attend_to(cache.view(), batch)));
  Random random(7);
  const Tensor more = random.normal_tensor({batch, 2, 3, 8}, Dtype::kFloat32);
  for (Cache* each : {&cache, &loaded}) each->append(more, more);
  EXPECT_TRUE(same_bits(attend_to(loaded.view(), batch), attend_to(cache.view(), batch)));
}

TEST_F(CacheFile, AllKindsAndDtypesComeBack) {
  Random random(1);
  const Tensor tokens = random.normal_tensor({2, 2, 40, 8}, Dtype::kFloat32);
  const std::vector<std::int64_t> lengths{40, 13};
  for (const Dtype k : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBFloat16, Dtype::kInt8}) {
    for (const Dtype v : {Dtype::kFloat32, Dtype::kInt8}) {
      SCOPED_TRACE(std::string(name_of(k)) + " " + std::string(name_of(v)));
      KVCache slots({.batch = 2, .num_kv_heads = 2, .head_dim = 8, .capacity = 50, .k_dtype = k, .v_dtype = v});
      slots.append(tokens, tokens, lengths);
      expect_round_trip(slots, path_);
      KVCache ring({.batch = 2,
                    .num_kv_heads = 2,
                    .head_dim = 8,
                    .capacity = 20,
                    .k_dtype = k,
                    .v_dtype = v,
                    .window = 12,
                    .num_sinks = 3});
      ring.append(tokens, tokens, lengths);
      expect_round_trip(ring, path_);
      PagedKVCache pages(
          {.batch = 2, .num_kv_heads = 2, .head_dim = 8, .num_pages = 12, .page_size = 8, .k_dtype = k, .v_dtype = v});
      pages.append(tokens, tokens, lengths);
      expect_round_trip(pages, path_);
    }
  }
}

TEST_F(CacheFile, AnEmptyCacheComesBack) {
  KVCache slots({.batch = 2, .num_kv_heads = 2, .head_dim = 8, .capacity = 5});
  expect_round_trip(slots, path_);
  PagedKVCache pages({.batch = 2, .num_kv_heads = 2, .head_dim = 8, .num_pages = 5, .page_size = 4});
  expect_round_trip(pages, path_);
}

TEST_F(CacheFile, SharedPagesStayShared) {
  Random random(2);
  PagedKVCache pages({.num_kv_heads = 2, .head_dim = 8, .num_pages = 9, .page_size = 8});
  const Tensor tokens = random.normal_tensor({1, 2, 20, 8}, Dtype::kFloat32);
  pages.append(tokens, tokens);
  pages.grow(2);
  pages.share(0, 1, 20);
  expect_round_trip(pages, path_);
  EXPECT_EQ(pages.num_free_pages(), PagedKVCache::load(path_).num_free_pages() - 1)
      << "the copy of the page written to";
}

TEST_F(CacheFile, HoldsWhatIsFilledAlone) {
  KVCache cache({.num_kv_heads = 1, .head_dim = 8, .capacity = 100000});
  const Tensor tokens({1, 1, 3, 8}, Dtype::kFloat32);
  cache.append(tokens, tokens);
  cache.save(path_);
  EXPECT_LT(std::filesystem::file_size(path_), 2000U);
}

TEST_F(CacheFile, WhatSaveHasNotWrittenIsRefused) {
  Random random(3);
  KVCache cache({.batch = 2,
                 .num_kv_heads = 2,
                 .head_dim = 8,
                 .capacity = 20,
                 .k_dtype = Dtype::kInt8,
                 .window = 12,
                 .num_sinks = 3});
  const Tensor tokens = random.normal_tensor({2, 2, 40, 8}, Dtype::kFloat32);
  cache.append(tokens, tokens);
  cache.save(path_);
  EXPECT_THAT(error_of_load<PagedKVCache>(),
              HasSubstr("expected the format 'qkv.PagedKVCache 1', got 'qkv.KVCache 1'"));
  const auto with = [&](const auto& change) { return error_with(cache, change); };
  EXPECT_THAT(with([](Metadata& m, Entries&) { m.erase("format"); }),
              HasSubstr("expected the format 'qkv.KVCache 1', got none"));
  EXPECT_THAT(with([](Metadata& m, Entries&) { m.erase("capacity"); }), HasSubstr("metadata: 'capacity' is missing"));
  EXPECT_THAT(with([](Metadata& m, Entries&) { m["capacity"] = "20 "; }), HasSubstr("expected an integer, got '20 '"));
  EXPECT_THAT(with([](Metadata& m, Entries&) { m["capacity"] = "99999999999999999999"; }),
              HasSubstr("expected an integer"));
  EXPECT_THAT(with([](Metadata& m, Entries&) { m["capacity"] = "19"; }),
              HasSubstr("20 slots do not fit a capacity of 19"));
  EXPECT_THAT(with([](Metadata& m, Entries&) { m["capacity"] = "21"; }),
              HasSubstr("20 slots are not those of the lengths"));
  EXPECT_THAT(with([](Metadata& m, Entries&) { m["num_sinks"] = "-1"; }),
              HasSubstr("num_sinks: expected 0 or more, got -1"));
  EXPECT_THAT(with([](Metadata& m, Entries&) { m["window"] = "18"; }),
              HasSubstr("expected at least 3 sinks and a window of 18"));
  EXPECT_THAT(with([](Metadata&, Entries& e) { e.erase("v"); }), HasSubstr("'v'"));
  EXPECT_THAT(with([](Metadata&, Entries& e) { e.erase("k_scales"); }), HasSubstr("'k_scales'"));
  EXPECT_THAT(with([](Metadata&, Entries& e) { e["k_scales"] = Tensor({2, 2, 19}, Dtype::kFloat32); }),
              HasSubstr("tensor 'k_scales': expected float32 [2, 2, 20], got float32 [2, 2, 19]"));
  EXPECT_THAT(with([](Metadata&, Entries& e) { e["v"] = Tensor({2, 1, 20, 8}, Dtype::kFloat32); }),
              HasSubstr("tensor 'v': expected float32 [2, 2, 20, 8], got float32 [2, 1, 20, 8]"));
  EXPECT_THAT(with([](Metadata&, Entries& e) { e["k"] = Tensor({2, 20, 8}, Dtype::kInt8); }),
              HasSubstr("tensor 'k': expected 4 axes, got [2, 20, 8]"));
  EXPECT_THAT(with([](Metadata&, Entries& e) { e["k"] = Tensor({2, 2, 20, 8}, Dtype::kInt32); }),
              HasSubstr(".st: qkv::KVCache: k_dtype: expected float32"));
  EXPECT_THAT(with([](Metadata&, Entries& e) { e["lengths"].as<std::int64_t>()[1] = -1; }),
              HasSubstr("tensor 'lengths': expected 0 to 1152921504606846976 for sequence 1, got -1"));
  EXPECT_THAT(with([](Metadata&, Entries& e) { e["kept_from"].as<std::int64_t>()[0] = 22; }),
              HasSubstr("tensor 'kept_from': expected 23 to 40 for sequence 0, got 22"));
}

TEST_F(CacheFile, PageTablesThatNameNoPageAreRefused) {
  Random random(4);
  PagedKVCache pages({.num_kv_heads = 1, .head_dim = 8, .num_pages = 9, .page_size = 8});
  const Tensor tokens = random.normal_tensor({1, 1, 20, 8}, Dtype::kFloat32);
  pages.append(tokens, tokens);
  const auto with = [&](const auto& change) { return error_with(pages, change); };
  EXPECT_THAT(with([](Metadata&, Entries& e) { e["page_table"].as<std::int64_t>()[1] = 3; }),
              HasSubstr("tensor 'page_table': expected one of the 3 pages, from 0 on, got 3 at [0, 1]"));
  EXPECT_THAT(with([](Metadata&, Entries& e) { e["lengths"].as<std::int64_t>()[0] = 25; }),
              HasSubstr("tensor 'lengths': expected 0 to 24 for sequence 0, got 25"));
  EXPECT_THAT(with([](Metadata& m, Entries&) { m["num_pages"] = "2"; }), HasSubstr("3 pages do not fit into 2"));
  EXPECT_THAT(with([](Metadata&, Entries& e) {
                e["page_table"] = Tensor({0, std::int64_t{1} << 40}, Dtype::kInt64);
                e["lengths"] = Tensor({0}, Dtype::kInt64);
              }),
              HasSubstr("tensor 'page_table': 1099511627776 pages a sequence do not fit into 9"));
}

TEST_F(CacheFile, WhatTheSystemRefusesIsAFilesystemError) {
  const KVCache cache({.head_dim = 8, .capacity = 4});
  EXPECT_THROW(cache.save("/nonexistent/folder/cache.st"), std::filesystem::filesystem_error);
  EXPECT_THROW(KVCache::load("/nonexistent/cache.st"), std::filesystem::filesystem_error);
}

}  // namespace
}  // namespace qkv::support
