// The protocol of references, without messages: whatever the order in which things happen, no object goes while
// somebody has a reference to it, and none stays when nobody has.
#include "rpc/lease.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "tutti/error.h"

namespace tutti::rpc::detail {
namespace {

/// Workers that pass references around. Messages lie in one heap, from which any may be taken next.
class Simulation {
 public:
  struct Flying {
    int from, to;
    std::optional<LeaseMessage> lease;
    RefId id = {};
    uint64_t fork = 0;
    bool makes = false;
  };
  explicit Simulation(int workers) {
    for (int w = 0; w < workers; ++w) workers_.emplace_back(w);
  }
  size_t flying() const { return flying_.size(); }
  bool alive(int w) const { return workers_[at(w)].alive; }
  const std::map<RefId, int>& handles(int w) const { return workers_[at(w)].handles; }

  RefId make(int maker, int owner) {
    RefId id = workers_[at(maker)].holder.make(owner);
    ++workers_[at(maker)].handles[id];
    exists_.insert(id);
    flying_.push_back({maker, owner, {}, id, 0, true});
    return id;
  }
  void pass(int from, int to, const RefId& id) {
    flying_.push_back({from, to, {}, id, workers_[at(from)].holder.fork(id, to)});
    settle(from);
  }
  void drop(int w, RefId id) {
    Worker& worker = workers_[at(w)];
    if (--worker.handles[id] == 0) worker.handles.erase(id);
    worker.holder.drop(id);
    settle(w);
    check();
  }
  void deliver(size_t which) {
    Flying f = flying_[which];
    flying_.erase(flying_.begin() + static_cast<std::ptrdiff_t>(which));
    Worker& to = workers_[at(f.to)];
    if (!to.alive || !workers_[at(f.from)].alive) return check();
    if (f.makes) {
      to.owner.made(f.id);
      made_.insert(f.id);
    } else if (!f.lease) {
      to.holder.receive(f.id, f.from, f.fork);
      ++to.handles[f.id];
    } else {
      take(to, f.from, *f.lease);
    }
    settle(f.to);
    check();
  }
  /// Messages of a worker that is killed are lost, and all others learn of it.
  void kill(int w) {
    workers_[at(w)].alive = false;
    workers_[at(w)].handles.clear();
    std::erase_if(flying_, [&](const Flying& f) { return f.from == w || f.to == w; });
    for (int other = 0; other < static_cast<int>(workers_.size()); ++other)
      if (alive(other)) {
        workers_[at(other)].owner.died(w);
        workers_[at(other)].holder.died(w);
        settle(other);
      }
    killed_ = true;
    check();
  }
  void expect_nothing_left() const {
    for (const Worker& w : workers_) {
      if (!w.alive) continue;
      EXPECT_TRUE(w.owner.all().empty());
      EXPECT_TRUE(w.holder.empty());
    }
    for (const RefId& id : made_) EXPECT_TRUE(!alive(id.owner) || freed_.count(id)) << "an object stayed";
  }

 private:
  struct Worker {
    explicit Worker(int me) : holder(me) {}
    LeaseOwner owner;
    LeaseHolder holder;
    bool alive = true;
    std::map<RefId, int> handles;
  };
  static size_t at(int w) { return static_cast<size_t>(w); }
  void take(Worker& to, int from, const LeaseMessage& m) {
    switch (m.kind) {
      case LeaseMessage::take: {
        bool gone = to.owner.take(m.id, from) == LeaseOwner::Taken::gone;
        EXPECT_TRUE(!gone || killed_) << "a fork came too late";
        flying_.push_back({m.to, from, LeaseMessage{gone ? LeaseMessage::gone : LeaseMessage::confirm, from, m.id, 0}});
        break;
      }
      case LeaseMessage::confirm:
      case LeaseMessage::gone:
        to.holder.confirmed(m.id, m.kind == LeaseMessage::gone);
        break;
      case LeaseMessage::accept:
        to.holder.accepted(m.fork);
        break;
      case LeaseMessage::give_back:
        to.owner.give_back(m.id, from);
        break;
    }
  }
  void settle(int w) {
    for (const LeaseMessage& m : workers_[at(w)].holder.take_messages()) flying_.push_back({w, m.to, m});
    for (const RefId& id : workers_[at(w)].owner.take_free()) freed_.insert(id);
  }
  // Whoever has a reference, or is about to get one, must find the object.
  void check() const {
    for (const Worker& w : workers_)
      for (const auto& [id, count] : w.handles)
        EXPECT_TRUE(killed_ || !freed_.count(id)) << "an object went that somebody had a reference to";
    for (const Flying& f : flying_)
      EXPECT_TRUE(killed_ || f.lease || f.makes || !freed_.count(f.id)) << "an object went before its fork came";
  }

  std::vector<Worker> workers_;
  std::vector<Flying> flying_;
  std::set<RefId> exists_, made_, freed_;
  bool killed_ = false;
};

void drain(Simulation& s, std::mt19937& random) {
  while (s.flying() > 0) s.deliver(random() % s.flying());
}

void drop_all(Simulation& s, int workers) {
  for (int w = 0; w < workers; ++w)
    while (s.alive(w) && !s.handles(w).empty()) s.drop(w, s.handles(w).begin()->first);
}

TEST(Leases, AnyOrderOfRandomHistories) {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    int workers = 2 + static_cast<int>(random() % 4);
    bool kills = seed % 3 == 0;
    Simulation s(workers);
    auto any = [&] { return static_cast<int>(random() % static_cast<unsigned>(workers)); };
    for (int step = 0; step < 120; ++step) {
      int w = any(), other = any();
      if (!s.alive(w)) continue;
      unsigned what = random() % 10;
      const auto& handles = s.handles(w);
      if (what < 2 && s.alive(other)) {
        s.make(w, other);
      } else if (what < 5 && !handles.empty()) {
        auto it = handles.begin();
        std::advance(it, static_cast<std::ptrdiff_t>(random() % handles.size()));
        RefId id = it->first;
        if (other != w) s.pass(w, other, id);
        if (random() % 2) s.drop(w, id);
      } else if (what == 9 && kills && step == 60) {
        s.kill(w);
      } else if (s.flying() > 0) {
        s.deliver(random() % s.flying());
      }
    }
    if (kills) s.kill(any());
    // What arrives late may bring references that are dropped then.
    for (int round = 0; round < 50; ++round) drop_all(s, workers), drain(s, random);
    s.expect_nothing_left();
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

// Every order in which the messages of a small history can arrive: a worker makes an object of another, passes it to a
// third, which passes it back to the owner; all drop theirs at once.
void every_order(const Simulation& s, int workers, int& histories) {
  if (s.flying() == 0) {
    Simulation end = s;
    drop_all(end, workers);
    if (end.flying() > 0) return every_order(end, workers, histories);
    end.expect_nothing_left();
    ++histories;
    return;
  }
  for (size_t k = 0; k < s.flying() && !testing::Test::HasFailure(); ++k) {
    Simulation next = s;
    next.deliver(k);
    every_order(next, workers, histories);
  }
}

TEST(Leases, EveryOrderOfAShortHistory) {
  Simulation s(3);
  RefId id = s.make(0, 1);
  s.pass(0, 2, id);
  s.drop(0, id);
  int histories = 0;
  every_order(s, 3, histories);
  EXPECT_EQ(histories, 6);

  Simulation twice(3);
  id = twice.make(0, 1);
  twice.pass(0, 2, id);
  twice.pass(0, 1, id);
  twice.drop(0, id);
  histories = 0;
  every_order(twice, 3, histories);
  EXPECT_GT(histories, 100);
}

TEST(Leases, AnObjectThatIsNeverMadeIsGivenUp) {
  Simulation s(3);
  RefId id = s.make(0, 1);
  s.pass(0, 2, id);
  s.deliver(1);  // the fork, at worker 2
  s.deliver(1);  // its take, at the owner, which has not made it
  s.kill(0);
  std::mt19937 random(1);
  drain(s, random);
  drop_all(s, 3);
  drain(s, random);
  s.expect_nothing_left();
}

}  // namespace
}  // namespace tutti::rpc::detail
