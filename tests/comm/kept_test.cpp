#include "comm/transport/kept.h"

#include <gtest/gtest.h>

#include <cstring>

#include "comm/group/facts.h"

namespace tutti::comm {
namespace {

std::vector<std::byte> bytes_of(const char* text) {
  const auto* data = reinterpret_cast<const std::byte*>(text);
  return {data, data + std::strlen(text)};
}

TEST(KeptMessage, ComesInFrames) {
  KeptMessage kept;
  EXPECT_FALSE(kept.whole());
  EXPECT_TRUE(kept.add(5, 0, bytes_of("abc")));
  EXPECT_FALSE(kept.whole());
  EXPECT_TRUE(kept.add(5, 3, bytes_of("de")));
  EXPECT_TRUE(kept.whole());
  EXPECT_EQ(kept.bytes(), bytes_of("abcde"));
  KeptMessage empty;
  EXPECT_TRUE(empty.add(0, 0, {}));
  EXPECT_TRUE(empty.whole());
}

// A peer can say anything of what it is going to send.
TEST(KeptMessage, TakesNoMemoryForPromises) {
  KeptMessage kept;
  EXPECT_TRUE(kept.add(uint64_t{1} << 62, 0, bytes_of("abc")));
  EXPECT_EQ(kept.length(), uint64_t{1} << 62);
  EXPECT_LE(kept.bytes().capacity(), 64u);
}

TEST(KeptMessage, TakesOnlyWhatIsNext) {
  KeptMessage kept;
  EXPECT_FALSE(kept.add(5, 1, bytes_of("abc")));
  EXPECT_FALSE(kept.add(2, 0, bytes_of("abc")));
  EXPECT_TRUE(kept.add(5, 0, bytes_of("abc")));
  EXPECT_FALSE(kept.add(5, 0, bytes_of("abc")));
  EXPECT_FALSE(kept.add(6, 3, bytes_of("de")));
  EXPECT_FALSE(kept.add(5, 3, bytes_of("def")));
  EXPECT_FALSE(kept.add(5, 9, {}));
  EXPECT_EQ(kept.bytes(), bytes_of("abc"));
}

// What another process says of its call is as long as there is room for, whether it ends or not.
TEST(CallFactsOfOthers, HaveATextThatEnds) {
  CallFacts facts;
  std::memset(facts.header.text, 'x', sizeof facts.header.text);
  std::vector<std::byte> memory(CallFacts::room(2));
  facts.write(memory.data(), 2);
  CallFacts read = CallFacts::read(memory.data(), 2);
  EXPECT_EQ(std::strlen(read.header.file()), CallHeader::kTextBytes - 1);
  EXPECT_EQ(std::strlen(read.header.purpose()), 0u);
}

}  // namespace
}  // namespace tutti::comm
