#ifndef QKV_SRC_BASE_PHILOX_H_
#define QKV_SRC_BASE_PHILOX_H_

#include <array>
#include <cstdint>

namespace qkv {

/// Philox4x32, a random function of a counter and a key: the same numbers in any order, on any number of threads. 10
/// rounds are its authors' default, 7 the fewest that pass all of TestU01 (BigCrush).
/// Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011.
struct Philox {
  using Counter = std::array<std::uint32_t, 4>;
  using Key = std::array<std::uint32_t, 2>;

  static constexpr int kRounds = 10;
  static constexpr Key kMultipliers = {0xD2511F53, 0xCD9E8D57};
  static constexpr Key kKeySteps = {0x9E3779B9, 0xBB67AE85};  ///< added to the key after each round

  static constexpr Counter words(Counter counter, Key key, int rounds = kRounds) noexcept {
    for (int round = 0; round < rounds; ++round) {
      const std::uint64_t first = std::uint64_t{kMultipliers[0]} * counter[0];
      const std::uint64_t second = std::uint64_t{kMultipliers[1]} * counter[2];
      counter = {upper(second) ^ counter[1] ^ key[0], lower(second), upper(first) ^ counter[3] ^ key[1], lower(first)};
      key = {key[0] + kKeySteps[0], key[1] + kKeySteps[1]};
    }
    return counter;
  }

  static constexpr std::uint32_t lower(std::uint64_t number) noexcept { return static_cast<std::uint32_t>(number); }
  static constexpr std::uint32_t upper(std::uint64_t number) noexcept {
    return static_cast<std::uint32_t>(number >> 32);
  }
};

}  // namespace qkv

#endif  // QKV_SRC_BASE_PHILOX_H_
