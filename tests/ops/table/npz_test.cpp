// The reader of goldens itself: what it reads, and that it refuses what is damaged.
#include "tests/support/npz.h"

#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tutti/ops.h"

namespace tutti::test {
namespace {

std::string npy(const std::string& descr, const std::string& shape, const std::string& data) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size());
  bytes += '\0';
  return bytes + header + data;
}

template <class T>
std::string little(T value, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
  return text;
}

// An archive of one stored member.
std::string zip(const std::string& name, const std::string& data, uint16_t method = 0) {
  std::string local = "PK\x03\x04" + std::string(22, '\0') + little(name.size(), 2) + little(0, 2) + name + data;
  std::string central = "PK\x01\x02" + std::string(6, '\0') + little(method, 2) + std::string(8, '\0') +
                        little(data.size(), 4) + little(data.size(), 4) + little(name.size(), 2) +
                        std::string(12, '\0') + little(0, 4) + name;
  return local + central + "PK\x05\x06" + std::string(6, '\0') + little(1, 2) + little(central.size(), 4) +
         little(local.size(), 4) + little(0, 2);
}

TEST(Npz, ReadsArraysOfEveryDtype) {
  EXPECT_TRUE(
      identical(read_npy(npy("<f8", "(2,)", little(0x3ff0000000000000, 8) + little(0xc000000000000000, 8)), "a"),
                tensor({1, -2}, {f64})));
  EXPECT_TRUE(identical(read_npy(npy("<f4", "()", little(0x3fc00000, 4)), "a"), tensor(1.5f, {f32})));
  EXPECT_TRUE(identical(read_npy(npy("<i8", "(1, 2)", little(-3, 8) + little(4, 8)), "a"), tensor({{-3, 4}}, {i64})));
  EXPECT_TRUE(identical(read_npy(npy("<i4", "(1,)", little(-3, 4)), "a"), tensor({-3}, {i32})));
  EXPECT_TRUE(identical(read_npy(npy("|u1", "(3,)", "\x01\x02\xff"), "a"), tensor({1, 2, 255}, {u8})));
  EXPECT_TRUE(identical(read_npy(npy("|b1", "(2,)", std::string("\x01\x00", 2)), "a"), tensor({true, false})));
  EXPECT_EQ(read_npy(npy("<c16", "(2, 0)", ""), "a").sizes(), Shape({2, 0}));
  EXPECT_EQ(
      read_npy(npy("<c8", "(1,)", little(0x3f800000, 4) + little(0x40000000, 4)), "a").item<std::complex<float>>(),
      std::complex<float>(1, 2));
}

TEST(Npz, FindsMembers) {
  Npz file(zip("x/in0.npy", npy("<i8", "(1,)", little(7, 8))), "memory");
  EXPECT_EQ(file.keys("x/"), std::vector<std::string>{"x/in0"});
  EXPECT_TRUE(file.keys("y").empty());
  EXPECT_EQ(file.read("x/in0").item<int64_t>(), 7);
  EXPECT_THROW(file.read("x/in1"), ValueError);
}

TEST(Npz, RefusesWhatItDoesNotKnow) {
  EXPECT_THROW(read_npy(npy(">f8", "(1,)", little(0, 8)), "a"), ValueError);
  EXPECT_THROW(read_npy(npy("<f8", "(-1,)", little(0, 8)), "a"), ValueError);
  EXPECT_THROW(read_npy(npy("<f8", "(99999999999999999999,)", ""), "a"), ValueError);
  EXPECT_THROW(read_npy(npy("<f8", "(1048576, 1048576, 1048576, 1048576)", ""), "a"), ValueError);
  EXPECT_THROW(Npz(zip("x.npy", "", 8), "memory"), ValueError);
  EXPECT_THROW(Npz(std::string("/no/such/file.npz")), ValueError);
}

TEST(Npz, RefusesEveryTruncation) {
  std::string whole = npy("<f8", "(2,)", std::string(16, '\0'));
  for (size_t length = 0; length < whole.size(); ++length)
    EXPECT_THROW(read_npy(whole.substr(0, length), "a"), ValueError);
  std::string archive = zip("x.npy", whole);
  for (size_t length = 0; length < archive.size() - 2; ++length)
    EXPECT_THROW(Npz(archive.substr(0, length), "memory").read("x"), ValueError) << length;
}

// Any byte may be anything: the reader throws or reads, but never leaves its memory.
TEST(Npz, SurvivesEveryDamagedByte) {
  std::string archive = zip("x.npy", npy("<f8", "(2,)", std::string(16, '\0')));
  for (size_t i = 0; i < archive.size(); ++i)
    for (int value : {0, 1, 0x7f, 0x80, 0xff}) {
      std::string damaged = archive;
      damaged[i] = static_cast<char>(value);
      try {
        Npz file(damaged, "memory");
        for (auto& key : file.keys()) EXPECT_LE(file.read(key).numel(), 1000);
      } catch (const ValueError&) {
      }
    }
}

}  // namespace
}  // namespace tutti::test
