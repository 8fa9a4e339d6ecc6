#include "base/sha256.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/check.h"

namespace tutti {
namespace {

std::string hex(const Digest& digest) { return fmt::format("{:02x}", fmt::join(digest, "")); }

// FIPS 180-4's examples, and lengths around the places where the padding changes (from Python's hashlib).
TEST(Sha256, KnownDigests) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(std::string(1000000, 'a'))), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(hex(sha256(std::string(55, 'q'))), "85528b5baff5639cb8e7daca79d085ac29ac0978e873ed7527158616b2b6c379");
  EXPECT_EQ(hex(sha256(std::string(56, 'q'))), "f8ce2f8d6990c639668fe404262f35ed72d8bb145ad6bae786af7284447386df");
  EXPECT_EQ(hex(sha256(std::string(63, 'q'))), "9b49777003a4143d8c3f4d3002eb631c6bda8b030a3ccc87f8a21d5f61c89e87");
  EXPECT_EQ(hex(sha256(std::string(64, 'q'))), "ee8e658590c9a5e119400a774415a01db104de1ee6e2c29ec69aa73ef46544d2");
  EXPECT_EQ(hex(sha256(std::string(65, 'q'))), "2b6c3f7f12b1b12fc5409626dc4e5302d8d37082cbeddea7755eac43aba039c8");
  EXPECT_EQ(hex(sha256(std::string(119, 'q'))), "c8bc8a6e9626586bb888ad131d44ed2bd37fc608e902904ade3c566c4208e6ca");
  EXPECT_EQ(hex(sha256(std::string(120, 'q'))), "77a2d49d72a11e41678c51f8f0cb67f5cb570f30370c3aeffe266a0d1ee43209");
}

TEST(Sha256, PiecesDoNotMatter) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  for (size_t piece : {1, 3, 63, 64, 65, 128, 299}) {
    Sha256 hash;
    for (size_t at = 0; at < text.size(); at += piece) hash.update(std::string_view(text).substr(at, piece));
    EXPECT_EQ(hash.digest(), sha256(text)) << piece;
  }
}

// RFC 4231, cases 1, 2, 3, 4, 6 and 7.
TEST(HmacSha256, KnownDigests) {
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\xaa'), std::string(50, '\xdd'))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::string key;
  for (char c = 1; c <= 25; ++c) key += c;
  EXPECT_EQ(hex(hmac_sha256(key, std::string(50, '\xcd'))),
            "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'),
                            "This is a test using a larger than block-size key and a larger than block-size data. The "
                            "key needs to be hashed before being used by the HMAC algorithm.")),
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(EqualInConstantTime, ComparesAllBytes) {
  std::string a(32, 'x');
  EXPECT_TRUE(equal_in_constant_time(a, a));
  EXPECT_TRUE(equal_in_constant_time("", ""));
  EXPECT_FALSE(equal_in_constant_time(a, a.substr(1)));
  for (size_t i = 0; i < a.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      std::string b = a;
      b[i] = static_cast<char>(b[i] ^ (1 << bit));
      EXPECT_FALSE(equal_in_constant_time(a, b)) << i;
    }
}

TEST(RandomDigest, IsNeverTheSame) {
  std::set<Digest> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(random_digest());
  EXPECT_EQ(seen.size(), 1000u);
}

}  // namespace
}  // namespace tutti
