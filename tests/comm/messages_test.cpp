// Batched messages, sparse all_reduce, monitored barriers and groups by host, on every way of running ranks.
#include <atomic>
#include <sstream>
#include <thread>

#include "tests/comm/ways.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using namespace test;  // NOLINT

class Messages : public EveryWorld {};
INSTANTIATE_TEST_SUITE_P(Worlds, Messages, every_world(), name_world);
class MessagesOfWays : public EveryWay {};
INSTANTIATE_TEST_SUITE_P(Ways, MessagesOfWays, every_way(), name_way);

// ---- Sparse

TEST_P(Messages, SparseAllReduceHasTheBitsOfTheDenseOne) {
  spawn([&] {
    for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i64, DType::c64})
      for (Reduce op : {Reduce::sum, Reduce::average}) {
        if (op == Reduce::average && dtype == DType::i64) continue;
        int nnz = rank() * 3;                      // nothing on rank 0
        Tensor indices = randint(0, 5, {2, nnz});  // with duplicates
        Tensor values = (randn({nnz, 3}, {f64}) * 100).to(dtype);
        Tensor x = sparse_coo(indices, values, {5, 5, 3}), dense = to_dense(coalesce(x));
        all_reduce(x, {.op = op});
        all_reduce(dense, {.op = op});
        EXPECT_TRUE(x.is_sparse());
        EXPECT_TRUE(x.is_coalesced());
        EXPECT_TRUE(equal(to_dense(x), dense)) << describe(x);
        Tensor root = x.indices().clone();
        broadcast(root);
        EXPECT_TRUE(equal(root, x.indices()));
      }
  });
}

TEST_P(Messages, SparseAllReduceForms) {
  spawn([&] {
    Tensor all_empty = sparse_coo(zeros({1, 0}, {i64}), zeros({0}), {4});
    all_reduce(all_empty);
    EXPECT_EQ(all_empty.values().numel(), 0);
    EXPECT_EQ(all_empty.sizes(), Shape{4});

    Tensor one = sparse_coo(full({1, 1}, rank() % 3), ones({1}, {f64}), {3});
    Tensor copy = one, dense = full({2}, rank(), {f32});
    all_reduce(TensorList{one, dense, one}, {.factor = 2});
    EXPECT_TRUE(copy.is_coalesced());  // every copy of the handle sees it
    double n_zero = (n + 2) / 3;
    EXPECT_EQ(to_dense(one)[0].item<double>(), n_zero * 2 * 2 * n);
    EXPECT_EQ(dense[0].item<double>(), n * (n - 1));

    Tensor weighted = sparse_coo(zeros({1, 1}, {i64}), full({1}, rank(), {f64}), {2});
    all_reduce(weighted, {.op = Reduce::average, .weight = rank() + 1.0});
    double rows = 0, sum = 0;
    for (int k = 0; k < n; ++k) rows += k + 1, sum += (k + 1) * k;
    EXPECT_NEAR(weighted.values()[0].item<double>(), sum / rows, 1e-12);
  });
}

TEST_P(MessagesOfWays, SparseErrorsAreClear) {
  spawn(3, [] {
    Tensor x = sparse_coo(zeros({1, 1}, {i64}), ones({1}), {4});
    auto text = [](auto f) { return message_of<Error>(f); };
    EXPECT_THAT(text([&] { all_reduce(x, {.op = Reduce::max}); }), HasSubstr("sparse tensors are summed or averaged"));
    EXPECT_THAT(text([&] { broadcast(x); }),
                HasSubstr("broadcast: sparse f32[4] on cpu:0 is sparse, which only all_reduce takes"));
    EXPECT_THAT(text([&] { reduce_async(x); }), HasSubstr("is sparse, which only all_reduce takes"));
    EXPECT_THAT(text([&] { send(x, 0); }), HasSubstr("is sparse"));
    Tensor other = sparse_coo(zeros({1, 1}, {i64}), ones({1}), {rank() == 2 ? 5 : 4});
    EXPECT_THAT(message_of<MismatchError>([&] { all_reduce(other); }), HasSubstr("is of another shape than rank"));
    Tensor mixed = rank() == 2 ? ones({4}) : x;
    EXPECT_THROW(all_reduce(mixed), MismatchError);
    Tensor grad = x.clone().requires_grad_();
    EXPECT_THROW(all_reduce(grad), GradError);
    barrier();
  });
}

// ---- Messages

TEST_P(Messages, BatchedMessagesInAnyOrder) {
  spawn([&] {
    int me = rank();
    for (int64_t size : {1, 100'000}) {  // small ones are left lying, large ones wait for their receiver
      std::vector<Message> messages;
      TensorList in;
      for (int k = 0; k < n; ++k) {
        in.push_back(zeros({size}, {f32}));
        Message out = send_op(full({size}, me * 100 + k, {f32}), k), take = recv_op(in.back(), k);
        // Some list sends first, some receives first, some the other way round.
        messages.insert(me % 2 ? messages.end() : messages.begin(), me % 3 ? out : take);
        messages.insert(me % 2 ? messages.begin() : messages.end(), me % 3 ? take : out);
      }
      auto works = batch_messages(messages);
      ASSERT_EQ(works.size(), static_cast<size_t>(2 * n));
      for (size_t i = 0; i < works.size(); ++i) {
        works[i].wait();
        if (!messages[i].sends) {
          EXPECT_EQ(works[i].source(), messages[i].peer);
        }
      }
      for (int k = 0; k < n; ++k) EXPECT_TRUE(equal(in[static_cast<size_t>(k)], full({size}, k * 100 + me, {f32})));
    }
    EXPECT_TRUE(batch_messages({}).empty());
    EXPECT_THROW(batch_messages({send_op(ones({1}), 0, {.tag = 9}), send_op(ones({1}), n)}), ValueError);
    EXPECT_THROW(batch_messages({send_op(ones({1}), -1)}), ValueError);
    EXPECT_THROW(batch_messages({recv_op(Tensor(), 0)}), ValueError);
  });
}

// What is wrong with any of them is found before the first is posted: no receive stays behind that takes what comes
// next.
TEST_P(MessagesOfWays, ABatchIsPostedAsAWholeOrNotAtAll) {
  spawn(2,
        [] {
          Tensor y = zeros({2}), z = zeros({2}), leaf = zeros({2}).requires_grad_();
          Tensor meta = empty({2}, {.device = Device("meta")}), sparse = eye(2).to_sparse();
          if (rank() == 0) {
            Message first = recv_op(y, 1, {.tag = 3});
            EXPECT_THROW(batch_messages({first, send_op(meta, 1)}), DeviceError);
            EXPECT_THROW(batch_messages({first, send_op(sparse, 1)}), ValueError);
            EXPECT_THROW(batch_messages({first, recv_op(leaf, 1)}), GradError);
            EXPECT_THROW(batch_messages({first, send_op(Tensor(), 1)}), ValueError);
          }
          barrier();
          if (rank() == 1) send(full({2}, 7, {f32}), 0, {.tag = 3});
          if (rank() == 0) {
            recv(z, 1, {.tag = 3});
            EXPECT_EQ(z[0].item<double>(), 7);
            EXPECT_EQ(y[0].item<double>(), 0);
          }
        },
        {.timeout = std::chrono::seconds(20)});
}

TEST_P(Messages, MessagesOfOneTagKeepTheirOrder) {
  spawn([&] {
    int next = (rank() + 1) % n, last = (rank() + n - 1) % n;
    std::vector<Message> messages;
    TensorList in;
    for (int i = 0; i < 20; ++i) {
      in.push_back(zeros({i}, {i64}));
      messages.push_back(send_op(full({i}, i), next, {.tag = 3}));
      messages.push_back(recv_op(in.back(), last, {.tag = 3}));
    }
    for (Work& w : batch_messages(messages)) w.wait();
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(equal(in[static_cast<size_t>(i)], full({i}, i)));
  });
}

TEST_P(Messages, AnySourceGetsEveryMessageOnce) {
  spawn([&] {
    constexpr int kEach = 5;
    std::vector<Work> sends;
    for (int i = 0; i < kEach; ++i)
      if (rank() != 0) sends.push_back(send_async(tensor({rank(), i}), 0, {.tag = 1}));
    if (rank() == 0) {
      std::vector<int> next(static_cast<size_t>(n), 0);
      std::vector<Work> works;
      TensorList in;
      for (int i = 0; i < kEach * (n - 1); ++i) {
        in.push_back(zeros({2}, {i64}));
        works.push_back(recv_async(in.back(), -1, {.tag = 1}));
      }
      for (size_t i = 0; i < works.size(); ++i) {
        works[i].wait();
        int from = works[i].source();
        EXPECT_EQ(in[i][0].item<int>(), from);
        EXPECT_EQ(in[i][1].item<int>(), next[static_cast<size_t>(from)]++);  // in the order they were sent
      }
      for (int k = 1; k < n; ++k) EXPECT_EQ(next[static_cast<size_t>(k)], kEach);
    }
    for (Work& w : sends) w.wait();
  });
}

TEST_P(MessagesOfWays, AsynchronousOnes) {
  spawn(2, [] {
    int peer = 1 - rank();
    Tensor in = zeros({4, 6}), out = full({6, 4}, rank() + 1, {f32});
    Work take = recv_async(in.t(), peer);  // not contiguous
    EXPECT_FALSE(take.wait_for(1ms));
    EXPECT_FALSE(take.done());
    barrier();
    std::atomic<bool> called = false;
    take.then([&] { called = true; });
    Work give = send_async(out, peer);
    take.wait();
    give.wait();
    EXPECT_TRUE(called);
    EXPECT_TRUE(equal(in, full({4, 6}, peer + 1, {f32})));
    // Every dtype, and nothing at all.
    for (DType dtype : {DType::bf16, DType::f16, DType::i8, DType::boolean, DType::c128}) {
      Tensor x = zeros({3}, {.dtype = dtype});
      auto works = batch_messages({recv_op(x, peer), send_op(ones({3}, {.dtype = dtype}), peer)});
      for (Work& w : works) w.wait();
      EXPECT_TRUE(equal(x, ones({3}, {.dtype = dtype})));
    }
    for (Work& w : batch_messages({recv_op(zeros({0}), peer), send_op(zeros({0}), peer)})) w.wait();
  });
}

// ---- Barriers

TEST_P(Messages, MonitoredBarrierSaysWhoIsSlow) {
  Shared<std::atomic<int>> came;
  spawn([&] {
    int slow = n - 1;
    if (rank() == slow) {
      wait_until(came, n - 1);
      if (n > 1) std::this_thread::sleep_for(500ms);  // more than what a busy machine does to the others
    }
    ++*came;
    Arrivals a = monitored_barrier({.timeout = 60s});
    ASSERT_EQ(a.seconds.size(), static_cast<size_t>(n));
    EXPECT_EQ(a.last, slow);
    EXPECT_EQ(a.skew, a.seconds[static_cast<size_t>(slow)]);
    EXPECT_EQ(*std::min_element(a.seconds.begin(), a.seconds.end()), 0);
    EXPECT_GT(a.skew, n > 1 ? 0.05 : -1);
    monitored_barrier();  // and again
  });
}

// Who is late waits for those who give up, so that a busy machine changes nothing.
TEST_P(MessagesOfWays, MonitoredBarrierNamesAllWhoDidNotCome) {
  Shared<std::atomic<int>> gave_up;
  spawn(5, [&] {
    bool late = rank() == 2 || rank() == 4;
    barrier();  // ranks are started one after the other
    if (late) wait_until(gave_up, 3);
    auto text = message_of<TimeoutError>([] { monitored_barrier({.timeout = 2s}); });
    EXPECT_THAT(text, testing::StartsWith("[rank " + std::to_string(rank()) +
                                          "] monitored_barrier: ranks 2, 4 did not come within 2 s" +
                                          (late ? "; this one came later" : "") + " (at messages_test.cpp:"));
    ++*gave_up;
    // The group goes on: the next one is not confused by what was left.
    EXPECT_EQ(monitored_barrier({.timeout = 60s}).seconds.size(), 5u);
    Tensor x = ones({1});
    all_reduce(x);
    EXPECT_EQ(x.item<double>(), 5);
  });
  EXPECT_EQ(*gave_up, 5);
}

TEST_P(MessagesOfWays, TheFirstRankCanBeLateToo) {
  Shared<std::atomic<int>> gave_up;
  spawn(3, [&] {
    if (rank() == 0) wait_until(gave_up, 2);
    EXPECT_THAT(message_of<TimeoutError>([] { monitored_barrier({.timeout = 50ms}); }),
                HasSubstr("rank 0 did not come within 0.05 s"));
    ++*gave_up;
    EXPECT_EQ(monitored_barrier({.timeout = 60s}).seconds.size(), 3u);
  });
}

TEST_P(MessagesOfWays, MonitoredBarrierOfSubgroupsAndEndedRanks) {
  spawn(4, [] {
    Group some = world().subgroup({3, 1});
    if (some.rank() >= 0)
      EXPECT_EQ(monitored_barrier({.group = some}).seconds.size(), 2u);
    else
      EXPECT_THROW(monitored_barrier({.group = some}), ValueError);
  });
  auto text = message_of<RankFailure>([] {
    spawn(3, [] {
      if (rank() != 1) monitored_barrier({.timeout = 60s});
    });
  });
  EXPECT_THAT(text, HasSubstr("rank 1 failed: it ended without"));
}

// ---- Groups

TEST(Hosts, HaveANameThatCanBeSaid) {
  EXPECT_EQ(host_id(), host_id());
  EXPECT_GT(host_id().size(), 30u);
  ::setenv("TUTTI_HOST", "here", 1);
  EXPECT_EQ(host_id(), "here");
  ::unsetenv("TUTTI_HOST");
  EXPECT_EQ(to_string(Group()), "undefined group");
}

TEST_P(Messages, RanksOfOneHost) {
  bool two = std::string(std::get<0>(GetParam()).name).starts_with("shm_");
  spawn([&] {
    // As the way has them: on one host, or half of them on each of two.
    Group here = world().split_by_host();
    std::vector<int> ranks;
    for (int r = 0; r < n; ++r)
      if (!two || r * 2 / n == rank() * 2 / n) ranks.push_back(r);
    EXPECT_EQ(here.ranks(), ranks);
    EXPECT_EQ(here.rank(), local_rank());
    EXPECT_EQ(here.size(), local_size());
    // Or as ranks say.
    Group said = world().split_by_host(rank() % 3 == 0 ? "a" : "b");
    ranks.clear();
    for (int r = 0; r < n; ++r)
      if ((r % 3 == 0) == (rank() % 3 == 0)) ranks.push_back(r);
    EXPECT_EQ(said.ranks(), ranks);
    Tensor x = ones({1});
    all_reduce(x, {.group = said});
    EXPECT_EQ(x.item<double>(), static_cast<double>(ranks.size()));
    std::ostringstream out;
    out << said;
    std::string names;
    for (int r : ranks) names += (names.empty() ? "" : ", ") + std::to_string(r);
    EXPECT_EQ(out.str(), "ranks [" + names + "] by " + said.transport());
  });
}

// Groups that have ranks in common: every rank begins calls of all its groups, in an order of its own, and waits for
// them in another.
TEST_P(Messages, OverlappingGroupsWorkWithoutWaitingForEachOther) {
  spawn([&] {
    int me = rank();
    std::vector<Group> groups = {world(), world().subgroup(n == 1 ? std::vector{0} : std::vector{0, n - 1})};
    for (int first = 0; first + 2 <= n; ++first) groups.push_back(world().subgroup({first, first + 1}));
    std::vector<size_t> mine;
    for (size_t g = 0; g < groups.size(); ++g)
      if (groups[g].rank() >= 0) mine.push_back(g);
    for (int round = 0; round < 20; ++round) {
      struct Open {
        Work work;
        Tensor x;
        double expected;
      };
      std::vector<Open> open;
      for (size_t k = 0; k < mine.size(); ++k) {
        size_t g = mine[(k + static_cast<size_t>(me + round)) % mine.size()];
        double expected = 0;
        for (int r : groups[g].ranks()) expected += r + round;
        for (int64_t size : {3, round % 4 ? 500 : 40'000}) {  // two calls of each group: they keep their order
          Tensor x = full({size}, me + round, {f32});
          Work work = all_reduce_async(x, {.group = groups[g]});
          open.push_back({work, x, expected});
        }
      }
      if (me % 2) std::reverse(open.begin(), open.end());
      for (auto& [work, x, expected] : open) {
        work.wait();
        ASSERT_TRUE(equal(x, full(x.sizes(), expected, {f32}))) << round;
      }
    }
  });
}

}  // namespace
}  // namespace tutti
