// What a KVView that was made by hand is refused for: nothing of it is read out of bounds.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "qkv/error.h"
#include "qkv/kv_view.h"
#include "support/elements.h"
#include "support/error_of.h"

namespace qkv {
namespace {

using support::error_of;
using support::tensor_of;

constexpr Dtype kF32 = Dtype::kFloat32;
constexpr std::int64_t kMost = std::int64_t{1} << 60;

/// A right call over slots, pages or a ring, to be spoiled in one place.
struct Right {
  Tensor q{{2, 4, 1, 8}, kF32}, out{{2, 4, 1, 6}, kF32};
  Tensor k{{2, 2, 5, 8}, kF32}, v{{2, 2, 5, 6}, kF32};
  Tensor scales{{2, 2, 5}, kF32};
  Tensor lengths = tensor_of({2}, Dtype::kInt64, {5, 3});
  Tensor table = tensor_of({2, 2}, Dtype::kInt32, {1, 0, 1, -1});
  Tensor kept = tensor_of({2}, Dtype::kInt64, {3, 1});
  KVView kv;
  AttentionOptions options;

  Right() {
    kv.k = k;
    kv.v = v;
    kv.lengths = lengths;
  }
  void in_pages() {
    lengths.as<std::int64_t>()[0] = 10;
    kv.page_table = table;
  }
  void in_a_ring() {
    lengths.as<std::int64_t>()[0] = 7;
    kv.num_sinks = 1;
    kv.window = 2;
    kv.kept_from = kept;
  }
  void set_length(std::int64_t value) { lengths.as<std::int64_t>()[0] = value; }

  template <class Error>
  std::string error(const std::function<void(Right&)>& spoil) {
    spoil(*this);
    return error_of<Error>([&] { attention(q, kv, out, options); });
  }
};

struct Spoiled {
  const char* text;
  std::function<void(Right&)> spoil;
};

template <class Error>
void expect_refused(const std::vector<Spoiled>& cases) {
  for (const Spoiled& one : cases) {
    Right right;
    const std::string text = right.error<Error>(one.spoil);
    EXPECT_EQ(text, std::string("qkv::attention: ") + one.text);
  }
}

TEST(ValidateKVView, RightCallsAreTaken) {
  for (const auto& form : {+[](Right&) {}, +[](Right& r) { r.in_pages(); }, +[](Right& r) { r.in_a_ring(); }}) {
    Right right;
    EXPECT_EQ(right.error<Error>(form), "nothing was thrown");
  }
}

TEST(ValidateKVView, NumbersNameWhatIsWrong) {
  const std::int64_t max = std::numeric_limits<std::int64_t>::max();
  expect_refused<ValueError>({
      {"kv.lengths: expected a number of keys in 0..2^60, got -1 for batch 0", [](Right& r) { r.set_length(-1); }},
      {"kv.lengths: expected a number of keys in 0..2^60, got 9223372036854775807 for batch 0",
       [max](Right& r) { r.set_length(max); }},
      {"kv.lengths: expected at most 5 slots of kv.k, got 6 for batch 0", [](Right& r) { r.set_length(6); }},
      {"kv_lens: a cache takes none: it knows the lengths", [](Right& r) { r.options.kv_lens = r.lengths; }},
      {"kv.num_sinks: expected 0 or more, got -1", [](Right& r) { r.kv.num_sinks = -1; }},
      {"kv.window: expected 1 or more, got 0", [](Right& r) { r.kv.window = 0; }},
      {"kv.k_scales: given beside numbers of float32, which have none", [](Right& r) { r.kv.k_scales = r.scales; }},
      {"kv.v_scales: given beside numbers of float32, which have none", [](Right& r) { r.kv.v_scales = r.scales; }},
      {"kv.k_scales: not given beside numbers of int8, which have a scale a key",
       [](Right& r) {
         r.k = Tensor({2, 2, 5, 8}, Dtype::kInt8);
         r.kv.k = r.k;
       }},
  });
}

TEST(ValidateKVView, PagesNameWhatIsWrong) {
  expect_refused<ValueError>({
      {"kv.page_table: expected one of the 2 pages, from 0 on, got 2 at [0, 1]",
       [](Right& r) {
         r.in_pages();
         r.table.as<std::int32_t>()[1] = 2;
       }},
      {"kv.page_table: expected one of the 2 pages, from 0 on, got -1 at [1, 1]",
       [](Right& r) {
         r.in_pages();
         r.lengths.as<std::int64_t>()[1] = 6;
       }},
      {"kv.page_table: 11 keys of batch 0 need 3 pages of 5, got 2 in [2, 2]",
       [](Right& r) {
         r.in_pages();
         r.set_length(11);
       }},
      {"kv.kept_from: given beside kv.page_table: pages form no ring",
       [](Right& r) {
         r.in_pages();
         r.kv.kept_from = r.kept;
       }},
  });
  expect_refused<ShapeError>({
      {"kv.page_table: expected batch 2 as in q, got 1 in [1, 4]",
       [](Right& r) {
         r.in_pages();
         r.table = Tensor({1, 4}, Dtype::kInt32);
         r.kv.page_table = r.table;
       }},
      {"kv.k: page_size is 0",
       [](Right& r) {
         r.in_pages();
         r.k = Tensor({2, 2, 0, 8}, kF32);
         r.v = Tensor({2, 2, 0, 6}, kF32);
         r.kv.k = r.k;
         r.kv.v = r.v;
       }},
      {"kv.v: expected num_pages 2 as in kv.k [2, 2, 5, 8], got 3 in [3, 2, 5, 6]",
       [](Right& r) {
         r.in_pages();
         r.v = Tensor({3, 2, 5, 6}, kF32);
         r.kv.v = r.v;
       }},
  });
  expect_refused<DtypeError>({{"kv.page_table: expected int32 or int64, got float32", [](Right& r) {
                                 r.in_pages();
                                 r.table = Tensor({2, 2}, kF32);
                                 r.kv.page_table = r.table;
                               }}});
}

TEST(ValidateKVView, RingsNameWhatIsWrong) {
  expect_refused<ValueError>({
      {"kv.kept_from: expected 3 or more, as 5 slots hold of 7 keys, got 2 for batch 0",
       [](Right& r) {
         r.in_a_ring();
         r.kept.as<std::int64_t>()[0] = 2;
       }},
      {"q: the first of 1 rows of batch 0, at position 6, sees keys from 2 on, but the ring holds those from 3 on; "
       "append "
       "fewer keys between two calls, or give a narrower window",
       [](Right& r) {
         r.in_a_ring();
         r.options.window.left = 4;
       }},
      {"query_offset: expected a number within +-2^60, got 1152921504606846977 for batch 0",
       [](Right& r) {
         r.in_a_ring();
         r.options.query_offset = kMost + 1;
       }},
  });
  expect_refused<ShapeError>({
      {"kv.k: 5 slots leave none for a ring behind 5 sinks",
       [](Right& r) {
         r.in_a_ring();
         r.kv.num_sinks = 5;
       }},
      {"kv.kept_from: expected [batch] = [2], got [3]",
       [](Right& r) {
         r.in_a_ring();
         r.kept = Tensor({3}, Dtype::kInt64);
         r.kv.kept_from = r.kept;
       }},
  });
}

TEST(ValidateKVView, ScalesNameWhatIsWrong) {
  const auto whole = [](Right& r) {
    r.k = Tensor({2, 2, 5, 8}, Dtype::kInt8);
    r.kv.k = r.k;
    r.kv.k_scales = r.scales;
  };
  Right right;
  EXPECT_EQ(right.error<Error>(whole), "nothing was thrown");
  expect_refused<ShapeError>({
      {"kv.k_scales: expected [batch, num_kv_heads, slots] = [2, 2, 5], got [2, 2, 4]",
       [&](Right& r) {
         whole(r);
         r.scales = Tensor({2, 2, 4}, kF32);
         r.kv.k_scales = r.scales;
       }},
      {"kv.k_scales: expected 3 axes [batch, num_kv_heads, slots], got 4 in [2, 2, 5, 1]",
       [&](Right& r) {
         whole(r);
         r.scales = Tensor({2, 2, 5, 1}, kF32);
         r.kv.k_scales = r.scales;
       }},
      {"kv.k: expected batch 2 as in q [2, 4, 1, 8], got 1 in [1, 2, 5, 8]",
       [](Right& r) {
         r.k = Tensor({1, 2, 5, 8}, kF32);
         r.kv.k = r.k;
       }},
  });
  expect_refused<DtypeError>({
      {"kv.k_scales: expected float32, got float64",
       [&](Right& r) {
         whole(r);
         r.scales = Tensor({2, 2, 5}, Dtype::kFloat64);
         r.kv.k_scales = r.scales;
       }},
      {"kv.k: expected float32, float16, bfloat16 or int8 beside a q of float32, got float64",
       [](Right& r) {
         r.k = Tensor({2, 2, 5, 8}, Dtype::kFloat64);
         r.kv.k = r.k;
       }},
  });
}

TEST(ValidateKVView, OutSharesNoMemoryWithIt) {
  Right right;
  const TensorView memory = right.v.view();
  const TensorView out(memory.data(), kF32, {2, 2, 1, 6}, {60, 30, 6, 1});
  try {
    attention(right.q.view().slice(1, 0, 2), right.kv, out);
    FAIL() << "nothing was thrown";
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(),
                 "qkv::attention: out: [2, 2, 1, 6] shares memory with kv.v [2, 2, 5, 6]; give it memory of "
                 "its own");
  }
}

}  // namespace
}  // namespace qkv
