// Random numbers for orders and made-up data: small, the same on every machine, one stream per purpose.
#pragma once

#include <cstdint>

namespace tutti::data {

/// SplitMix64's finisher: every bit of the result depends on every bit of x.
inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
inline uint64_t mix(uint64_t a, uint64_t b) {
  return mix(mix(a + 0x9e3779b97f4a7c15u) ^ (b * 0xd1342543de82ef95u + 1));
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix(seed + 0x632be59bd9b4e019u)) {}
  uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15u); }
  /// 0 ... bound-1, all equally likely.
  uint64_t below(uint64_t bound) {
    while (true) {
      auto product = static_cast<unsigned __int128>(next()) * bound;
      if (static_cast<uint64_t>(product) >= -bound % bound) return static_cast<uint64_t>(product >> 64);
    }
  }
  /// In [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }

 private:
  uint64_t state_;
};

}  // namespace tutti::data
