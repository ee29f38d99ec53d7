#include "attention/rope_metadata.h"

#include <array>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/raise.h"
#include "base/safetensors.h"

namespace qkv::attention_detail {
namespace {

constexpr std::string_view kPrefix = "rope.";
constexpr std::string_view kLayouts[] = {"half", "interleaved"};
constexpr std::string_view kScalings[] = {"none", "linear", "dynamic", "yarn", "llama3"};
static_assert(std::variant_size_v<RopeScaling> == std::size(kScalings));

std::string key_of(std::string_view name) { return std::string(kPrefix).append(name); }

/// The shortest text that is this number again.
template <class Number>
std::string text_of(Number number) {
  std::array<char, 32> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), number);
  return {text.data(), end};
}

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

class Writer {
 public:
  explicit Writer(Metadata& metadata) : metadata_(&metadata) {}

  void name(std::string_view option, std::size_t index, std::span<const std::string_view> names) {
    (*metadata_)[key_of(option)] = names[index];
  }
  template <class T>
  void operator()(std::string_view option, const T& value) {
    if constexpr (IsOptional<T>::value) {
      if (value) (*this)(option, *value);
    } else if constexpr (std::is_same_v<T, bool>) {
      (*metadata_)[key_of(option)] = value ? "true" : "false";
    } else {
      (*metadata_)[key_of(option)] = text_of(value);
    }
  }

 private:
  Metadata* metadata_;
};

class Reader {
 public:
  explicit Reader(const Metadata& metadata) : metadata_(&metadata) {}

  bool has(std::string_view option) const { return metadata_->contains(key_of(option)); }

  std::size_t name(std::string_view option, std::span<const std::string_view> names) const {
    const std::string& given = text(option);
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (given == names[i]) return i;
    }
    std::string expected;
    for (const std::string_view known : names) expected.append(expected.empty() ? "" : ", ").append(known);
    refuse(option, "one of " + expected, given);
  }
  template <class T>
  void operator()(std::string_view option, T& value) const {
    if constexpr (IsOptional<T>::value) {
      if (has(option)) (*this)(option, value.emplace());
    } else if constexpr (std::is_same_v<T, bool>) {
      value = name(option, kFlags) == 1;
    } else {
      const std::string& given = text(option);
      const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), value);
      if (error == std::errc() && end == given.data() + given.size()) return;
      refuse(option, std::is_integral_v<T> ? "an integer" : "a number", given);
    }
  }

 private:
  static constexpr std::string_view kFlags[] = {"false", "true"};

  const std::string& text(std::string_view option) const {
    const auto found = metadata_->find(key_of(option));
    if (found == metadata_->end()) raise<ValueError>("metadata: '{}{}' is missing", kPrefix, option);
    return found->second;
  }
  [[noreturn]] static void refuse(std::string_view option, std::string_view expected, const std::string& given) {
    raise<ValueError>("metadata: '{}{}': expected {}, got '{}'", kPrefix, option, expected,
                      safetensors_printable(given));
  }

  const Metadata* metadata_;
};

/// Calls visit(name, member) for everything that a scaling is made of.
template <class Scaling, class Visit>
void for_each_parameter(Scaling& scaling, Visit& visit) {
  using Plain = std::remove_const_t<Scaling>;
  if constexpr (!std::is_same_v<Plain, std::monostate>) visit("factor", scaling.factor);
  if constexpr (std::is_same_v<Plain, YarnScaling>) {
    visit("original_max_position", scaling.original_max_position);
    visit("attention_factor", scaling.attention_factor);
    visit("beta_fast", scaling.beta_fast);
    visit("beta_slow", scaling.beta_slow);
    visit("mscale", scaling.mscale);
    visit("mscale_all_dim", scaling.mscale_all_dim);
    visit("truncate", scaling.truncate);
  }
  if constexpr (std::is_same_v<Plain, Llama3Scaling>) {
    visit("low_freq_factor", scaling.low_freq_factor);
    visit("high_freq_factor", scaling.high_freq_factor);
    visit("original_max_position", scaling.original_max_position);
  }
}

/// Makes it an empty scaling, by its place in the variant.
template <std::size_t... places>
void emplace_scaling(RopeScaling& scaling, std::size_t place, std::index_sequence<places...>) {
  static_cast<void>(((places == place && (scaling.emplace<places>(), true)) || ...));
}

/// What all ropes have.
template <class Options, class Visit>
void for_each_option(Options& options, Visit& visit) {
  visit("base", options.base);
  visit("rotary_dim", options.rotary_dim);
  visit("max_position", options.max_position);
  std::visit([&](auto& scaling) { for_each_parameter(scaling, visit); }, options.scaling);
}

}  // namespace

void add_rope(const Rope& rope, Metadata& metadata) {
  const RopeOptions& options = rope.options();
  Writer writer(metadata);
  writer.name("layout", static_cast<std::size_t>(options.layout), kLayouts);
  writer.name("scaling", options.scaling.index(), kScalings);
  for_each_option(options, writer);
}

std::optional<Rope> rope_in(const Metadata& metadata, std::int64_t head_dim) {
  const auto found = metadata.lower_bound(std::string(kPrefix));
  if (found == metadata.end() || !found->first.starts_with(kPrefix)) return std::nullopt;
  const Reader reader(metadata);
  RopeOptions options;
  options.layout = static_cast<RopeLayout>(reader.name("layout", kLayouts));
  emplace_scaling(options.scaling, reader.name("scaling", kScalings), std::make_index_sequence<std::size(kScalings)>());
  for_each_option(options, reader);
  return Rope(head_dim, options);
}

}  // namespace qkv::attention_detail
