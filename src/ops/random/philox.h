// Philox 4x32-10 (Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", 2011): a block cipher whose input
// is a counter and whose key is the seed, so that any place of the stream can be computed by itself.
//
// Note [Random streams]: block b of the stream of a seed is philox(counter = {b, b >> 32, attempt, 0}, key = seed),
// four words of 32 bits. An operator takes blocks from the generator and deals them out in groups of 16, so that 16
// lanes work without moving words between them:
//   one word an element:  element i = 64 g + 16 w + lane has word w of block 16 g + lane;
//   two words an element: element i = 32 g + 16 p + lane has words 2 p and 2 p + 1 of block 16 g + lane.
// What an element gets depends on nothing but the seed, the position and i. `attempt` is 0, or counts the numbers that
// were rejected (randint).
#pragma once

#include "tutti/pointwise/vec.h"

namespace tutti {
inline namespace TUTTI_ISA {

template <int N>
struct PhiloxBlock {
  pointwise::Vec<uint32_t, N> word[4];
};

// Blocks number first ... first + N-1.
template <int N>
TUTTI_HD PhiloxBlock<N> philox(uint64_t seed, uint64_t first, uint32_t attempt) {
  using U = pointwise::Vec<uint32_t, N>;
  uint32_t numbers[N];
  for (int i = 0; i < N; ++i) numbers[i] = static_cast<uint32_t>(i);
  U lane = U::load(numbers);
  U c0 = U(static_cast<uint32_t>(first)) + lane;
  U c1 = U(static_cast<uint32_t>(first >> 32)) + U::from_mask(c0 < lane);  // the carry of the low word
  U c2 = attempt, c3 = 0;
  auto k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  const U m0 = 0xD2511F53u, m1 = 0xCD9E8D57u;
  for (int round = 0; round < 10; ++round) {
    U hi0 = multiply_high(c0, m0), lo0 = c0 * m0, hi1 = multiply_high(c2, m1), lo1 = c2 * m1;
    c0 = hi1 ^ c1 ^ U(k0);
    c1 = lo1;
    c2 = hi0 ^ c3 ^ U(k1);
    c3 = lo0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace TUTTI_ISA
}  // namespace tutti
