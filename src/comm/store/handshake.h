// How a client and a server of the TCP store prove to each other that they know the job's secret (docs/wire-format.md):
//
//   server → client   greeting   magic, version, nonce                 says nothing about the secret
//   client → server   claim      magic, version, nonce, proof          proof = HMAC(secret, "client" and both nonces)
//   server → client   answer     proof, or zeros for a refusal         proof = HMAC(secret, "server" and both nonces)
//
// The client proves first, so that whoever knocks at a server's port learns nothing to guess secrets with.
#pragma once

#include <string>
#include <string_view>

#include "base/sha256.h"

namespace tutti::store {

inline constexpr std::string_view kMagic{"TUTTISTO"};
inline constexpr uint32_t kVersion = 1;
inline constexpr size_t kGreetingBytes = 8 + 4 + 4 + 32;
inline constexpr size_t kClaimBytes = kGreetingBytes + 32;
inline constexpr size_t kAnswerBytes = 32;

/// What both say first.
std::string make_greeting(const Digest& nonce);
std::string make_claim(std::string_view secret, std::string_view greeting, const Digest& nonce);
/// Empty where the claim is not a proof.
std::string make_answer(std::string_view secret, std::string_view greeting, std::string_view claim);

/// What is wrong with a greeting or the start of a claim; empty: nothing.
std::string greeting_defect(std::string_view greeting);
bool answer_proves(std::string_view secret, std::string_view greeting, std::string_view claim, std::string_view answer);
inline std::string refusal() { return std::string(kAnswerBytes, '\0'); }

}  // namespace tutti::store
