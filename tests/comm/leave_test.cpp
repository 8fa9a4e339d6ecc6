// Ranks that leave a collective while the last of the others comes: either all carry it out, or none does.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <thread>

#include "base/check.h"
#include "comm/transport/call_queue.h"
#include "comm/transport/shm.h"
#include "tests/comm/ways.h"
#include "tutti/comm.h"
#include "tutti/ops.h"

namespace tutti::comm {
namespace {

using namespace std::chrono_literals;
using test::one_host_ways;
using test::Shared;
using test::Way;

/// How long a rank waits before it does something that races with another's doing: each round that one of the two wins
/// moves the next towards the other, so that most rounds are close.
class Closing {
 public:
  void wait() const {
    auto until = Clock::now() + std::chrono::nanoseconds(wait_);
    while (Clock::now() < until) __builtin_ia32_pause();
  }
  void was_too_late(bool late) {
    step_ = std::clamp<int64_t>(late == late_ ? step_ * 2 : step_ / 3, 200, 500'000);
    late_ = late;
    wait_ = std::clamp<int64_t>(wait_ + (late ? -step_ : step_), 0, 5'000'000);
  }

 private:
  int64_t wait_ = 50'000, step_ = 25'000;
  bool late_ = false;
};

/// Two ranks in one process, which know each other by shared memory only: the same code as of two processes, without
/// the time that those take to start.
struct TwoRanks {
  explicit TwoRanks(int round) : name(fmt::format("tutti-leave-{}-{}", ::getpid(), round)) {
    EXPECT_EQ(::ftruncate(memory, static_cast<off_t>(SharedWorld::bytes(2))), 0);
    for (int r = 0; r < 2; ++r) {
      worlds[r] = std::make_shared<ProcessWorld>(Segment::of(::dup(memory), SharedWorld::bytes(2)), name, r, 2,
                                                 std::chrono::milliseconds(60s));
      groups[r] = worlds[r]->group({0, 1}, 0, 0);
    }
  }
  ~TwoRanks() {
    ::close(memory);
    Segment::remove_all(name);
  }
  TwoRanks(const TwoRanks&) = delete;
  TwoRanks& operator=(const TwoRanks&) = delete;

  std::string name;
  int memory = ::memfd_create("two", MFD_CLOEXEC);
  std::shared_ptr<ProcessWorld> worlds[2];
  std::shared_ptr<ShmGroup> groups[2];
};

// Of many tensors, so that it takes a rank some time from its first look to its coming.
Call all_reduce_of(float* numbers, int64_t count) {
  Call call{.kind = Kind::all_reduce};
  constexpr int64_t kEach = 1;
  for (int64_t k = 0; k < count; k += kEach) {
    call.in.push_back({numbers + k, kEach});
    call.out.push_back({numbers + k, kEach});
  }
  call.shape = {kEach};
  return call;
}

enum class Memory { of_group, own };

// Rank 0 leaves its call by `leave`, which says whether it did, when rank 1 comes to it.
template <class Leave>
void race(int rounds, int64_t count, Memory memory, const Leave& leave) {
  Closing closing;
  for (int round = 0; round < rounds; ++round) {
    TwoRanks two(round);
    std::vector<float> own[2];
    std::shared_ptr<std::byte> parts[2];
    float* numbers[2];
    for (int r = 0; r < 2; ++r) {
      if (memory == Memory::of_group) {
        parts[r] = two.groups[r]->memory(r, static_cast<size_t>(count) * sizeof(float));
        ASSERT_TRUE(parts[r]);
        numbers[r] = reinterpret_cast<float*>(parts[r].get());
      } else {
        own[r].resize(static_cast<size_t>(count));
        numbers[r] = own[r].data();
      }
      std::fill_n(numbers[r], count, 1 + r);
    }
    std::barrier start(2);
    bool failed = false;
    std::thread other([&] {
      start.arrive_and_wait();
      closing.wait();
      try {
        two.groups[1]->run(1, all_reduce_of(numbers[1], count), 20s);
      } catch (const RankFailure&) {
        failed = true;
      } catch (const Error& e) {
        ADD_FAILURE() << e.what();
      }
    });
    bool has_left = leave(*two.groups[0], all_reduce_of(numbers[0], count), [&] { start.arrive_and_wait(); });
    // Its memory is free now.
    float expected = has_left ? 7 : 3;
    if (has_left) std::fill_n(numbers[0], count, expected);
    other.join();
    EXPECT_EQ(failed, has_left) << "in round " << round;
    EXPECT_EQ(std::count(numbers[0], numbers[0] + count, expected), count) << "in round " << round;
    EXPECT_EQ(std::count(numbers[1], numbers[1] + count, has_left ? 2 : 3), count) << "in round " << round;
    if (testing::Test::HasFailure()) return;
    closing.was_too_late(has_left);
  }
}

bool leave_by_cancelling(ShmGroup& group, Call call, const std::function<void()>& begun) {
  auto work = std::make_shared<WorkState>();
  work->set_timeout(60s);
  group.start(0, std::move(call), work);
  begun();
  bool cancelled = group.cancel(*work);
  group.wait(*work, Clock::now() + 60s, false);
  if (!cancelled) {
    EXPECT_EQ(work->error(), nullptr);
  }
  return cancelled;
}

bool leave_by_timeout(ShmGroup& group, Call call, const std::function<void()>& begun) {
  begun();
  try {
    group.run(0, std::move(call), 1ms);
  } catch (const TimeoutError&) {
    return true;
  }
  return false;
}

TEST(Leaving, ACallInGroupMemoryByCancelling) { race(200, 4'000, Memory::of_group, leave_by_cancelling); }
TEST(Leaving, ACallOfOwnMemoryByCancelling) { race(200, 4'000, Memory::own, leave_by_cancelling); }
TEST(Leaving, ASmallCallByCancelling) { race(200, 2'000, Memory::own, leave_by_cancelling); }
TEST(Leaving, ACallInGroupMemoryWhenTimeIsOver) { race(100, 4'000, Memory::of_group, leave_by_timeout); }

// What a rank shows the others of its host goes where there is room for so much, and no more.
TEST(Sharing, IsOfAsMuchAsThereIsRoomFor) {
  TwoRanks two(0);
  std::vector<std::byte> most(ShmGroup::kShare, std::byte{5}), more(ShmGroup::kShare + 1);
  EXPECT_THROW(two.groups[0]->share(more), InternalError);
  uint64_t number = two.groups[0]->share(most);
  ASSERT_EQ(two.groups[1]->share({}), number);
  ASSERT_TRUE(two.groups[1]->has_shared(0, number));
  auto seen = two.groups[1]->shared(0, number);
  EXPECT_TRUE(std::equal(seen.begin(), seen.end(), most.begin(), most.end()));
}

// The same through what users call, with threads and with processes.
class LeavingOfWays : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, LeavingOfWays, testing::ValuesIn(one_host_ways()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(LeavingOfWays, AllRanksAgree) {
  struct Seen {
    std::atomic<int> came{0};
    std::atomic<bool> cancelled{false}, done{false};
    Closing closing;
  };
  Shared<Seen> seen;
  for (int round = 0; round < 20; ++round) {
    seen->came = 0;
    seen->cancelled = seen->done = false;
    int64_t count = round % 2 ? 5'000 : 3;
    try {
      GetParam().spawn(2,
                       [&] {
                         Tensor x = group_empty({count});
                         x.fill_(rank() + 1);
                         barrier();
                         ++seen->came;
                         for (auto end = Clock::now() + 60s; seen->came < 2 && Clock::now() < end;) {
                         }
                         if (rank() == 1) {
                           seen->closing.wait();
                           all_reduce(x);
                           EXPECT_EQ(x[count - 1].item<float>(), 3);
                           seen->done = true;
                           return;
                         }
                         Work work = all_reduce_async(x);
                         seen->cancelled = work.cancel();
                         if (seen->cancelled) {
                           EXPECT_THROW(work.wait(), CancelledError);
                           EXPECT_EQ(x[count - 1].item<float>(), 1);
                         } else {
                           work.wait();
                           EXPECT_EQ(x[count - 1].item<float>(), 3);
                         }
                       },
                       {.timeout = 60s});
      EXPECT_FALSE(seen->cancelled);
    } catch (const RankFailure&) {
      EXPECT_TRUE(seen->cancelled);
    }
    EXPECT_NE(seen->cancelled, seen->done) << "in round " << round;
    seen->closing.was_too_late(seen->cancelled);
  }
}

// A call that is taken out of the queue has a number among the calls of its group: the next must not get it before the
// world has failed.
TEST(Leaving, NothingRunsInPlaceOfACallThatIsTakenOut) {
  std::barrier running(2), may_end(2);
  int runs = 0;
  CallQueue queue([&](const Call& call, const TimeLimit&) {
    ++runs;
    if (call.kind != Kind::barrier) return;
    running.arrive_and_wait();
    may_end.arrive_and_wait();
  });
  std::thread first([&] { EXPECT_TRUE(queue.try_run({.kind = Kind::barrier}, 60s)); });
  running.arrive_and_wait();
  auto work = std::make_shared<WorkState>();
  queue.start({.kind = Kind::all_reduce}, work);
  bool cancelled = queue.cancel(
      *work, [] {},
      [&](const Call&) {
        may_end.arrive_and_wait();
        first.join();
        EXPECT_FALSE(queue.try_run({.kind = Kind::all_reduce}, 60s));
      });
  EXPECT_TRUE(cancelled);
  EXPECT_EQ(runs, 1);
  EXPECT_TRUE(queue.try_run({.kind = Kind::all_reduce}, 60s));
  EXPECT_EQ(runs, 2);
}

}  // namespace
}  // namespace tutti::comm
