// SHA-256 (FIPS 180-4) and HMAC over it (RFC 2104), for proving a shared secret. Written for small inputs.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tutti {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256& update(std::string_view bytes);
  /// Of all bytes so far. The object is spent after that.
  Digest digest();

 private:
  void block(const uint8_t* bytes);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> buffer_{};
  uint64_t size_ = 0;
};

Digest sha256(std::string_view bytes);
Digest hmac_sha256(std::string_view key, std::string_view message);

inline std::string_view bytes_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

/// In a time that does not depend on where they differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);

/// Bytes that nobody can guess, from the system.
Digest random_digest();

}  // namespace tutti
