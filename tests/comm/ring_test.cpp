#include "comm/transport/ring.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tutti/error.h"

namespace tutti::comm {
namespace {

struct Pair {
  std::unique_ptr<RingHead[]> rings = std::make_unique<RingHead[]>(4);
  std::vector<std::byte> data = std::vector<std::byte>(4 * RingHead::kBytes);
  RingMessages a{rings.get(), data.data(), {0, 1}, 0}, b{rings.get(), data.data(), {0, 1}, 1};
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
  std::vector<float> from(100'000, -1.0f), to(100'000), few(3, 2.0f);
  auto sent = std::make_shared<WorkState>(), received = std::make_shared<WorkState>();
  p.a.send(1, 7, message(from, true), sent);
  p.b.receive(0, 7, message(to, false), received);
  p.a.progress();  // offers it
  p.b.progress();
  p.b.progress();  // is ready
  p.a.progress();
  p.a.progress();
  EXPECT_FALSE(p.a.withdraw(*sent, false));  // somebody is taking it
  EXPECT_TRUE(p.a.withdraw(*sent, true));
  p.b.progress();
  p.a.send(1, 8, message(few, true), std::make_shared<WorkState>());
  EXPECT_FALSE(p.a.progress());
}

/// Moves what can be moved.
void settle(Pair& p) {
  for (bool moved = true; moved;) {
    moved = p.a.progress();
    moved = p.b.progress() || moved;
  }
}

// As of every transport: a long message waits for who takes it, and its sender is told if that one takes another.
TEST(RingMessages, TheSenderOfALongOneLearnsThatItDoesNotFit) {
  Pair p;
  std::vector<float> from(100'000, 3.0f), few(10), to(100'000);
  for (bool asked : {false, true}) {
    auto sent = std::make_shared<WorkState>(), refused = std::make_shared<WorkState>();
    if (asked) p.b.receive(0, 7, message(few, false), refused);
    p.a.send(1, 7, message(from, true), sent);
    settle(p);
    if (!asked) {
      EXPECT_FALSE(sent->done());
      p.b.receive(0, 7, message(few, false), refused);
      settle(p);
    }
    for (auto& work : {sent, refused}) {
      ASSERT_TRUE(work->settled());
      EXPECT_THROW(std::rethrow_exception(work->error()), MismatchError);
    }
  }
  auto sent = std::make_shared<WorkState>(), received = std::make_shared<WorkState>();
  p.a.send(1, 7, message(from, true), sent);  // and all goes on
  p.b.receive(0, 7, message(to, false), received);
  settle(p);
  EXPECT_EQ(sent->error(), nullptr);
  EXPECT_EQ(received->error(), nullptr);
  EXPECT_EQ(to, from);
  EXPECT_FALSE(p.a.pending() || p.b.pending());
}

// An offer that is taken back while its acceptance is on the way: the receive is for the next message then.
TEST(RingMessages, AnOfferMayBeTakenBackWhileItIsAccepted) {
  Pair p;
  std::vector<float> from(100'000, 3.0f), second(100'000, 4.0f), to(100'000);
  auto sent = std::make_shared<WorkState>(), again = std::make_shared<WorkState>(),
       received = std::make_shared<WorkState>();
  p.b.receive(0, 7, message(to, false), received);
  p.a.send(1, 7, message(from, true), sent);
  p.a.progress();
  p.b.progress();
  EXPECT_FALSE(p.b.withdraw(*received, false));  // accepted
  EXPECT_TRUE(p.a.withdraw(*sent, false));
  settle(p);
  EXPECT_FALSE(received->done());
  p.a.send(1, 7, message(second, true), again);
  settle(p);
  ASSERT_TRUE(received->settled() && again->settled());
  EXPECT_EQ(to, second);
  // And one that nobody has asked for leaves nothing.
  auto third = std::make_shared<WorkState>();
  p.a.send(1, 7, message(from, true), third);
  settle(p);
  EXPECT_TRUE(p.a.withdraw(*third, false));
  settle(p);
  EXPECT_FALSE(p.a.pending() || p.b.pending());
}

}  // namespace
}  // namespace tutti::comm
