#include "attention/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <string_view>
#include <type_traits>

#include "base/raise.h"

namespace qkv::attention_detail {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;
/// Far beyond any model, and its tables, of 4 KiB a pair, take 128 MiB: a number by mistake is refused, not allocated.
constexpr std::int64_t kMostRotaryColumns = 65536;

void expect_number(std::string_view name, double value, double least, std::string_view expected) {
  if (std::isfinite(value) && value >= least) return;
  raise<ValueError>("qkv::Rope: {}: expected {}, got {}", name, expected, value);
}

void expect_positive(std::string_view name, double value) {
  if (std::isfinite(value) && value > 0) return;
  raise<ValueError>("qkv::Rope: {}: expected a finite number above 0, got {}", name, value);
}

void expect_length(std::string_view name, std::int64_t value) {
  if (value < 1) raise<ValueError>("qkv::Rope: {}: expected at least 1, got {}", name, value);
}

void expect_factor(double factor) { expect_number("scaling.factor", factor, 1, "a finite number from 1 on"); }

/// What each scaling wants beyond what all options want.
struct ScalingCheck {
  const RopeOptions& options;

  void operator()(std::monostate) const {}
  void operator()(const LinearScaling& linear) const { expect_factor(linear.factor); }
  void operator()(const DynamicScaling& dynamic) const {
    expect_factor(dynamic.factor);
    if (!options.max_position) raise<ValueError>("qkv::Rope: max_position: dynamic scaling needs it");
    // The exponent of the base is d / (d - 2).
    if (*options.rotary_dim < 4) {
      raise<ValueError>("qkv::Rope: rotary_dim: dynamic scaling needs at least 4, got {}", *options.rotary_dim);
    }
  }
  void operator()(const YarnScaling& yarn) const {
    expect_factor(yarn.factor);
    expect_length("scaling.original_max_position", yarn.original_max_position);
    expect_positive("scaling.beta_slow", yarn.beta_slow);
    expect_positive("scaling.beta_fast", yarn.beta_fast);
    if (yarn.beta_fast < yarn.beta_slow) {
      raise<ValueError>("qkv::Rope: scaling.beta_fast: expected at least beta_slow = {}, got {}", yarn.beta_slow,
                        yarn.beta_fast);
    }
    if (yarn.attention_factor) expect_positive("scaling.attention_factor", *yarn.attention_factor);
    if (yarn.mscale) expect_number("scaling.mscale", *yarn.mscale, 0, "a finite number from 0 on");
    if (yarn.mscale_all_dim) {
      expect_number("scaling.mscale_all_dim", *yarn.mscale_all_dim, 0, "a finite number from 0 on");
    }
  }
  void operator()(const Llama3Scaling& llama) const {
    expect_factor(llama.factor);
    expect_length("scaling.original_max_position", llama.original_max_position);
    expect_positive("scaling.low_freq_factor", llama.low_freq_factor);
    expect_positive("scaling.high_freq_factor", llama.high_freq_factor);
    if (llama.high_freq_factor <= llama.low_freq_factor) {
      raise<ValueError>("qkv::Rope: scaling.high_freq_factor: expected more than low_freq_factor = {}, got {}",
                        llama.low_freq_factor, llama.high_freq_factor);
    }
  }
};

/// base^(2i / dim), the wave length of pair i over 2 pi.
std::vector<double> plain_lengths(double base, std::int64_t dim) {
  std::vector<double> lengths(static_cast<std::size_t>(dim / 2));
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    // In double the rounded exponent, times ln(base), would show.
    lengths[i] = static_cast<double>(
        std::pow(static_cast<long double>(base), static_cast<long double>(2 * i) / static_cast<long double>(dim)));
  }
  return lengths;
}

std::vector<double> plain_frequencies(double base, std::int64_t dim) {
  std::vector<double> frequencies = plain_lengths(base, dim);
  for (double& frequency : frequencies) frequency = 1 / frequency;
  return frequencies;
}

/// Where YaRN's ramp begins and ends, in pairs.
struct Ramp {
  double low;
  double high;

  Ramp(const YarnScaling& yarn, double base, std::int64_t dim) {
    // The pair, not whole, that makes so many turns within the original length.
    const auto pair_of = [&](double turns) {
      const double length = static_cast<double>(yarn.original_max_position) / (turns * kTurn);
      return static_cast<double>(dim) * std::log(length) / (2 * std::log(base));
    };
    low = pair_of(yarn.beta_fast);
    high = pair_of(yarn.beta_slow);
    if (yarn.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(dim - 1));
    constexpr double kLeastWidth = 0.001;
    if (low == high) high += kLeastWidth;
  }

  /// 0 before it, 1 behind it.
  double at(std::size_t pair) const { return std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0); }
};

struct Frequencies {
  const RopeOptions& options;
  std::optional<std::int64_t> seq_len;

  std::int64_t dim() const { return *options.rotary_dim; }

  std::vector<double> operator()(std::monostate) const { return plain_frequencies(options.base, dim()); }

  std::vector<double> operator()(const LinearScaling& linear) const {
    std::vector<double> frequencies = plain_frequencies(options.base, dim());
    for (double& frequency : frequencies) frequency /= linear.factor;
    return frequencies;
  }

  std::vector<double> operator()(const DynamicScaling& dynamic) const {
    const auto trained = static_cast<double>(*options.max_position);
    const double length = std::max(static_cast<double>(seq_len.value_or(0)), trained);
    const double stretch = dynamic.factor * length / trained - (dynamic.factor - 1);
    const auto d = static_cast<double>(dim());
    return plain_frequencies(options.base * std::pow(stretch, d / (d - 2)), dim());
  }

  std::vector<double> operator()(const YarnScaling& yarn) const {
    const Ramp ramp(yarn, options.base, dim());
    std::vector<double> frequencies = plain_lengths(options.base, dim());
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      const double length = frequencies[i];
      const double kept = 1 - ramp.at(i);
      frequencies[i] = (1 - kept) / (yarn.factor * length) + kept / length;
    }
    return frequencies;
  }

  std::vector<double> operator()(const Llama3Scaling& llama) const {
    const auto trained = static_cast<double>(llama.original_max_position);
    std::vector<double> frequencies = plain_frequencies(options.base, dim());
    for (double& frequency : frequencies) {
      const double turns = trained * frequency / kTurn;
      const double kept = (turns - llama.low_freq_factor) / (llama.high_freq_factor - llama.low_freq_factor);
      if (kept >= 1) continue;
      frequency = kept <= 0 ? frequency / llama.factor : (1 - kept) * frequency / llama.factor + kept * frequency;
    }
    return frequencies;
  }
};

/// What YaRN multiplies logits by, spread over q and k.
double mscale_of(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

}  // namespace

RopeOptions checked_rope_options(std::int64_t head_dim, const RopeOptions& options) {
  RopeOptions checked = options;
  constexpr std::int64_t kMostColumns = (std::int64_t{1} << 31) - 1;
  if (head_dim < 1 || head_dim > kMostColumns) {
    raise<ValueError>("qkv::Rope: head_dim: expected 1 to {}, got {}", kMostColumns, head_dim);
  }
  if (!options.rotary_dim && head_dim > kMostRotaryColumns) {
    raise<ValueError>("qkv::Rope: head_dim: expected at most {}, got {}; say by rotary_dim how many columns turn",
                      kMostRotaryColumns, head_dim);
  }
  if (!options.rotary_dim && head_dim % 2 != 0) {
    raise<ValueError>("qkv::Rope: head_dim: {} is odd; say by rotary_dim how many columns turn", head_dim);
  }
  const std::int64_t dim = options.rotary_dim.value_or(head_dim);
  checked.rotary_dim = dim;
  if (dim < 2 || dim % 2 != 0 || dim > head_dim) {
    raise<ValueError>("qkv::Rope: rotary_dim: expected an even number from 2 to head_dim = {}, got {}", head_dim, dim);
  }
  if (dim > kMostRotaryColumns) {
    raise<ValueError>("qkv::Rope: rotary_dim: expected at most {}, got {}", kMostRotaryColumns, dim);
  }
  if (!std::isfinite(options.base) || options.base <= 1) {
    raise<ValueError>("qkv::Rope: base: expected a finite number above 1, got {}", options.base);
  }
  if (options.max_position) expect_length("max_position", *options.max_position);
  std::visit(ScalingCheck{checked}, checked.scaling);
  if (auto* yarn = std::get_if<YarnScaling>(&checked.scaling)) yarn->attention_factor = attention_factor_of(checked);
  return checked;
}

std::vector<double> rope_frequencies(const RopeOptions& options, std::optional<std::int64_t> seq_len) {
  return std::visit(Frequencies{options, seq_len}, options.scaling);
}

double attention_factor_of(const RopeOptions& options) {
  const auto* yarn = std::get_if<YarnScaling>(&options.scaling);
  if (yarn == nullptr) return 1;
  if (yarn->attention_factor) return *yarn->attention_factor;
  // As everywhere where these come from: 0 is "not given".
  const double mscale = yarn->mscale.value_or(0);
  const double all_dim = yarn->mscale_all_dim.value_or(0);
  if (mscale == 0 || all_dim == 0) return mscale_of(yarn->factor, 1);
  return mscale_of(yarn->factor, mscale) / mscale_of(yarn->factor, all_dim);
}

}  // namespace qkv::attention_detail
