// What every store does, from one body for all kinds of them.
#include <gmock/gmock.h>

#include <set>

#include "tests/comm/store_support.h"
#include "tests/support/expect_ops.h"

namespace tutti::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Stores : public testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Site> site = GetParam().make();
  StorePtr store = site->open();
  StorePtr other = site->open();
};

TEST_P(Stores, HoldsValues) {
  store->set("a", "1");
  EXPECT_EQ(other->get("a"), "1");
  other->set("a", "2");
  EXPECT_EQ(store->get("a"), "2");
  EXPECT_EQ(store->try_get("a"), "2");
  EXPECT_EQ(store->try_get("b"), std::nullopt);
  EXPECT_TRUE(store->has({"a"}));
  EXPECT_FALSE(store->has({"a", "b"}));
  store->wait({});
  store->wait({"a", "a"});
  EXPECT_TRUE(store->multi_get({}).empty());
  store->multi_set({});
}

TEST_P(Stores, HoldsAnyBytes) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  std::string large(3 << 20, 'x');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 2654435761u >> 13);
  store->set(all, "");
  store->set("", all);
  store->set("large", large);
  EXPECT_EQ(other->get(all), "");
  EXPECT_EQ(other->get(""), all);
  EXPECT_TRUE(other->get("large") == large);
  EXPECT_EQ(other->get(all), "");
}

TEST_P(Stores, Counts) {
  EXPECT_EQ(store->add("n", 5), 5);
  EXPECT_EQ(other->add("n", -7), -2);
  EXPECT_EQ(store->get("n"), "-2");
  EXPECT_EQ(store->add("n", 0), -2);
  store->set("n", "9223372036854775806");
  EXPECT_EQ(store->add("n", 1), INT64_MAX);
  EXPECT_THAT(message_of<StoreError>([&] { store->add("n", 1); }), HasSubstr("n\" would overflow"));
  store->set("text", "7 dwarfs");
  EXPECT_THAT(message_of<StoreError>([&] { store->add("text", 1); }), HasSubstr("text\" is not a number"));
  EXPECT_EQ(other->get("text"), "7 dwarfs");
}

TEST_P(Stores, ComparesAndSets) {
  EXPECT_EQ(store->compare_and_set("a", "x", "y"), "");
  EXPECT_FALSE(store->has({"a"}));
  EXPECT_EQ(store->compare_and_set("a", "", "one"), "one");
  EXPECT_EQ(other->compare_and_set("a", "", "two"), "one");
  EXPECT_EQ(other->compare_and_set("a", "one", "three"), "three");
  EXPECT_EQ(store->get("a"), "three");
}

TEST_P(Stores, Appends) {
  store->append("log", "a");
  other->append("log", "");
  other->append("log", "bc");
  EXPECT_EQ(store->get("log"), "abc");
  store->set("log", std::string(Store::kMaxValue - 1, 'x'));
  store->append("log", "y");
  EXPECT_THAT(message_of<StoreError>([&] { store->append("log", "z"); }), HasSubstr("8388609 bytes"));
  EXPECT_EQ(store->get("log").size(), Store::kMaxValue);
}

TEST_P(Stores, ListsErasesAndClears) {
  store->multi_set({{"b/2", "x"}, {"a", "y"}, {"b/1", "z"}, {"c", ""}});
  store->push("b/q", "1");
  EXPECT_EQ(other->count(), 4);
  EXPECT_THAT(other->list(), ElementsAre("a", "b/1", "b/2", "c"));
  EXPECT_THAT(other->list("b/"), ElementsAre("b/1", "b/2"));
  EXPECT_TRUE(other->list("d").empty());
  EXPECT_THAT(other->multi_get({"c", "b/1"}), ElementsAre("", "z"));
  EXPECT_TRUE(other->erase("a"));
  EXPECT_FALSE(store->erase("a"));
  EXPECT_EQ(store->clear("b/"), 3);
  EXPECT_EQ(store->queue_size("b/q"), 0);
  EXPECT_THAT(store->list(), ElementsAre("c"));
  EXPECT_EQ(store->clear(), 1);
  EXPECT_EQ(store->count(), 0);
}

TEST_P(Stores, QueuesAreInOrder) {
  EXPECT_EQ(store->try_pop("q"), std::nullopt);
  for (int i = 0; i < 5; ++i) store->push("q", std::to_string(i));
  store->set("q", "a value of the same name");
  EXPECT_EQ(other->queue_size("q"), 5);
  EXPECT_EQ(other->pop("q"), "0");
  EXPECT_EQ(other->try_pop("q"), "1");
  EXPECT_EQ(store->pop("q"), "2");
  EXPECT_EQ(store->queue_size("q"), 2);
  EXPECT_TRUE(store->erase("q"));
  EXPECT_EQ(store->queue_size("q"), 2);
}

TEST_P(Stores, AddFromThreadsIsExact) {
  constexpr int threads = 8, rounds = 50;
  std::mutex mutex;
  std::set<int64_t> seen;
  in_threads(threads, [&](int i) {
    StorePtr mine = i % 2 ? site->open() : store;  // handles of their own, and one for several
    for (int k = 0; k < rounds; ++k) {
      int64_t value = mine->add("n", 1);
      std::lock_guard lock(mutex);
      EXPECT_TRUE(seen.insert(value).second) << value << " was given twice";
    }
  });
  EXPECT_EQ(store->get("n"), "400");
  EXPECT_EQ(*seen.rbegin(), threads * rounds);
}

TEST_P(Stores, CompareAndSetIsALock) {
  int unguarded = 0;
  std::atomic<bool> inside{false};
  in_threads(6, [&](int i) {
    std::string me = std::to_string(i);
    for (int k = 0; k < 5; ++k) {
      while (store->compare_and_set("lock", "", me) != me) std::this_thread::yield();
      EXPECT_FALSE(inside.exchange(true));
      ++unguarded;
      inside = false;
      EXPECT_EQ(store->compare_and_set("lock", me, ""), "");
    }
  });
  EXPECT_EQ(unguarded, 30);
}

TEST_P(Stores, GetWaitsForTheKey) {
  std::atomic<int> got{0};
  std::thread setter([&] {
    while (got.load() == 0) std::this_thread::yield();
    store->set("other", "x");
    EXPECT_EQ(got.load(), 1);
    store->set("key", "value");
  });
  in_threads(6, [&](int i) {
    StorePtr mine = i < 3 ? store : site->open();
    got = 1;
    EXPECT_EQ(mine->get("key"), "value");
  });
  setter.join();
}

TEST_P(Stores, WaitNeedsAllKeys) {
  std::atomic<bool> released{false};
  std::thread waiter([&] {
    other->wait({"a", "b", "c"});
    released = true;
  });
  std::thread getter([&] { EXPECT_THAT(other->multi_get({"c", "a"}), ElementsAre("3", "1")); });
  for (auto [key, value] : {std::pair{"c", "3"}, {"b", "2"}}) {
    store->set(key, value);
    std::this_thread::sleep_for(10ms);
    EXPECT_FALSE(released);
  }
  EXPECT_EQ(store->add("a", 1), 1);  // a counter is a value too
  waiter.join();
  getter.join();
  EXPECT_TRUE(released);
}

TEST_P(Stores, EveryWriteReleases) {
  std::vector<std::pair<const char*, std::function<void(const std::string&)>>> writes = {
      {"set", [&](auto& k) { store->set(k, "v"); }},
      {"add", [&](auto& k) { store->add(k, 1); }},
      {"append", [&](auto& k) { store->append(k, "v"); }},
      {"cas", [&](auto& k) { store->compare_and_set(k, "", "v"); }},
      {"multi", [&](auto& k) { store->multi_set({{"unrelated", ""}, {k, "v"}}); }}};
  for (auto& [name, write] : writes) {
    std::thread waiter([&, name = name] { EXPECT_NO_THROW(other->wait({name}, {.timeout = 10s})); });
    std::this_thread::sleep_for(2ms);
    write(name);
    waiter.join();
  }
}

TEST_P(Stores, TimeoutsNameWhatDidNotCome) {
  store->set("here", "x");
  std::string prefix = GetParam().name == std::string("prefix") ? "outer/inner/" : "";
  auto start = Clock::now();
  EXPECT_EQ(message_of<TimeoutError>([&] { store->wait({"p", "here", "q"}, {.timeout = 30ms}); }),
            "store.wait: 2 of 3 keys did not come to " + store->name() + " in 0.03 s: \"" + prefix + "p\", \"" +
                prefix + "q\"");
  EXPECT_GE(seconds_since(start), 0.03);
  EXPECT_EQ(message_of<TimeoutError>([&] { store->pop("queue", {.timeout = 5ms}); }),
            "store.pop: nothing came to the queue \"" + prefix + "queue\" of " + store->name() + " in 0.005 s");
  store->set_timeout(10ms);
  EXPECT_EQ(store->timeout(), 10ms);
  EXPECT_EQ(message_of<TimeoutError>([&] { store->get("k"); }),
            "store.get: 1 of 1 keys did not come to " + store->name() + " in 0.01 s: \"" + prefix + "k\"");
  Store::Keys many;
  for (int i = 10; i < 30; ++i) many.push_back(std::to_string(i));
  EXPECT_THAT(message_of<TimeoutError>([&] { store->wait(many); }), HasSubstr("17\" and 12 more"));
  EXPECT_EQ(message_of<TimeoutError>([&] { store->get("k", {.timeout = 0s}); }).substr(0, 30),
            "store.get: 1 of 1 keys did not");
  store->set_timeout(20s);
  EXPECT_EQ(store->get("here"), "x");  // nothing is left behind
  EXPECT_LT(seconds_since(start), 5);
}

TEST_P(Stores, StopTokensEndOneCall) {
  std::stop_source stop;
  std::thread stopper([&] {
    std::this_thread::sleep_for(20ms);
    stop.request_stop();
  });
  auto start = Clock::now();
  std::string text = message_of<CancelledError>([&] { store->get("never", {.stop = stop.get_token()}); });
  EXPECT_THAT(text, HasSubstr("store.get: cancelled while waiting for \""));
  EXPECT_THAT(text, HasSubstr("never\" in " + store->name()));
  EXPECT_LT(seconds_since(start), 5);
  stopper.join();
  EXPECT_THROW(store->set("a", "x", {.stop = stop.get_token()}), CancelledError);
  EXPECT_FALSE(store->has({"a"}));
}

TEST_P(Stores, CancelEndsAllCallsOfAHandle) {
  auto view = std::make_shared<PrefixStore>("view/", store);
  auto sibling = std::make_shared<PrefixStore>("view/", store);
  std::atomic<int> cancelled{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      EXPECT_THROW(view->get("never"), CancelledError);
      ++cancelled;
    });
  std::thread untouched([&] { EXPECT_EQ(sibling->get("late"), "x"); });
  std::this_thread::sleep_for(10ms);
  EXPECT_EQ(cancelled, 0);
  view->cancel();
  for (auto& thread : threads) thread.join();
  EXPECT_THROW(view->set("late", "x"), CancelledError);
  store->set("view/late", "x");
  untouched.join();

  if (GetParam().name == std::string("memory")) return;  // there, store and other are one handle
  std::thread of_the_store([&] { EXPECT_THROW(sibling->pop("never"), CancelledError); });
  std::this_thread::sleep_for(5ms);
  store->cancel();
  of_the_store.join();
  EXPECT_EQ(other->get("view/late"), "x");
}

TEST_P(Stores, EachItemGoesToOneConsumer) {
  constexpr int workers = 4, items = 30;
  std::mutex mutex;
  std::vector<std::vector<int>> seen(workers);
  std::atomic<int> taken{0};
  in_threads(2 * workers, [&](int i) {
    StorePtr mine = i % 2 ? store : site->open();
    if (i >= workers) {
      for (int k = 0; k < items; ++k) mine->push("jobs", std::to_string((i - workers) * items + k));
      return;
    }
    while (taken.fetch_add(1) < workers * items) {
      int job = std::stoi(mine->pop("jobs"));
      std::lock_guard lock(mutex);
      seen[static_cast<size_t>(i)].push_back(job);
    }
  });
  std::multiset<int> all;
  for (auto& jobs : seen) {
    for (int job : jobs) all.insert(job);
    // One consumer sees the jobs of one producer in their order.
    for (int p = 0; p < workers; ++p) {
      std::vector<int> of_one;
      for (int job : jobs)
        if (job / items == p) of_one.push_back(job);
      EXPECT_TRUE(std::is_sorted(of_one.begin(), of_one.end()));
    }
  }
  EXPECT_EQ(all.size(), size_t{workers * items});
  EXPECT_EQ(std::set<int>(all.begin(), all.end()).size(), all.size());
  EXPECT_EQ(store->queue_size("jobs"), 0);
}

// A pop that is given up just as its item comes: one of the two happened, never both and never neither.
TEST_P(Stores, AbandonedPopsLoseNothing) {
  constexpr int rounds = 60;
  int got = 0;
  std::thread producer([&] {
    for (int k = 0; k < rounds; ++k) {
      store->push("q", "item");
      std::this_thread::sleep_for(100us);
    }
  });
  for (int k = 0; k < rounds; ++k) {
    try {
      other->pop("q", {.timeout = std::chrono::microseconds(50 + 20 * (k % 10))});
      ++got;
    } catch (const TimeoutError&) {
    }
  }
  producer.join();
  EXPECT_EQ(got + store->queue_size("q"), rounds);
}

TEST_P(Stores, MultiSetIsOneMoment) {
  store->multi_set({{"x", "0"}, {"y", "0"}});
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (int k = 1; k <= 100; ++k) store->multi_set({{"x", std::to_string(k)}, {"y", std::to_string(k)}});
    done = true;
  });
  int reads = 0;
  while (!done || reads == 0) {
    auto values = other->multi_get({"y", "x"});
    EXPECT_EQ(values[0], values[1]);
    ++reads;
  }
  writer.join();
}

TEST_P(Stores, BoundsAreTheSameEverywhere) {
  std::string key(Store::kMaxKey + 1, 'k');
  EXPECT_THAT(message_of<ValueError>([&] { store->set(key, ""); }), HasSubstr("a key of 4097 bytes"));
  EXPECT_THAT(message_of<ValueError>([&] { store->get(key, {.timeout = 0s}); }), HasSubstr("4096 can be"));
  std::string value(Store::kMaxValue + 1, 'v');
  EXPECT_THAT(message_of<ValueError>([&] { store->set("a", value); }), HasSubstr("a value of 8388609 bytes"));
  value.pop_back();
  EXPECT_THAT(message_of<ValueError>([&] { store->multi_set({{"a", value}, {"b", value}}); }),
              HasSubstr("in one call"));
  EXPECT_THROW(store->wait(Store::Keys(Store::kMaxKeys + 1)), ValueError);
  EXPECT_EQ(store->count(), 0);
  // Each value is small enough, all together are not; so it is an error also where there is no wire to cross.
  for (auto* name : {"a", "b"}) store->set(name, value);
  EXPECT_THAT(message_of<StoreError>([&] { other->multi_get({"a", "b"}); }), HasSubstr("more than 16777216 bytes"));
  EXPECT_EQ(other->get("a").size(), value.size());
}

INSTANTIATE_TEST_SUITE_P(Kinds, Stores, testing::Values(kMemory, kFile, kTcp4, kTcp6, kPrefix),
                         [](auto& info) { return std::string(info.param.name); });

TEST(PrefixStore, ShowsOnlyItsOwn) {
  auto base = std::make_shared<MemoryStore>();
  PrefixStore a("a/", base), b("b/", base);
  a.set("x", "1");
  b.set("x", "2");
  b.push("q", "3");
  EXPECT_EQ(a.get("x"), "1");
  EXPECT_THAT(base->list(), ElementsAre("a/x", "b/x"));
  EXPECT_THAT(a.list(), ElementsAre("x"));
  EXPECT_EQ(b.count(), 1);
  EXPECT_EQ(b.clear(), 2);
  EXPECT_EQ(base->count(), 1);
  EXPECT_EQ(base->queue_size("b/q"), 0);
  EXPECT_THROW(PrefixStore("c/", nullptr), ValueError);
  EXPECT_THAT(message_of<ValueError>([&] { a.set(std::string(Store::kMaxKey, 'k'), ""); }), HasSubstr("prefix \"a/\""));
}

TEST(MemoryStore, HundredsOfThreadsWaitForOneKey) {
  MemoryStore store;
  std::thread setter([&] {
    while (store.add("here", 0) < 500) std::this_thread::sleep_for(1ms);
    store.set("go", "x");
  });
  in_threads(500, [&](int) {
    store.add("here", 1);
    EXPECT_EQ(store.get("go"), "x");
  });
  setter.join();
}

}  // namespace
}  // namespace tutti::test
