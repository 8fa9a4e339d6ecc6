// The wires by themselves: mail in its order, who moves messages for whom, and what is cut.
#include "comm/transport/wire.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <thread>

#include "base/check.h"
#include "comm/transport/host_facts.h"
#include "tests/comm/ways.h"

namespace tutti::comm {
namespace {

using namespace std::chrono_literals;

// ---- Mail

/// Of which nothing is used but the mail.
struct MailOnly : Wire {
  MailOnly() : Wire(0, 3) {}
  void send(int, WireName, const void*, size_t, Pending&) override {}
  void send(int, WireName, std::vector<std::byte>) override {}
  void receive(const WireName&, void*, size_t, Pending&) override {}
  void unreceive(const WireName&) override {}
  bool wait(Clock::time_point, const std::function<bool()>& ready) override { return ready(); }
  void wake() override {}
  bool attended() const override { return false; }
  void cut() override {}
  void flush(std::chrono::milliseconds) override {}
  void forget(uint64_t) override {}
  void drop(uint64_t, uint64_t, uint64_t) override {}
  void come(int from, uint64_t number) { put_mail({{0, number, from, Channel::mail}, {}}); }
  std::vector<uint64_t> taken(int from) {
    std::vector<uint64_t> numbers;
    for (const Mail& mail : take_mail())
      if (mail.name.from == from) numbers.push_back(mail.name.number);
    return numbers;
  }
};

TEST(Mail, ThatComesEarlyWaitsForWhatIsBefore) {
  MailOnly wire;
  int told = 0;
  wire.set_on_mail([&] { ++told; });
  wire.come(1, 2);
  wire.come(1, 1);
  EXPECT_FALSE(wire.has_mail());
  EXPECT_EQ(told, 0);
  EXPECT_EQ(wire.taken(1), std::vector<uint64_t>{});
  wire.come(2, 0);  // another's is not held up
  EXPECT_EQ(told, 1);
  EXPECT_EQ(wire.taken(2), std::vector<uint64_t>{0});
  wire.come(1, 0);
  wire.come(1, 4);
  EXPECT_EQ(wire.taken(1), (std::vector<uint64_t>{0, 1, 2}));
  wire.come(1, 3);
  EXPECT_EQ(wire.taken(1), (std::vector<uint64_t>{3, 4}));
}

// ---- Facts

/// Two ranks in one process, whose group is memory that they share.
struct Host {
  Host() {
    for (int r = 0; r < 2; ++r) {
      worlds[r] = std::make_shared<ProcessWorld>(Segment::named(name, SharedWorld::bytes(2)), name, r, 2, 60'000ms);
      groups[r] = worlds[r]->group({0, 1}, 0, 0);
    }
  }
  ~Host() { Segment::remove_all(name); }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  std::string name = fmt::format("tutti-wire-{}", ::getpid());
  std::shared_ptr<ProcessWorld> worlds[2];
  std::shared_ptr<ShmGroup> groups[2];
};

/// What a host of many ranks sends has come when it is asked for.
struct Bundle : MailOnly {
  void receive(const WireName&, void* to, size_t bytes, Pending&) override {
    ++received;
    std::memcpy(to, bundle.data(), std::min(bytes, bundle.size()));
  }
  void send(int, WireName, const void* data, size_t bytes, Pending&) override {
    const auto* from = static_cast<const std::byte*>(data);
    sent.assign(from, from + bytes);
  }
  std::vector<std::byte> bundle, sent;
  int received = 0;
};

// The leader of a host passes on what the other hosts' leaders sent, all of it, also where that is more than ranks of a
// host show each other at a time.
TEST(FactsOfHosts, ComeToAllRanksByTheirLeader) {
  constexpr int kOthers = 60;
  Host host;
  Layout layouts[2];
  std::vector<int> ranks;
  for (int r = 0; r < 2 + kOthers; ++r) ranks.push_back(r);
  for (int r = 0; r < 2; ++r) {
    layouts[r].me = r;
    layouts[r].members.resize(2);
    for (int k : ranks) {
      layouts[r].host_of.push_back(k < 2 ? 0 : 1);
      layouts[r].members[k < 2 ? 0 : 1].push_back(k);
    }
  }
  Bundle wires[2];
  std::unique_ptr<HostFacts> facts[2];
  for (int r = 0; r < 2; ++r)
    facts[r] = std::make_unique<HostFacts>(wires[r], layouts[r], ranks, 1, host.groups[r].get());
  auto count = static_cast<int64_t>(facts[0]->most_inline() / sizeof(float));
  auto call_of = [&](std::vector<float>& numbers) {
    Call call{.kind = Kind::all_reduce};
    call.in.push_back({numbers.data(), count});
    call.out.push_back({numbers.data(), count});
    call.shape = {count};
    return call;
  };
  for (int k = 2; k < 2 + kOthers; ++k) {
    std::vector<float> numbers(static_cast<size_t>(count), static_cast<float>(k));
    size_t room = CallFacts::room(2 + kOthers);
    uint64_t length = room + numbers.size() * sizeof(float);
    std::vector<std::byte> block(sizeof length + length);
    std::memcpy(block.data(), &length, sizeof length);
    facts_of(call_of(numbers), k, 2 + kOthers).write(block.data() + sizeof length, 2 + kOthers);
    std::memcpy(block.data() + sizeof length + room, numbers.data(), numbers.size() * sizeof(float));
    wires[0].bundle.insert(wires[0].bundle.end(), block.begin(), block.end());
  }
  ASSERT_GT(wires[0].bundle.size(), 3 * ShmGroup::kShare);
  auto take_part = [&](int r) {
    std::vector<float> mine(static_cast<size_t>(count), static_cast<float>(r));
    Call call = call_of(mine);
    HostFacts::Waits waits{
        .on_wire = [](const auto& ready, const auto&) { ASSERT_TRUE(ready()); },
        .in_memory = [&](const auto& ready,
                         const auto&) { ASSERT_TRUE(host.groups[r]->wait_for(Clock::now() + 60s, ready)); }};
    facts[r]->tell(call, facts_of(call, r, 2 + kOthers), 0, waits);
    auto calls = facts[r]->take(waits, [](const auto&) { return true; });
    EXPECT_EQ(find_mismatch(calls, ranks, 0), std::nullopt);
    for (int k = 0; k < 2 + kOthers; ++k) {
      std::vector<float> given(static_cast<size_t>(count));
      std::memcpy(given.data(), facts[r]->data(k), given.size() * sizeof(float));
      EXPECT_EQ(std::count(given.begin(), given.end(), static_cast<float>(k)), count) << "of rank " << k;
    }
  };
  std::thread second([&] { take_part(1); });
  take_part(0);
  second.join();
  // Only leaders speak to other hosts.
  EXPECT_EQ(wires[0].received, 1);
  EXPECT_GT(wires[0].sent.size(), 2 * static_cast<size_t>(count) * sizeof(float));
  EXPECT_EQ(wires[1].received, 0);
  EXPECT_TRUE(wires[1].sent.empty());
}

// ---- Engines

struct WireEngine {
  const char* name;
  std::unique_ptr<Wire> (*make)(int rank, const StorePtr& store);
};
std::vector<WireEngine> wire_engines() {
  std::vector<WireEngine> list;
  if (has_ucx())
    list.push_back({"ucx", [](int r, const StorePtr& store) { return make_ucx_wire(r, 2, store, false); }});
  if (has_gloo())
    list.push_back({"gloo", [](int r, const StorePtr& store) { return make_gloo_wire(r, 2, store, "127.0.0.1"); }});
  return list;
}

using Wires2 = std::unique_ptr<Wire>[2];
using Move = std::function<bool(const std::function<bool()>&)>;

/// Two ranks of one process that have said hello; in a process apart, since what an engine has begun does not survive
/// the forks of other tests.
class Wires : public testing::TestWithParam<WireEngine> {
 protected:
  static void run(const WireEngine& engine, void (*body)(Wires2& wires, const Move& move)) {
    Wires2 wires;
    auto store = std::make_shared<MemoryStore>(60s);
    auto second = std::async(std::launch::async, [&] { return engine.make(1, store); });
    wires[0] = engine.make(0, store);
    wires[1] = second.get();
    // Both move messages until that is so.
    Move move = [&](const std::function<bool()>& ready) {
      for (auto end = Clock::now() + 60s; Clock::now() < end;)
        for (auto& wire : wires)
          if (wire->wait(Clock::now() + 1ms, ready)) return true;
      return false;
    };
    char word[2] = {};
    Pending come[2], left;
    for (int r : {0, 1}) wires[r]->receive({0, 0, 1 - r, Channel::hello}, &word[r], 1, come[r]);
    for (int r : {0, 1}) wires[r]->send(1 - r, {0, 0, r, Channel::hello}, "h", 1, left);
    ASSERT_TRUE(move([&] { return come[0].done() && come[1].done() && left.done(); }));
    for (auto& wire : wires) wire->connected();
    body(wires, move);
  }
  static void apart(void (*body)(Wires2& wires, const Move& move)) {
#ifdef TUTTI_SANITIZE_THREAD  // does not follow a process that has threads into its children; other tests fork none
    run(GetParam(), body);
#else
    test::spawn_checked_processes(1, [engine = GetParam(), body] { run(engine, body); }, {});
#endif
  }
};
INSTANTIATE_TEST_SUITE_P(Engines, Wires, testing::ValuesIn(wire_engines()),
                         [](const auto& info) { return std::string(info.param.name); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Wires);

TEST_P(Wires, WhatComesBeforeItIsAskedForIsKept) {
  apart([](Wires2& wires, const Move& move) {
    std::vector<int> from(1'000'000), to(from.size());
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<int>(i);
    Pending left, come, word_come;
    char word = 0;
    wires[1]->send(0, {1, 0, 1, Channel::message}, from.data(), from.size() * sizeof(int), left);
    wires[1]->send(0, {1, 1, 1, Channel::message}, "w", 1, left);
    wires[0]->receive({1, 1, 1, Channel::message}, &word, 1, word_come);
    ASSERT_TRUE(move([&] { return word_come.done(); }));
    wires[0]->receive({1, 0, 1, Channel::message}, to.data(), to.size() * sizeof(int), come);
    ASSERT_TRUE(move([&] { return come.done() && left.done(); }));
    EXPECT_EQ(to, from);
    EXPECT_EQ(wires[0]->broken(1), std::nullopt);
  });
}

// Of threads that wait, one moves messages for all. When it goes, without anything having come, another does.
TEST_P(Wires, AnotherThreadTakesTheLead) {
  apart([](Wires2& wires, const Move&) {
    for (uint64_t round = 0; round < 5; ++round) {
      char word = 0;
      Pending come, left;
      wires[0]->receive({1, round, 1, Channel::message}, &word, 1, come);
      std::thread leader([&] { EXPECT_FALSE(wires[0]->wait(Clock::now() + 100ms, [] { return false; })); });
      std::this_thread::sleep_for(20ms);
      std::atomic<bool> has_come = false, gives_up = false;
      std::thread other(
          [&] { has_come = wires[0]->wait(Clock::now() + 1h, [&] { return come.done() || gives_up; }) && !gives_up; });
      leader.join();
      wires[1]->send(0, {1, round, 1, Channel::message}, "w", 1, left);
      for (auto end = Clock::now() + 20s; !has_come && Clock::now() < end;)
        wires[1]->wait(Clock::now() + 1ms, [&] { return has_come.load(); });
      EXPECT_TRUE(has_come) << "in round " << round;
      gives_up = !has_come;
      wires[0]->wake();
      other.join();
      EXPECT_TRUE(wires[1]->wait(Clock::now() + 20s, [&] { return left.done(); }));  // it lives until then
      if (testing::Test::HasFailure()) return;
    }
  });
}

// After a cut nothing comes into memory that was given for it, and nothing is read that was to be sent.
TEST_P(Wires, NothingMovesAfterACut) {
  apart([](Wires2& wires, const Move&) {
    constexpr size_t kCount = 4'000'000;
    auto to = std::make_unique<std::vector<int>>(kCount), from = std::make_unique<std::vector<int>>(kCount, 7);
    Pending come, left;
    wires[0]->receive({1, 0, 1, Channel::message}, to->data(), kCount * sizeof(int), come);
    wires[1]->send(0, {1, 0, 1, Channel::message}, from->data(), kCount * sizeof(int), left);
    // Some of it, perhaps.
    wires[0]->wait(Clock::now() + 2ms, [] { return false; });
    wires[0]->cut();
    std::vector<int> seen = *to;
    wires[1]->wait(Clock::now() + 50ms, [] { return false; });
    wires[0]->wait(Clock::now() + 50ms, [] { return false; });
    EXPECT_EQ(*to, seen);
    // What is asked for now never comes.
    Pending later;
    char word = 0;
    wires[0]->receive({1, 1, 1, Channel::message}, &word, 1, later);
    wires[1]->send(0, {1, 1, 1, Channel::message}, "w", 1, left);
    wires[1]->cut();
    from.reset();
    wires[0]->wait(Clock::now() + 50ms, [] { return false; });
    EXPECT_FALSE(later.done());
    EXPECT_EQ(word, 0);
  });
}

TEST_P(Wires, ACutBeforeAnythingComes) {
  apart([](Wires2& wires, const Move&) {
    std::vector<int> to(1000), from(1000, 7);
    Pending come, left, word_come;
    wires[0]->receive({1, 0, 1, Channel::message}, to.data(), 4000, come);
    wires[0]->cut();
    wires[1]->send(0, {1, 0, 1, Channel::message}, from.data(), 4000, left);
    wires[1]->wait(Clock::now() + 50ms, [] { return false; });
    wires[0]->wait(Clock::now() + 50ms, [] { return false; });
    EXPECT_EQ(to, std::vector<int>(1000));
    EXPECT_FALSE(come.done());
    wires[1]->cut();
  });
}

// UCX cannot begin anew in a process that was forked from one in which it had to be left behind.
TEST(UcxWire, AChildOfAProcessWhoseWorldFailedIsTold) {
  if (!has_ucx()) GTEST_SKIP() << "this build has no UCX";
#ifdef TUTTI_SANITIZE_THREAD
  GTEST_SKIP() << "ThreadSanitizer does not follow a process that has threads into its children";
#endif
  test::spawn_checked_processes(
      1,
      [] {
        {
          auto store = std::make_shared<MemoryStore>(60s);
          auto second = std::async(std::launch::async, [&] { return make_ucx_wire(1, 2, store, false); });
          auto first = make_ucx_wire(0, 2, store, false);
          first->cut();
          second.get()->cut();
        }
        pid_t child = ::fork();
        if (child == 0) {
          try {
            make_ucx_wire(0, 1, std::make_shared<MemoryStore>(1s), false);
          } catch (const ConnectionError& e) {
            ::_exit(std::string(e.what()).find("forked from one in which a world by UCX has failed") ==
                    std::string::npos);
          }
          ::_exit(2);
        }
        int status = -1;
        ::waitpid(child, &status, 0);
        EXPECT_EQ(status, 0);
      },
      {});
}

// The other rank has said where it is, and does not come: the wait for it can be ended.
TEST(GlooWire, AMeetingCanBeStopped) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no gloo";
  auto store = std::make_shared<MemoryStore>(60s);
  std::stop_source stop;
  auto began = Clock::now();
  auto meets = std::async(std::launch::async, [&] { make_gloo_wire(0, 2, store, "127.0.0.1", stop.get_token()); });
  // An address above this rank's own: then it is the other that connects.
  std::string address = store->get("gloo/0");
  address[2] = static_cast<char>(0xff);
  store->set("gloo/1", address);
  EXPECT_EQ(meets.wait_for(500ms), std::future_status::timeout);
  stop.request_stop();
  EXPECT_THROW(meets.get(), CancelledError);
  EXPECT_LT(Clock::now() - began, 30s);
}

}  // namespace
}  // namespace tutti::comm
