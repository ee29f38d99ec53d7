#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "attention/arguments.h"
#include "base/element.h"
#include "base/shape.h"
#include "qkv/position.h"

namespace qkv {
namespace {

using attention_detail::Arguments;

/// Of a number of heads that is a power of two: 2^(-8 / n), and its powers.
double slope(std::int64_t head, std::int64_t num_heads) {
  return std::exp2(-8.0 * static_cast<double>(head + 1) / static_cast<double>(num_heads));
}

double slope_of_any(std::int64_t head, std::int64_t num_heads) {
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(num_heads)));
  return head < power ? slope(head, power) : slope(2 * (head - power), 2 * power);
}

/// The buckets of one side of the row, before it or behind.
struct Side {
  std::int64_t buckets;
  std::int64_t exact;  ///< distances that have a bucket of their own: half of them
  std::int64_t max_distance;

  Side(std::int64_t num_buckets, const T5Options& options)
      : buckets(options.bidirectional ? num_buckets / 2 : num_buckets),
        exact(buckets / 2),
        max_distance(options.max_distance) {}

  std::int64_t bucket(std::int64_t distance) const {
    if (distance < exact) return distance;
    // float32, operation by operation as in the models' own code: a distance at the border of two buckets is to fall
    // where it fell in training.
    const auto first = static_cast<float>(exact);
    const float ratio = static_cast<float>(distance) / first;
    const auto scale = static_cast<float>(std::log(static_cast<double>(max_distance) / static_cast<double>(exact)));
    const auto logarithm = static_cast<float>(std::log(static_cast<double>(ratio)));
    const float steps = logarithm / scale * static_cast<float>(buckets - exact);
    if (!(steps < static_cast<float>(buckets - exact))) return buckets - 1;  // infinite or NaN where scale is 0, too
    return std::min(exact + static_cast<std::int64_t>(steps), buckets - 1);
  }
};

void check_t5(std::string_view function, std::int64_t num_buckets, const T5Options& options) {
  const std::int64_t least = options.bidirectional ? 4 : 2;
  if (num_buckets < least) {
    raise<ValueError>("{}: num_buckets: expected at least {}, got {}", function, least, num_buckets);
  }
  const Side side(num_buckets, options);
  if (options.max_distance <= side.exact) {
    raise<ValueError>("{}: max_distance: expected more than {}, which have buckets of their own, got {}", function,
                      side.exact, options.max_distance);
  }
}

std::int64_t bucket_of(std::int64_t relative, std::int64_t num_buckets, const T5Options& options) {
  const Side side(num_buckets, options);
  // Beyond this all distances share the last bucket; and the smallest integer has no opposite.
  constexpr std::int64_t kFar = std::int64_t{1} << 62;
  relative = std::clamp(relative, -kFar, kFar);
  if (!options.bidirectional) return side.bucket(std::max<std::int64_t>(-relative, 0));
  return (relative > 0 ? side.buckets : 0) + side.bucket(std::abs(relative));
}

}  // namespace

void alibi_slopes(TensorView out) {
  Arguments arguments("qkv::alibi_slopes");
  arguments.written("out", out, {"[num_heads]", 1, 1});
  arguments.expect_real("out", out);
  if (out.extent(0) == 0) arguments.refuse<ValueError>("num_heads", "expected at least 1, got 0");
  const auto item = static_cast<std::int64_t>(size_of(out.dtype()));
  for (std::int64_t h = 0; h < out.extent(0); ++h) {
    put_number(slope_of_any(h, out.extent(0)), static_cast<char*>(out.data()) + h * out.stride(0) * item, out.dtype());
  }
}

std::int64_t t5_bucket(std::int64_t relative, std::int64_t num_buckets, const T5Options& options) {
  check_t5("qkv::t5_bucket", num_buckets, options);
  return bucket_of(relative, num_buckets, options);
}

void t5_bias(ConstTensorView table, TensorView out, const T5Options& options) {
  Arguments arguments("qkv::t5_bias");
  arguments.read("table", table, {"[num_buckets, num_heads]", 2, 2});
  arguments.expect_real("table", table);
  arguments.written("out", out, {"[num_heads, q_len, kv_len]", 3, 3});
  arguments.expect_dtype("out", out, table.dtype());
  if (out.extent(0) != table.extent(1)) {
    arguments.refuse<ShapeError>("out", "expected num_heads = {} as the first axis, got {}", table.extent(1),
                                 out.shape());
  }
  check_t5("qkv::t5_bias", table.extent(0), options);
  constexpr std::int64_t kFarthestOffset = std::int64_t{1} << 60;
  if (options.query_offset < -kFarthestOffset || options.query_offset > kFarthestOffset) {
    arguments.refuse<ValueError>("query_offset", "expected -2^60 to 2^60, got {}", options.query_offset);
  }
  if (has_no_elements(out.shape())) return;
  const std::int64_t q_len = out.extent(1);
  const std::int64_t kv_len = out.extent(2);
  // One bucket a diagonal: key j and row i are on diagonal j - i + q_len - 1.
  std::vector<std::int64_t> buckets(static_cast<std::size_t>(q_len + kv_len - 1));
  for (std::size_t d = 0; d < buckets.size(); ++d) {
    const std::int64_t relative = static_cast<std::int64_t>(d) - (q_len - 1) - options.query_offset;
    buckets[d] = bucket_of(relative, table.extent(0), options) * table.stride(0);
  }
  visit_real(table.dtype(), [&]<class T>(T) {
    for (std::int64_t h = 0; h < out.extent(0); ++h) {
      const T* column = table.as<T>() + h * table.stride(1);
      for (std::int64_t i = 0; i < q_len; ++i) {
        const std::int64_t* row = buckets.data() + (q_len - 1 - i);
        T* to = out.as<T>() + h * out.stride(0) + i * out.stride(1);
        for (std::int64_t j = 0; j < kv_len; ++j) to[j * out.stride(2)] = column[row[j]];
      }
    }
  });
}

}  // namespace qkv
