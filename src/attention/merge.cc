#include "qkv/merge.h"

#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "attention/arguments.h"
#include "attention/validate_parts.h"
#include "base/element.h"

namespace qkv {
namespace {

using attention_detail::Arguments;
using attention_detail::operand_of;

constexpr double kEmpty = -std::numeric_limits<double>::infinity();
constexpr attention_detail::Axes kOutAxes{"[batch, num_heads, q_len, value_dim]", 1, 4};
constexpr attention_detail::Axes kLseAxes{"[batch, num_heads, q_len]", 1, 3};

struct Part {
  ConstTensorView out;
  ConstTensorView lse;
};

/// Everything that merge_states takes, checked and lifted to full rank.
struct Merge {
  std::vector<Part> parts;
  TensorView out;
  std::optional<TensorView> lse;
  std::optional<ConstTensorView> sinks;
};

Part check_part(Arguments& arguments, const PartialAttention& part, const PartialAttention& first, std::size_t index) {
  const std::string name = format_text("parts[{}]", index);
  const Part lifted{arguments.read(name + ".out", part.out, kOutAxes),
                    arguments.read(name + ".lse", part.lse, kLseAxes)};
  arguments.expect_real(name + ".out", part.out);
  if (part.out.dtype() != first.out.dtype()) {
    arguments.refuse<DtypeError>(name + ".out", "expected {} as in parts[0], got {}", first.out.dtype(),
                                 part.out.dtype());
  }
  if (!(part.out.shape() == first.out.shape())) {
    arguments.refuse<ShapeError>(name + ".out", "expected {} as in parts[0], got {}", first.out.shape(),
                                 part.out.shape());
  }
  arguments.expect_dtype(name + ".lse", part.lse, stats_dtype(part.out.dtype()));
  const Extents& shape = lifted.out.shape();
  arguments.expect_shape(name + ".lse", part.lse, lifted.lse, {shape[0], shape[1], shape[2]}, kLseAxes.names);
  return lifted;
}

Merge check(std::span<const PartialAttention> parts, const TensorView& out, const std::optional<TensorView>& lse,
            const std::optional<ConstTensorView>& sinks) {
  Arguments arguments("qkv::merge_states");
  if (parts.empty()) arguments.refuse<ValueError>("parts", "expected at least one, got none");
  Merge merge;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    merge.parts.push_back(check_part(arguments, parts[i], parts[0], i));
  }
  const ConstTensorView& model = merge.parts[0].out;
  merge.out = arguments.written("out", out, kOutAxes);
  arguments.expect_dtype("out", out, model.dtype());
  arguments.expect_shape("out", out, merge.out, model.shape(), kOutAxes.names);
  if (lse) {
    merge.lse = arguments.written("lse", *lse, kLseAxes);
    arguments.expect_dtype("lse", *lse, stats_dtype(model.dtype()));
    arguments.expect_shape("lse", *lse, *merge.lse, merge.parts[0].lse.shape(), kLseAxes.names);
  }
  if (sinks) merge.sinks = arguments.read_per_head("sinks", *sinks, model.dtype(), model.extent(0), model.extent(1));
  return merge;
}

/// Element [b, h, i] of a row-wise operand.
template <class T, class View>
auto* at(const View& view, std::int64_t b, std::int64_t h, std::int64_t i = 0) {
  const std::int64_t row = view.rank() > 2 ? i * view.stride(2) : 0;
  return view.template as<T>() + b * view.stride(0) + h * view.stride(1) + row;
}

/// ln(e^a + e^b). NaN propagates; two times -inf stays -inf, where the formula would make NaN of it.
double log_add(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return a + b;
  const double larger = std::max(a, b);
  if (larger == kEmpty) return kEmpty;
  return larger + std::log(std::exp(a - larger) + std::exp(b - larger));
}

template <class T>
using Lse = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// One row, in double and left to right; `sum` is scratch for the value_dim numbers.
template <class T>
void merge_row(const Merge& merge, std::int64_t b, std::int64_t h, std::int64_t i, std::vector<double>& sum) {
  double lse = kEmpty;
  std::fill(sum.begin(), sum.end(), 0.0);
  for (const Part& part : merge.parts) {
    const double part_lse = static_cast<double>(*at<Lse<T>>(part.lse, b, h, i));
    if (part_lse == kEmpty) continue;  // an empty part has no say, whatever its out holds
    const double joined = log_add(lse, part_lse);
    const double keep = lse == kEmpty ? 0 : std::exp(lse - joined);
    const double add = lse == kEmpty ? 1 : std::exp(part_lse - joined);
    const T* values = at<T>(part.out, b, h, i);
    for (double& value : sum) {
      value = keep * value + add * static_cast<double>(*values);
      values += part.out.stride(3);
    }
    lse = joined;
  }
  if (merge.sinks) {
    const double joined = log_add(lse, operand_of(*merge.sinks).number(b, h));
    if (lse != kEmpty) {
      const double keep = std::exp(lse - joined);
      for (double& value : sum) value *= keep;
    }
    lse = joined;
  }
  T* out = at<T>(merge.out, b, h, i);
  for (const double value : sum) {
    *out = static_cast<T>(value);
    out += merge.out.stride(3);
  }
  if (merge.lse) *at<Lse<T>>(*merge.lse, b, h, i) = static_cast<Lse<T>>(lse);
}

template <class T>
void merge_all(const Merge& merge) {
  std::vector<double> sum(static_cast<std::size_t>(merge.out.extent(3)));
  for (std::int64_t b = 0; b < merge.out.extent(0); ++b) {
    for (std::int64_t h = 0; h < merge.out.extent(1); ++h) {
      for (std::int64_t i = 0; i < merge.out.extent(2); ++i) merge_row<T>(merge, b, h, i, sum);
    }
  }
}

}  // namespace

void merge_states(std::span<const PartialAttention> parts, TensorView out, std::optional<TensorView> lse,
                  std::optional<ConstTensorView> sinks) {
  const Merge merge = check(parts, out, lse, sinks);
  visit_real(merge.out.dtype(), [&]<class T>(T) { merge_all<T>(merge); });
}

}  // namespace qkv
