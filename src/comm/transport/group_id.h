// The name of a group, which its members give it without asking each other.
#pragma once

#include <cstdint>
#include <vector>

namespace tutti::comm {

/// Of the count-th group of these ranks of a parent; no two of a world are the same. Each number is mixed well before
/// the next comes: a group {0, 2} that is made again must not be taken for the first {1, 2}.
inline uint64_t group_id(uint64_t parent, uint64_t count, const std::vector<int>& ranks) {
  auto mixed = [](uint64_t x) {  // splitmix64
    x = (x + 0x9E3779B97F4A7C15u);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  };
  uint64_t id = mixed(mixed(parent) ^ count);
  for (int r : ranks) id = mixed(id ^ static_cast<uint64_t>(r));
  return id;
}

}  // namespace tutti::comm
