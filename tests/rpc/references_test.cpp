// Objects that live on other workers.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "rpc/shuffle.h"
#include "tests/rpc/support.h"

namespace tutti::test::of_references {  // functions that are called have names of their own
namespace {

class RpcReferences : public Rpc {};
INSTANTIATE_TEST_SUITE_P(Ways, RpcReferences, every_way(), testing::PrintToStringParamName());

std::atomic<int> alive{0};  // in this process

struct Box {
  int64_t value = 0;
  std::string label;
  TUTTI_FIELDS(value, label)

  Box() { ++alive; }
  Box(int64_t value, std::string label) : value(value), label(std::move(label)) {
    if (value < 0) throw ValueError("a box holds no debts", "Box");
    ++alive;
  }
  Box(const Box& other) : value(other.value), label(other.label) { ++alive; }
  Box& operator=(const Box&) = default;
  ~Box() { --alive; }

  // Calls of one object run at the same time: it guards itself.
  int64_t add(int64_t amount) { return std::atomic_ref(value).fetch_add(amount) + amount; }
  int64_t get() const noexcept { return value; }
  const std::string& text() const { return label; }
  rpc::Future<int64_t> later(const int64_t& amount) {
    co_return value + co_await rpc::async<&Box::twice>(next_worker(), amount);
  }
  static int64_t twice(int64_t x) { return 2 * x; }
};
using BoxRef = rpc::RemoteRef<Box>;

Box make_box(int64_t value) { return {value, "made"}; }
int64_t add_to(const BoxRef& box, int64_t amount) { return box.call<&Box::add>(amount); }
BoxRef hand_on(const BoxRef& box, int64_t times) {
  return times == 0 ? box : rpc::sync<&hand_on>(next_worker(), box, times - 1);
}
size_t count(const std::vector<BoxRef>& boxes, const std::map<std::string, BoxRef>& more) {
  return boxes.size() + more.size();
}
std::vector<BoxRef>& kept() {
  static std::mutex mutex;
  static std::map<int, std::vector<BoxRef>> by_rank;
  std::lock_guard lock(mutex);
  return by_rank[rank()];
}
void keep(const BoxRef& box) { kept().push_back(box); }
int64_t use_local(const BoxRef& box) { return box.is_mine() ? box.local_value().value : -1; }

/// Until all that was let go of is gone.
void expect_no_objects(rpc::Session& session) {
  auto left = [&] { return session.statistics().objects + session.statistics().references; };
  auto until = std::chrono::steady_clock::now() + 20s;
  while (left() > 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(session.statistics().objects, 0u);
  EXPECT_EQ(session.statistics().references, 0u);
}

TEST_P(RpcReferences, ObjectsAreMadeAndUsed) {
  run(3, [](rpc::Session& session) {
    if (rank() == 0) {
      auto box = rpc::remote<Box>("worker1", 40, "mine");
      EXPECT_EQ(box.call<&Box::add>(2), 42);
      EXPECT_EQ(box.async<&Box::get>().wait(), 42);
      EXPECT_EQ(box.call<&Box::text>(), "mine");
      EXPECT_EQ(box.within(5s).call<&Box::later>(4), 50);
      EXPECT_EQ(box.owner(), (rpc::Worker{"worker1", 1}));
      EXPECT_FALSE(box.is_mine());
      Box copy = box.to_here();
      EXPECT_EQ(copy.value, 42);
      EXPECT_EQ(copy.label, "mine");
      std::string text = text_of_error<ValueError>([&] { box.local_value(); });
      EXPECT_NE(text.find("to_here"), std::string::npos) << text;

      auto result = rpc::remote<&make_box>("worker2", 7);
      result.wait();
      EXPECT_EQ(result.call<&Box::get>(), 7);
      auto own = rpc::remote<Box>("worker0", 1, "own");
      own.wait();
      EXPECT_TRUE(own.is_mine());
      EXPECT_EQ(&own.local_value(), &own.local_value());
      own.local_value().value = 5;
      EXPECT_EQ(own.call<&Box::get>(), 5);
      auto shared = rpc::share(std::make_shared<Box>(3, "shared"));
      EXPECT_EQ(rpc::sync<&add_to>("worker2", shared, 4), 7);
      EXPECT_EQ(shared.local_value().value, 7);
      EXPECT_EQ(rpc::sync<&use_local>("worker1", box), 42);
      EXPECT_EQ(rpc::sync<&use_local>("worker2", box), -1);
    }
    barrier();
    expect_no_objects(session);
    EXPECT_TRUE(session.shutdown().empty());
  });
}

TEST_P(RpcReferences, MakingThatFailsIsSaidByEveryUse) {
  run(2, [](rpc::Session& session) {
    if (rank() == 0) {
      auto box = rpc::remote<Box>("worker1", -1, "none");
      EXPECT_THROW(box.wait(), ValueError);
      EXPECT_THROW(box.call<&Box::get>(), ValueError);
      EXPECT_THROW(rpc::sync<&add_to>("worker1", box, 1), ValueError);
      EXPECT_THROW(BoxRef().call<&Box::get>(), ValueError);
    }
    barrier();
    expect_no_objects(session);
  });
}

TEST_P(RpcReferences, PassedOnAndBack) {
  run(3, [](rpc::Session& session) {
    if (rank() == 0) {
      auto box = rpc::remote<Box>("worker1", 0, "passed");
      EXPECT_EQ(rpc::sync<&add_to>("worker2", box, 1), 1);  // before it may have been made
      EXPECT_EQ(rpc::sync<&add_to>("worker1", box, 1), 2);  // at its owner
      std::vector<rpc::Future<int64_t>> sums;
      for (int i = 0; i < 60; ++i) sums.push_back(rpc::async<&add_to>(i % 3, box, 1));
      rpc::all(sums).wait();
      EXPECT_EQ(box.call<&Box::get>(), 62);
      BoxRef back = rpc::sync<&hand_on>("worker2", box, 7);
      box = BoxRef();
      EXPECT_EQ(back.call<&Box::get>(), 62);
      EXPECT_EQ(rpc::sync<&count>("worker2", std::vector<BoxRef>{back, BoxRef(), back},
                                  std::map<std::string, BoxRef>{{"a", back}}),
                4u);
      // The only reference left is on its way.
      rpc::sync<&keep>("worker2", rpc::remote<Box>("worker1", 9, "only"));
    }
    barrier();
    if (rank() == 2) {
      EXPECT_EQ(kept().back().call<&Box::get>(), 9);
      kept().clear();
    }
    barrier();
    expect_no_objects(session);
  });
  EXPECT_EQ(alive.load(), 0);
}

TEST_P(RpcReferences, ManyForksAtOnceLeaveNothing) {
  run(4, [](rpc::Session& session) {
    std::vector<rpc::Future<BoxRef>> all;
    for (int i = 0; i < 50; ++i) {
      auto box = rpc::remote<Box>(next_worker(i), i, "forked");
      for (int k = 1; k < 4; ++k) all.push_back(rpc::async<&hand_on>(next_worker(k), box, k));
    }
    for (auto& ref : all) EXPECT_GE(ref.wait().call<&Box::get>(), 0);
    all.clear();
    barrier();
    expect_no_objects(session);
  });
}

// The same, with messages that overtake each other.
TEST_P(RpcReferences, AnyOrderOfMessagesLeavesNothing) {
  struct Shuffled {
    Shuffled() { rpc::detail::set_shuffle(12345); }
    ~Shuffled() { rpc::detail::set_shuffle(0); }
  } shuffled;
  run(3, [](rpc::Session& session) {
    for (int round = 0; round < 5; ++round) {
      std::vector<rpc::Future<BoxRef>> all;
      std::vector<rpc::Future<int64_t>> sums;
      for (int i = 0; i < 10; ++i) {
        auto box = rpc::remote<Box>(next_worker(i), i, "shuffled");
        for (int k = 0; k < 3; ++k) all.push_back(rpc::async<&hand_on>(next_worker(k), box, k + 1));
        sums.push_back(rpc::async<&add_to>(next_worker(i + 1), box, 1));
      }
      for (size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i].wait(), static_cast<int64_t>(i) + 1);
      for (auto& ref : all) EXPECT_GE(ref.wait().call<&Box::get>(), 0);
    }
    barrier();
    expect_no_objects(session);
  });
}

TEST_P(RpcReferences, LeaksAreListedWithTheirOrigin) {
  run(2, [](rpc::Session& session) {
    BoxRef held;
    if (rank() == 0) {
      held = rpc::remote<Box>("worker1", 1, "held");
      held.wait();
    }
    auto leaks = session.shutdown();
    if (rank() == 0) {
      EXPECT_TRUE(leaks.empty());
      EXPECT_THROW(held.call<&Box::get>(), ValueError);  // the session is over
    } else {
      ASSERT_EQ(leaks.size(), 1u);
      EXPECT_EQ(leaks[0].type, "Box");
      EXPECT_NE(leaks[0].made_at.find("references_test.cpp"), std::string::npos) << leaks[0].made_at;
      EXPECT_NE(leaks[0].made_at.find("by worker0"), std::string::npos) << leaks[0].made_at;
      EXPECT_EQ(leaks[0].held_by, (std::vector<rpc::Worker>{{"worker0", 0}}));
    }
  });
}

}  // namespace
}  // namespace tutti::test::of_references
