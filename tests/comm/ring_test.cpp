#include "comm/transport/ring.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace tutti::comm {
namespace {

struct Pair {
  std::unique_ptr<Ring[]> rings = std::make_unique<Ring[]>(4);
  RingMessages a{rings.get(), {0, 1}, 0}, b{rings.get(), {0, 1}, 1};
};

Call message(std::vector<float>& numbers, bool sends) {
  Call call{.kind = sends ? Kind::send : Kind::recv};
  Piece piece{numbers.data(), static_cast<int64_t>(numbers.size())};
  (sends ? call.in : call.out).push_back(piece);
  return call;
}

TEST(RingMessages, LongerThanTheRing) {
  Pair p;
  std::vector<float> from(100'000), to(100'000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
  auto sent = std::make_shared<WorkState>(), received = std::make_shared<WorkState>();
  p.a.send(1, 7, message(from, true), sent);
  p.b.receive(0, 7, message(to, false), received);
  while (!received->settled()) {
    p.a.progress();
    p.b.progress();
  }
  EXPECT_TRUE(sent->settled());
  EXPECT_EQ(to, from);
}

// After a failure works are taken back, whatever of them is on its way; the bytes of a message that are still in the
// ring are then nobody's, and must not be read as the next one's header.
TEST(RingMessages, WhatIsLeftOfAMessageIsNotTakenForAnother) {
  Pair p;
  std::vector<float> from(100'000, -1.0f), to(100'000);
  auto sent = std::make_shared<WorkState>(), received = std::make_shared<WorkState>();
  p.a.send(1, 7, message(from, true), sent);
  p.b.receive(0, 7, message(to, false), received);
  p.a.progress();
  p.b.progress();
  EXPECT_EQ(p.b.withdraw_all().size(), 1u);
  p.a.progress();
  EXPECT_FALSE(p.b.progress());
  EXPECT_FALSE(p.b.pending());
}

TEST(RingMessages, ASenderThatTookBackHalfOfOneSendsNoOther) {
  Pair p;
  std::vector<float> from(100'000, -1.0f), few(3, 2.0f);
  auto sent = std::make_shared<WorkState>();
  p.a.send(1, 7, message(from, true), sent);
  p.a.progress();
  EXPECT_TRUE(p.a.withdraw(*sent, true));
  p.b.progress();
  p.a.send(1, 8, message(few, true), std::make_shared<WorkState>());
  EXPECT_FALSE(p.a.progress());
}

}  // namespace
}  // namespace tutti::comm
