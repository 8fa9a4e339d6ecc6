// Ranks that are processes: whether they may keep their cores while they wait.
#include "comm/transport/process_world.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <set>
#include <thread>

#include "base/cores.h"
#include "comm/transport/group_id.h"

namespace tutti::comm {
namespace {

using namespace std::chrono_literals;

/// A world of two ranks, each made by a thread that may only run on these cores.
struct Two {
  int memory = ::memfd_create("two", MFD_CLOEXEC);
  std::shared_ptr<ProcessWorld> ranks[2];
  Two() { EXPECT_EQ(::ftruncate(memory, static_cast<off_t>(SharedWorld::bytes(2))), 0); }
  ~Two() { ::close(memory); }
  Two(const Two&) = delete;
  Two& operator=(const Two&) = delete;
  void enter(int rank, const std::vector<int>& cores) {
    std::thread([&] {
      cpu_set_t set;
      CPU_ZERO(&set);
      for (int core : cores) CPU_SET(static_cast<size_t>(core), &set);
      ASSERT_EQ(::sched_setaffinity(0, sizeof set, &set), 0);
      ranks[rank] = std::make_shared<ProcessWorld>(Segment::of(::dup(memory), SharedWorld::bytes(2)), "two", rank, 2,
                                                   std::chrono::milliseconds(1s));
    }).join();
  }
};

// Members find each other by it, without asking: two groups of one name would be each other's.
TEST(GroupId, IsOfOneGroup) {
  std::set<uint64_t> ids;
  size_t count = 0;
  for (uint64_t parent : {0, 1, 2, 3})
    for (uint64_t again = 0; again < 20; ++again)
      for (int a = 0; a < 8; ++a)
        for (int b = 0; b < 8; ++b) {
          ids.insert(group_id(parent, again, {a, b}));
          ids.insert(group_id(parent, again, {a, b, 8}));
          count += 2;
        }
  EXPECT_EQ(ids.size(), count);
}

TEST(ProcessWorld, SpinsWhereRanksAreBoundToCoresOfTheirOwn) {
  auto cores = process_cores();
  if (cores.size() < 2) GTEST_SKIP() << "there is one core only";
  Two apart;
  apart.enter(0, {cores[0]});
  apart.enter(1, {cores[1]});
  EXPECT_TRUE(apart.ranks[0]->spin());
  EXPECT_TRUE(apart.ranks[1]->spin());
  EXPECT_TRUE(apart.ranks[1]->state(1)->spins());
  Two anywhere;
  anywhere.enter(0, cores);
  anywhere.enter(1, cores);
  EXPECT_TRUE(anywhere.ranks[0]->spin());
}

TEST(ProcessWorld, DoesNotSpinWhereTheyShareOne) {
  auto cores = process_cores();
  Two together;
  together.enter(0, {cores[0]});
  together.enter(1, {cores[0]});
  EXPECT_FALSE(together.ranks[0]->spin());
  EXPECT_FALSE(together.ranks[1]->spin());
}

TEST(ProcessWorld, KnowsThatOnlyWhenAllHaveCome) {
  auto cores = process_cores();
  if (cores.size() < 2) GTEST_SKIP() << "there is one core only";
  Two late;
  late.enter(0, {cores[0]});
  std::thread([&] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(cores[0]), &set);
    ASSERT_EQ(::sched_setaffinity(0, sizeof set, &set), 0);
    EXPECT_FALSE(late.ranks[0]->spin()) << "two ranks, and one core is known";
  }).join();
  late.enter(1, {cores[1]});
  EXPECT_TRUE(late.ranks[0]->spin());
}

}  // namespace
}  // namespace tutti::comm
