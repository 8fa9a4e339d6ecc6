// Messages in groups that their receiver has not made, or has dropped: kept within limits, and freed.
#include "comm/transport/hosts.h"
#include "tests/comm/ways.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"

#ifndef TUTTI_SANITIZE_THREAD

namespace tutti {
namespace {

using namespace std::chrono_literals;
using namespace test;  // NOLINT
using testing::HasSubstr;

std::vector<Way> flat_ways() {
  std::vector<Way> ways;
  if (comm::has_ucx()) ways.push_back(kUcx);
  if (comm::has_gloo()) ways.push_back(kGloo);
  return ways;
}

const comm::HostsWorld& hosts_world() { return dynamic_cast<comm::HostsGroup&>(*world().handle()->group).hosts(); }

// Rank 0 sends in a group that rank 1 never makes, until somebody says so.
void send_into_nowhere(const Way& way, int64_t numbers) {
  std::string text = message_of<RankFailure>([&] {
    way.spawn(2,
              [&] {
                if (rank() == 0) {
                  Group pair = world().subgroup({0, 1});
                  Tensor x = ones({numbers});
                  for (size_t i = 0; i <= comm::HostsWorld::kEarlyCount; ++i) send(x, 1, {.group = pair});
                }
                barrier();
                barrier();  // what came with the last of them is told in the next call
              },
              {.timeout = 60s});
  });
  EXPECT_THAT(text, HasSubstr("in groups that it has not made, the last by rank 0, and keeps no more")) << way.name;
}

TEST(EarlyMail, ManyBytesAreRefused) {
  for (const Way& way : flat_ways()) send_into_nowhere(way, 16'000);
}
TEST(EarlyMail, ManyMessagesAreRefused) {
  for (const Way& way : flat_ways()) send_into_nowhere(way, 1);
}

TEST(EarlyMail, IsTakenByTheGroupItIsFor) {
  for (const Way& way : flat_ways())
    way.spawn(2,
              [] {
                Tensor x = full({1000}, 7, {f32});
                if (rank() == 0) {
                  Group pair = world().subgroup({0, 1});
                  for (int i = 0; i < 5; ++i) send(x, 1, {.group = pair});
                }
                barrier();
                if (rank() == 1) {
                  // What was sent before a barrier need not have come before it.
                  while (hosts_world().early().count < 5) recv_async(x, 0, {.tag = 9}).cancel();
                  EXPECT_GT(hosts_world().early().bytes, 5u * 4000);
                  Group pair = world().subgroup({0, 1});
                  EXPECT_EQ(hosts_world().early().count, 0u);
                  EXPECT_EQ(hosts_world().early().bytes, 0u);
                  for (int i = 0; i < 5; ++i) recv(x, 0, {.group = pair});
                  EXPECT_EQ(x[999].item<float>(), 7);
                }
                barrier();
              },
              {});
}

// The group is made while messages for it come: those that were kept are before those that need not be.
TEST(EarlyMail, KeepsItsOrder) {
  for (const Way& way : flat_ways())
    for (int round = 0; round < 2; ++round)
      way.spawn(2,
                [] {
                  constexpr int kCount = 2000;
                  constexpr int64_t kNumbers = 2000;
                  if (rank() == 0) {
                    Group pair = world().subgroup({0, 1});
                    for (int i = 0; i < kCount; ++i) send(full({kNumbers}, i), 1, {.group = pair});
                  } else {
                    Tensor x = full({kNumbers}, 0);
                    while (hosts_world().early().count < kCount / 2) recv_async(x, 0, {.tag = 9}).cancel();
                    Group pair = world().subgroup({0, 1});
                    for (int i = 0; i < kCount; ++i) {
                      recv(x, 0, {.group = pair});
                      ASSERT_EQ(x[0].item<int>(), i);
                    }
                  }
                  barrier();
                },
                {});
}

TEST(EarlyMail, OfADroppedGroupIsNotKept) {
  for (const Way& way : flat_ways())
    way.spawn(2,
              [] {
                Tensor x = zeros({1000});
                Group pair = world().subgroup({0, 1});
                if (rank() == 1) pair = Group();
                barrier();
                if (rank() == 0) {
                  for (int i = 0; i < 50; ++i) send(x, 1, {.group = pair});
                  send(x, 1);  // comes after them
                } else {
                  recv(x, 0);
                  EXPECT_EQ(hosts_world().early().count, 0u);
                }
                barrier();
              },
              {});
}

}  // namespace
}  // namespace tutti

#endif
