// How often ranks wait for each other in a collective: comparing their calls costs no wait of its own.
#include "comm/transport/transport.h"
#include "tests/comm/ways.h"
#include "tests/support/expect.h"
#include "tutti/comm.h"

#ifndef TUTTI_SANITIZE_THREAD

namespace tutti {
namespace {

using namespace test;  // NOLINT
using testing::HasSubstr;

uint64_t rounds_of(const std::function<void()>& call) {
  const comm::Transport& group = *world().handle()->group;
  uint64_t before = group.rounds();
  call();
  return group.rounds() - before;
}

constexpr int64_t kPart = 32 << 10;  // numbers of 4 bytes that go through shared memory at a time

TEST(Rounds, ProcessesWaitOnceForEachPart) {
  spawn_checked_processes(3,
                          [] {
                            for (int64_t count : {int64_t{1}, int64_t{2048}, int64_t{2049}, kPart - 1, kPart}) {
                              Tensor x = ones({count});
                              EXPECT_EQ(rounds_of([&] { all_reduce(x); }), 1u) << count;
                              EXPECT_EQ(rounds_of([&] { broadcast(x); }), 1u) << count;
                              EXPECT_EQ(rounds_of([&] { all_reduce_async(x).wait(); }), 1u) << count;
                              EXPECT_EQ(x[count - 1].item<float>(), 9);
                            }
                            Tensor x = ones({5 * kPart});
                            EXPECT_EQ(rounds_of([&] { all_reduce(x); }), 5u);
                            EXPECT_TRUE(equal(x, full({5 * kPart}, 3, {f32})));
                            EXPECT_EQ(rounds_of([] { barrier(); }), 1u);
                          },
                          {});
}

// Some ranks see a small call where others see an uneven one.
TEST(Rounds, ProcessesWaitOnceForUnevenCalls) {
  spawn_checked_processes(
      3,
      [] {
        int me = rank();
        TensorList parts;
        for (int k = 0; k < 3; ++k) parts.push_back(me == 0 ? zeros({k + 1}) : Tensor());
        EXPECT_EQ(rounds_of([&] { gather(me == 0 ? parts : TensorList(), full({me + 1}, me, {f32})); }), 1u);
        if (me == 0) {
          EXPECT_TRUE(equal(parts[2], full({3}, 2, {f32})));
        }
        Tensor mine = zeros({me + 1});
        EXPECT_EQ(rounds_of([&] { scatter(mine, me == 0 ? parts : TensorList()); }), 1u);
        EXPECT_TRUE(equal(mine, full({me + 1}, me, {f32})));
        Tensor x = ones({4});
        all_reduce(x);  // the next call finds everything in its place
        EXPECT_EQ(x[3].item<float>(), 3);
      },
      {});
}

TEST(Rounds, MemoryOfTheGroupIsWaitedForTwice) {
  spawn_checked_processes(2,
                          [] {
                            Tensor x = group_empty({kPart});
                            x.fill_(1);
                            EXPECT_EQ(rounds_of([&] { all_reduce(x); }), 2u);  // all are there; all are done
                            EXPECT_TRUE(equal(x, full({kPart}, 2, {f32})));
                            // One rank has its tensor elsewhere: copies, as if none were in the group's memory.
                            Tensor y = rank() ? ones({kPart}) : x;
                            all_reduce(y);
                            EXPECT_EQ(y[5].item<float>(), 3);
                            all_reduce(y);
                            EXPECT_EQ(y[5].item<float>(), 6);
                          },
                          {});
}

// What was told with a call that could not be is no part of the next.
TEST(Rounds, CallsAfterAMismatchAreWhole) {
  spawn_checked_processes(3,
                          [] {
                            for (int64_t count : {int64_t{3}, int64_t{5000}, 3 * kPart}) {
                              Tensor x = full({count + rank()}, 7, {f32}), y = ones({count});
                              EXPECT_THAT(message_of<MismatchError>([&] { all_reduce(x); }),
                                          HasSubstr("the shapes differ"));
                              EXPECT_THROW(rank() ? all_reduce(y) : broadcast(y), MismatchError);
                              all_reduce(y);
                              EXPECT_TRUE(equal(y, full({count}, 3, {f32})));
                            }
                          },
                          {});
}

}  // namespace
}  // namespace tutti

#endif
