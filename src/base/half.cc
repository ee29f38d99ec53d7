#include "qkv/half.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace qkv {
namespace {

/// A binary format of 16 bits: sign, exponent, fraction.
struct Format {
  int fraction_bits;
  int lowest_exponent;  ///< of the normal numbers

  std::uint16_t infinity() const { return static_cast<std::uint16_t>(0x7fff >> fraction_bits << fraction_bits); }
};

constexpr Format kBFloat16{7, -126};
constexpr Format kFloat16{10, -14};

std::uint16_t rounded(double value, const Format& format) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double size = std::fabs(value);
  const std::uint16_t infinity = format.infinity();
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | infinity | 1 << (format.fraction_bits - 1));
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  // In units of the last place the number is n in [2^fraction_bits, 2^(fraction_bits + 1)], or less where it is
  // subnormal. Rounding up to the next power of two carries into the exponent by itself.
  const int exponent = size == 0 ? format.lowest_exponent : std::max(std::ilogb(size), format.lowest_exponent);
  const double n = std::nearbyint(std::ldexp(size, format.fraction_bits - exponent));
  const std::int64_t code =
      (std::int64_t{exponent - format.lowest_exponent} << format.fraction_bits) + static_cast<std::int64_t>(n);
  return static_cast<std::uint16_t>(sign | std::min<std::int64_t>(code, infinity));
}

}  // namespace

BFloat16::BFloat16(double value) : bits(rounded(value, kBFloat16)) {}

BFloat16::operator float() const noexcept { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

Float16::Float16(double value) : bits(rounded(value, kFloat16)) {}

Float16::operator float() const noexcept {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  if (rest >= 0x400u) return std::bit_cast<float>(sign | ((rest << 13) + (112u << 23)));
  // Subnormal: a multiple of 2^-24, formed as 2^-14 + itself so that nothing on the way is a subnormal float.
  const float size = std::bit_cast<float>((rest << 13) + (113u << 23)) - 0x1p-14f;
  return sign != 0 ? -size : size;
}

}  // namespace qkv
