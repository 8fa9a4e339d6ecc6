// The checksum of event files: CRC-32C, and the disguise in which it is stored.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tutti::io {

namespace detail {
constexpr std::array<uint32_t, 256> crc32c_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? 0x82f63b78u : 0u);
    table[i] = value;
  }
  return table;
}
}  // namespace detail

inline uint32_t crc32c(std::string_view bytes) {
  static constexpr auto table = detail::crc32c_table();
  uint32_t crc = ~0u;
  for (char c : bytes) crc = (crc >> 8) ^ table[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

/// A record that holds checksums of other records should not confuse them with its own: stored ones are rotated.
inline uint32_t masked_crc32c(std::string_view bytes) {
  uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace tutti::io
