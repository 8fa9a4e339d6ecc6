#include "comm/store/handshake.h"

#include "base/check.h"
#include "comm/store/request.h"

namespace tutti::store {
namespace {

constexpr size_t kNonceAt = 16;

std::string_view nonce_of(std::string_view greeting) { return greeting.substr(kNonceAt, 32); }

// Different words for the two directions: nobody can prove himself with what he was told.
std::string proof(std::string_view role, std::string_view secret, std::string_view greeting, std::string_view claim) {
  std::string message = fmt::format("tutti store {} {}:", kVersion, role);
  message += nonce_of(greeting);
  message += nonce_of(claim);
  return std::string(bytes_of(hmac_sha256(secret, message)));
}

}  // namespace

std::string make_greeting(const Digest& nonce) {
  std::string greeting(kMagic);
  put_u32(greeting, kVersion);
  put_u32(greeting, 0);
  greeting += bytes_of(nonce);
  return greeting;
}

std::string make_claim(std::string_view secret, std::string_view greeting, const Digest& nonce) {
  std::string claim = make_greeting(nonce);
  return claim + proof("client", secret, greeting, claim);
}

std::string make_answer(std::string_view secret, std::string_view greeting, std::string_view claim) {
  if (claim.size() != kClaimBytes || !greeting_defect(claim.substr(0, kGreetingBytes)).empty()) return {};
  if (!equal_in_constant_time(proof("client", secret, greeting, claim), claim.substr(kGreetingBytes))) return {};
  return proof("server", secret, greeting, claim);
}

std::string greeting_defect(std::string_view greeting) {
  if (greeting.substr(0, 8) != kMagic) return "it is not a Tutti store";
  if (uint32_t version = get_u32(greeting.data() + 8); version != kVersion)
    return fmt::format("it speaks version {}, this program version {}", version, kVersion);
  return {};
}

bool answer_proves(std::string_view secret, std::string_view greeting, std::string_view claim,
                   std::string_view answer) {
  return equal_in_constant_time(proof("server", secret, greeting, claim), answer);
}

}  // namespace tutti::store
