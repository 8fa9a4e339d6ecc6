#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cstring>
#include <ctime>
#include <fstream>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "base/cores.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/small_vector.h"
#include "base/workers.h"
#include "tests/support/expect_ops.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using namespace test;  // NOLINT

TEST(Shape, HoldsFewAndMany) {
  Shape s{1, 2, 3};
  for (int i = 4; i <= 20; ++i) s.push_back(i);
  EXPECT_EQ(s.size(), 20u);
  EXPECT_EQ(s[19], 20);
  Shape copy = s, moved = std::move(s);
  EXPECT_TRUE(copy == moved);
  moved.erase(0);
  moved.insert(1, 7);
  EXPECT_EQ(moved[0], 2);
  EXPECT_EQ(moved[1], 7);
  EXPECT_EQ(to_string(Shape{2, 3}), "[2, 3]");
  EXPECT_EQ(Shape({2, 3, 4}).product(), 24);
  copy = Shape{5};
  EXPECT_EQ(copy.size(), 1u);
}

TEST(SmallVector, GrowsMovesAndDestroys) {
  auto counted = std::make_shared<int>(0);
  {
    SmallVector<std::shared_ptr<int>, 2> v;
    for (int i = 0; i < 10; ++i) v.push_back(counted);
    EXPECT_EQ(counted.use_count(), 11);
    auto w = std::move(v);
    EXPECT_EQ(counted.use_count(), 11);
    w.resize(1);
    EXPECT_EQ(counted.use_count(), 2);
  }
  EXPECT_EQ(counted.use_count(), 1);
}

TEST(Memory, KnowsItsPeak) {
  constexpr size_t kBytes = size_t{3} << 20;
  auto before = memory::statistics().bytes_in_use;
  memory::reset_peak();
  EXPECT_EQ(memory::statistics().bytes_peak, before);
  void *a = memory::allocate(kBytes), *b = memory::allocate(kBytes);
  memory::release(a, kBytes);
  a = memory::allocate(kBytes);
  memory::release(a, kBytes);
  memory::release(b, kBytes);
  EXPECT_GE(memory::statistics().bytes_peak, before + static_cast<int64_t>(2 * kBytes));
  EXPECT_LE(memory::statistics().bytes_peak, before + static_cast<int64_t>(2 * kBytes * 9 / 8));
  memory::reset_peak();
  EXPECT_EQ(memory::statistics().bytes_peak, before);
}

TEST(Memory, ReturnsWhatItGave) {
  auto before = memory::statistics().bytes_in_use;
  for (size_t bytes : {size_t{1}, size_t{64}, size_t{2048}, size_t{2049}, size_t{40000}, size_t{3} << 20}) {
    void* p = memory::allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0u);
    std::memset(p, 1, bytes);
    EXPECT_GE(memory::statistics().bytes_in_use, before + static_cast<int64_t>(bytes));
    memory::release(p, bytes);
  }
  EXPECT_EQ(memory::statistics().bytes_in_use, before);
  memory::empty_cache();
  EXPECT_EQ(memory::statistics().bytes_cached, 0);
}

// More threads than have counters of their own, twice, each of which frees what another has taken.
TEST(Memory, CountsWhatManyThreadsTakeAndReturn) {
  constexpr size_t kThreads = 70, kBlocks = 200;
  auto size_of_block = [](size_t i) { return 1 + i * 37 % 3000; };
  auto before = memory::statistics().bytes_in_use;
  for (int round = 0; round < 2; ++round) {
    std::array<std::array<void*, kBlocks>, kThreads> blocks;
    std::barrier all(kThreads);
    std::atomic<int64_t> taken{0};
    std::vector<std::thread> threads;
    for (size_t t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        for (size_t i = 0; i < kBlocks; ++i) blocks[t][i] = memory::allocate(size_of_block(i));
        all.arrive_and_wait();
        if (t == 0) taken = memory::statistics().bytes_in_use - before;
        all.arrive_and_wait();
        for (size_t i = 0; i < kBlocks; ++i) memory::release(blocks[(t + 1) % kThreads][i], size_of_block(i));
      });
    for (auto& t : threads) t.join();
    int64_t asked = 0;
    for (size_t i = 0; i < kBlocks; ++i) asked += static_cast<int64_t>(kThreads * size_of_block(i));
    EXPECT_GE(taken, asked);
    EXPECT_LT(taken, asked * 5 / 4);
    EXPECT_EQ(memory::statistics().bytes_in_use, before);
  }
}

#if !defined(TUTTI_SANITIZE_ADDRESS) && !defined(TUTTI_SANITIZE_THREAD)  // which have no cache
// Its core may have them in its cache yet; the other's has not.
TEST(Memory, AThreadGetsItsOwnLargeBlocksBack) {
  constexpr size_t kBytes = 300000;
  memory::empty_cache();
  std::array<void*, 3> mine, its;
  for (void*& p : mine) p = memory::allocate(kBytes);
  for (void*& p : its) p = memory::allocate(kBytes);
  for (void* p : mine) memory::release(p, kBytes);
  std::thread([&] {
    for (void* p : its) memory::release(p, kBytes);
  }).join();
  std::array<void*, 5> got;
  for (void*& p : got) p = memory::allocate(kBytes);
  EXPECT_THAT(got, testing::ElementsAre(mine[2], mine[1], mine[0], its[2], its[1]));  // then the newest
  for (void* p : got) memory::release(p, kBytes);
  memory::empty_cache();
}

// Pages of the process that are in memory, in bytes.
int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(Memory, AnEmptiedCacheIsTheSystemsAgain) {
  constexpr int64_t kMega = 1 << 20, kAll = 200 * kMega;
  // What was mapped and freed once makes malloc take blocks of this size from its heap from then on.
  for (int i = 0; i < 2; ++i) {
    ones({24 * kMega}, u8);
    memory::empty_cache();
  }
  memory::reset_peak();
  auto before = memory::statistics();
  int64_t resident = resident_bytes();
  TensorList tensors;
  for (int i = 0; i < 200; ++i) tensors.push_back(ones({kMega}, u8));
  Tensor last = std::move(tensors.back());
  tensors.pop_back();
  EXPECT_GE(resident_bytes(), resident + kAll * 9 / 10);
  auto with_all = memory::statistics();
  EXPECT_GE(with_all.bytes_in_use, before.bytes_in_use + kAll);
  EXPECT_GE(with_all.bytes_peak, before.bytes_in_use + kAll);
  tensors.clear();
  auto freed = memory::statistics();
  EXPECT_LE(freed.bytes_in_use, before.bytes_in_use + 2 * kMega);
  EXPECT_GE(freed.bytes_cached, kAll - kMega);
  EXPECT_EQ(freed.bytes_peak, with_all.bytes_peak);
  EXPECT_GE(resident_bytes(), resident + kAll * 9 / 10) << "nothing is kept";
  memory::empty_cache();
  memory::reset_peak();
  EXPECT_EQ(memory::statistics().bytes_cached, 0);
  EXPECT_EQ(memory::statistics().bytes_peak, memory::statistics().bytes_in_use);
  EXPECT_LE(resident_bytes(), resident + kAll / 4) << "what was kept has not gone back";
  EXPECT_EQ(last[0].item<int>(), 1);
}
#endif

TEST(Memory, TensorsMadeInOneThreadAndFreedInAnother) {
  auto before = memory::statistics().bytes_in_use;
  for (int round = 0; round < 20; ++round) {
    TensorList made;
    std::thread maker([&] {
      for (int i = 0; i < 200; ++i) made.push_back(ones({i + 1}));
    });
    maker.join();
    std::thread user([&] { made.clear(); });
    user.join();
  }
  EXPECT_EQ(memory::statistics().bytes_in_use, before);
}

TEST(ParallelFor, VisitsEachPieceOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadsGuard guard(threads);
    std::vector<std::atomic<int>> seen(1001);
    parallel_for(1001, 10, [&](int64_t begin, int64_t end) {
      EXPECT_EQ(begin % 10, 0);
      EXPECT_EQ(thread_share() == 1 || threads == 1, true);  // no threads within threads
      for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
    });
    for (auto& s : seen) EXPECT_EQ(s, 1);
  }
}

TEST(ParallelFor, ErrorsReachTheCaller) {
  ThreadsGuard guard(4);
  EXPECT_THROW(parallel_for(100, 1,
                            [](int64_t begin, int64_t) {
                              if (begin == 57) throw ValueError("57");
                            }),
               ValueError);
}

TEST(ParallelFor, TheLowestPieceDecidesTheError) {
  ThreadsGuard guard(4);
  for (int round = 0; round < 50; ++round)
    EXPECT_EQ(message_of<ValueError>([] {
                parallel_for(100, 1, [](int64_t begin, int64_t) {
                  if (begin % 10 == 7) throw ValueError(std::to_string(begin));
                });
              }),
              "7");
}

TEST(Workers, RunAndAreReused) {
  std::atomic<int> done{0};
  std::set<std::thread::id> threads;
  std::mutex mutex;
  for (int i = 0; i < 20; ++i) {
    Jobs jobs;
    for (int k = 0; k < 2; ++k)
      jobs.start(Device(), [&] {
        ++done;
        std::lock_guard lock(mutex);
        threads.insert(std::this_thread::get_id());
      });
    EXPECT_FALSE(jobs.empty());
    jobs.wait();
    EXPECT_EQ(done, 2 * i + 2);
    EXPECT_TRUE(jobs.empty());
  }
  EXPECT_LE(threads.size(), 2u);
}

// Whatever comes between the start and the wait.
TEST(Workers, AnErrorWaitsForWhatWasStarted) {
  std::atomic<bool> done = false;
  auto run = [&] {
    Jobs jobs;
    jobs.start(Device(), [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      done = true;
    });
    throw ValueError("between");
  };
  EXPECT_THROW(run(), ValueError);
  EXPECT_TRUE(done);
}

bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  return text.find(") S ") != std::string::npos;
}

// The processor time, in microseconds, that a thread takes to wait for work that ends when the thread sleeps.
double time_to_fall_asleep() {
  pid_t waiter = ::gettid();
  auto now = [] {
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
  };
  bool done = false;
  Jobs jobs;
  jobs.start("cpu:1", [&] {
    while (!sleeps(waiter)) std::this_thread::yield();
    done = true;
  });
  double begin = now();
  jobs.wait(true);
  EXPECT_TRUE(done);
  return now() - begin;
}

// How often that was long, of so many tries, or until it was so often enough.
int times_awake(int tries, int enough) {
  int count = 0;
  for (int i = 0; i < tries && count < enough; ++i) count += time_to_fall_asleep() > 60;
  return count;
}

// Note [Waits between devices]: it looks for 100 us, unless somebody takes its core meanwhile.
TEST(Workers, AreWaitedForAwakeAndThenAsleep) {
  if (core_count() < 2) GTEST_SKIP() << "a core for each is needed";
  set_cpu_devices(2);
  EXPECT_EQ(times_awake(1000, 20), 20);
  set_cpu_devices(core_count() + 1);  // fewer cores than devices: it sleeps at once
  EXPECT_LT(times_awake(100, 50), 50);
  set_cpu_devices(1);
}

TEST(Workers, LookOnlyWhereThereAreCores) {
  int cores = core_count();
  auto& workers = Workers::instance();
  set_cpu_devices(cores);
  EXPECT_TRUE(workers.may_spin());
  set_cpu_devices(cores + 1);
  EXPECT_FALSE(workers.may_spin());
  set_cpu_devices(1);
  {
    CoreSharers others(cores - 1);  // a core for each
    EXPECT_TRUE(workers.may_spin());
    CoreSharers another(1);
    EXPECT_FALSE(workers.may_spin());
    another.set(0);
    EXPECT_TRUE(workers.may_spin());
    set_cpu_devices(2);
    EXPECT_FALSE(workers.may_spin());
    set_cpu_devices(1);
  }
  std::atomic<bool> stop = false;
  Jobs jobs;
  for (int k = 0; k < cores; ++k) {
    EXPECT_TRUE(workers.may_spin());
    jobs.start(Device(), [&] { stop.wait(false); });
  }
  EXPECT_FALSE(workers.may_spin());
  stop = true;
  stop.notify_all();
}

#ifndef TUTTI_SANITIZE_THREAD
// Its parent's threads are not there, idle as they were.
TEST(Workers, AForkedProcessHasItsOwn) {
  Jobs().start(Device(), [] {});
  pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    bool done = false;
    Jobs().start(Device(), [&] { done = true; });
    ::_exit(done ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}
#endif

TEST(Context, IsPerThreadAndCopied) {
  NoGrad guard;
  bool other = false;
  std::thread([&] { other = grad_enabled(); }).join();
  EXPECT_TRUE(other);
  Context mine = context();
  std::thread([&] {
    ContextGuard inner(mine);
    other = grad_enabled();
  }).join();
  EXPECT_FALSE(other);
}

TEST(Error, CarriesOperationAndRank) {
  Context as_rank = context();
  as_rank.rank = 3;
  ContextGuard guard(as_rank);
  try {
    (void)(ones({2}) + ones({3}));
    FAIL();
  } catch (const ShapeError& e) {
    EXPECT_EQ(e.operation(), "add");
    EXPECT_EQ(e.rank(), 3);
    EXPECT_THAT(e.what(), HasSubstr("[rank 3] add: shapes do not broadcast: f32[2] on cpu:0, f32[3] on cpu:0"));
  }
}

TEST(Device, NamesAndErrors) {
  EXPECT_EQ(Device("cpu:3").str(), "cpu:3");
  EXPECT_EQ(Device("meta").str(), "meta");
  EXPECT_EQ(Device("cuda").index, 0);
  for (const char* bad : {"gpu", "cpu:", "cpu:x", "cpu:-1", "cpu:99999", ""})
    EXPECT_THAT(message_of<DeviceError>([&] { Device d(bad); }), HasSubstr("is not a device")) << bad;
}

TEST(Device, LogicalDevicesShareTheCores) {
  int all = cores_of(Device());
  Devices four(4);
  EXPECT_EQ(cpu_devices(), 4);
  int total = 0;
  for (int i = 0; i < 4; ++i) total += cores_of(Device(DeviceKind::cpu, i));
  EXPECT_GE(total, all);
  EXPECT_LE(total, std::max(all, 4));
  EXPECT_THROW(set_cpu_devices(0), ValueError);
}

}  // namespace
}  // namespace tutti
