// Random numbers one at a time, as Note [Random streams] (src/ops/random/philox.h) says: what tests compare with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tutti::test {

struct PhiloxWords {
  uint32_t word[4];
};

/// Philox 4x32-10.
inline PhiloxWords plain_philox(uint64_t seed, uint64_t block) {
  uint32_t c[4] = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0};
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int r = 0; r < 10; ++r) {
    uint64_t p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
    uint32_t n[4] = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
                     static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    std::copy(n, n + 4, c);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c[0], c[1], c[2], c[3]}};
}

/// What element i gets of a stream: its word, or its two words.
struct PlainStream {
  uint64_t seed = 0, position = 0;

  PhiloxWords block_of(int64_t i, int64_t elements) const {
    return plain_philox(seed, position + static_cast<uint64_t>(i / elements * 16 + i % 16));
  }
  uint32_t word(int64_t i) const { return block_of(i, 64).word[i / 16 % 4]; }
  /// 64 bits, of which the first word is the upper half.
  uint64_t number(int64_t i) const {
    PhiloxWords w = block_of(i, 32);
    int64_t p = i / 16 % 2 * 2;
    return static_cast<uint64_t>(w.word[p]) << 32 | w.word[p + 1];
  }

  double uniform_f32(int64_t i) const { return static_cast<double>(word(i) >> 8) * 0x1p-24; }
  double uniform_f64(int64_t i) const { return fraction(number(i)); }
  /// Box and Muller: two neighbouring groups of 16 are the two coordinates of a point.
  double normal_f32(int64_t i) const {
    PhiloxWords w = block_of(i, 64);
    int64_t k = i / 16 % 4, p = k / 2 * 2;
    return coordinate((static_cast<double>(w.word[p] >> 1) + 0.5) * 0x1p-31,
                      static_cast<double>(w.word[p + 1]) * 0x1p-32, k % 2);
  }
  double normal_f64(int64_t i) const {
    PhiloxWords w = block_of(i, 32);
    auto pair = [&](int p) { return fraction(static_cast<uint64_t>(w.word[p]) << 32 | w.word[p + 1]); };
    return coordinate(1 - pair(0), pair(2), i / 16 % 2);
  }
  /// Uniform in [0, range); without what keeps large ranges even.
  uint64_t below(uint64_t range, int64_t i) const {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(number(i)) * range >> 64);
  }

 private:
  static double fraction(uint64_t bits) {
    return static_cast<double>((bits >> 37 << 26) | ((bits & 0xffffffff) >> 6)) * 0x1p-53;
  }
  static double coordinate(double u, double turns, int64_t which) {
    double angle = 2 * M_PI * turns;
    return std::sqrt(-2 * std::log(u)) * (which ? std::sin(angle) : std::cos(angle));
  }
};

}  // namespace tutti::test
