// How often ranks wait for each other in a collective: comparing their calls costs no wait of its own.
#include <algorithm>

#include "comm/transport/hosts.h"
#include "tests/comm/ways.h"
#include "tests/support/expect_ops.h"
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

// ---- Between hosts

struct HostLayout {
  const char* name;
  const char* transport;
  std::vector<int> hosts;  // of four ranks; none: each its own
  friend std::ostream& operator<<(std::ostream& out, const HostLayout& l) { return out << l.name; }
};

std::vector<HostLayout> host_layouts() {
  std::vector<HostLayout> all;
  if (comm::has_ucx())
    all = {{"ucx", "ucx", {}},
           {"two_hosts", "shm+ucx", {0, 0, 1, 1}},
           {"in_turns", "shm+ucx", {0, 1, 0, 1}},
           {"uneven_hosts", "shm+ucx", {0, 1, 1, 1}}};
  if (comm::has_gloo()) all.insert(all.end(), {{"gloo", "gloo", {}}, {"gloo_hosts", "shm+gloo", {0, 1, 1, 0}}});
  return all;
}

class HostRounds : public testing::TestWithParam<HostLayout> {
 protected:
  static void spawn(const std::function<void()>& body) {
    spawn_by(GetParam().transport, GetParam().hosts, 4, body, {});
  }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HostRounds);
INSTANTIATE_TEST_SUITE_P(Hosts, HostRounds, testing::ValuesIn(host_layouts()),
                         [](const auto& info) { return std::string(info.param.name); });

constexpr int64_t kLarge = 100'000;  // numbers that do not go with the facts, and whose slices go in one round

TEST_P(HostRounds, ComparingCallsIsNoRoundOfItsOwn) {
  spawn([] {
    int n = world_size(), me = rank();
    Tensor small = ones({3}), large = ones({kLarge}), all = zeros({n * kLarge}), part = zeros({kLarge});
    EXPECT_EQ(rounds_of([&] { all_reduce(small); }), 1u);
    EXPECT_EQ(rounds_of([] { barrier(); }), 1u);
    EXPECT_EQ(rounds_of([&] { all_gather(all, large); }), 1u);  // to where it belongs
    EXPECT_EQ(rounds_of([&] { all_reduce(large); }), 2u);       // to who adds it up, and back
    EXPECT_EQ(rounds_of([&] { reduce_scatter(part, all); }), 1u);
    Tensor out = zeros({n * 20'000});
    EXPECT_EQ(rounds_of([&] { all_to_all(out, full({n * 20'000}, me, {f32})); }), 1u);
    EXPECT_EQ(out[-1].item<float>(), n - 1);
    EXPECT_EQ(large[kLarge - 1].item<float>(), n);
    EXPECT_EQ(part[kLarge - 1].item<float>(), n);
  });
}

// Of every two hosts, one rank sends one message to one of the other.
TEST_P(HostRounds, SmallCallsTakeAMessageBetweenTwoHosts) {
  spawn([] {
    auto hosts = GetParam().hosts.empty() ? std::vector<int>{0, 1, 2, 3} : GetParam().hosts;
    auto me = static_cast<size_t>(rank());
    auto& group = dynamic_cast<comm::HostsGroup&>(*world().handle()->group);
    auto sent = [&] {
      std::vector<int64_t> counts;
      for (int k = 0; k < world_size(); ++k) counts.push_back(static_cast<int64_t>(group.hosts().wire().sent(k)));
      return counts;
    };
    Tensor x = ones({5});
    all_reduce(x);
    auto before = sent();
    constexpr int kCalls = 7;
    for (int i = 0; i < kCalls; ++i) all_reduce(x, {.op = Reduce::max});
    auto after = sent();
    auto leads = [&](size_t k) { return std::find(hosts.begin(), hosts.end(), hosts[k]) == hosts.begin() + k; };
    for (size_t k = 0; k < 4; ++k) {
      bool sends = leads(me) && leads(k) && hosts[k] != hosts[me];
      EXPECT_EQ(after[k] - before[k], sends ? kCalls : 0) << "to rank " << k;
    }
    EXPECT_EQ(x[4].item<float>(), 4);
  });
}

// What left before the ranks knew that they disagree is nobody's, and does not come up again.
TEST_P(HostRounds, AMismatchOfLargeCallsLeavesNothingBehind) {
  spawn([] {
    int n = world_size(), me = rank();
    Tensor x = ones({kLarge}), more = ones({kLarge + 64}), all = zeros({n * kLarge});
    auto expect = [&](const char* what, const std::function<void()>& call) {
      EXPECT_THAT(message_of<MismatchError>(call), HasSubstr(what)) << "on rank " << me;
      Tensor y = full({kLarge}, me + 1, {f32}), z = zeros({n * kLarge});
      all_reduce(y);
      EXPECT_TRUE(equal(y, full({kLarge}, n * (n + 1) / 2, {f32}))) << "after " << what;
      all_gather(z, full({kLarge}, me, {f32}));
      EXPECT_EQ(z[-1].item<float>(), n - 1);
    };
    for (int odd : {0, 1, 3}) {
      expect("the shapes differ", [&] { all_reduce(me == odd ? more : x); });
      expect("different collectives", [&] { me == odd ? broadcast(x) : all_reduce(x); });
      expect("different collectives", [&] { me == odd ? barrier() : all_reduce(x); });
      expect("different collectives", [&] { me == odd ? all_gather(all, x) : all_to_all(all, all.clone()); });
      expect("the dtypes differ", [&] { all_reduce(me == odd ? x.to(i32) : x); });
      expect("gives 100064 elements", [&] { all_gather(all, me == odd ? more : x); });
      expect("the roots differ", [&] { broadcast(x, {.root = me == odd ? 1 : 0}); });
    }
  });
}

// Ranks may end after a mismatch, whatever is still on its way to them.
TEST_P(HostRounds, AMismatchMayBeTheLastCall) {
  for (int round = 0; round < 5; ++round)
    spawn([&] {
      Tensor x = ones({3 * kLarge});
      all_reduce(x);
      EXPECT_THROW(rank() == round % 4 ? broadcast(x) : all_reduce(x), MismatchError);
    });
}

// Ranks cannot know of uneven calls whether others see them as large.
TEST_P(HostRounds, UnevenCallsMayBeLargeForSomeRanks) {
  spawn([] {
    int n = world_size(), me = rank();
    auto length = [](int k) { return k % 2 ? int64_t{3} : int64_t{600'000}; };
    for (int root : {0, 1, 3}) {
      TensorList parts;
      for (int k = 0; me == root && k < n; ++k) parts.push_back(zeros({length(k)}));
      gather(parts, full({length(me)}, me, {f32}), {.root = root});
      for (int k = 0; me == root && k < n; ++k)
        EXPECT_TRUE(equal(parts[static_cast<size_t>(k)], full({length(k)}, k, {f32})));
      Tensor mine = zeros({length(me)});
      scatter(mine, parts, {.root = root});
      EXPECT_TRUE(equal(mine, full({length(me)}, me, {f32})));
    }
    TensorList in, out;
    for (int k = 0; k < n; ++k) {
      in.push_back(full({me + k == 2 ? 500'000 : me * k + 1}, me, {f32}));
      out.push_back(zeros({me + k == 2 ? 500'000 : me * k + 1}));
    }
    all_to_all(out, in);
    for (int k = 0; k < n; ++k) EXPECT_EQ(out[static_cast<size_t>(k)][-1].item<float>(), k);
  });
}

}  // namespace
}  // namespace tutti

#endif
