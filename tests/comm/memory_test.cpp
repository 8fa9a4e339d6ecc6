// Memory of a group: what is in it, and that collectives give the same bits as with any other.
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <numeric>
#include <optional>
#include <thread>

#include "tests/comm/ways.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"
#include "tutti/context.h"
#include "tutti/ops.h"
#include "tutti/random.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using namespace test;  // NOLINT

struct GroupMemory : testing::TestWithParam<Way> {
  void run(int n, const std::function<void()>& body) { GetParam().spawn(n, body, {}); }
};
INSTANTIATE_TEST_SUITE_P(Every, GroupMemory, every_way(), [](const auto& p) { return std::string(p.param.name); });

Tensor in_group(const Tensor& x, const Group& group = {}) {
  Tensor y = group_empty(x.sizes(), {.dtype = x.dtype(), .group = group});
  y.copy_(x);
  return y;
}

TEST_P(GroupMemory, ReductionsHaveTheBitsOfAnyOtherMemory) {
  for (int n : {1, 2, 3, 4, 8})
    run(n, [&] {
      for (int64_t count : {1, 1000, 5001, 300'001})
        for (DType dtype : {DType::f32, DType::bf16, DType::f64, DType::i32, DType::c64})
          for (Reduce op : {Reduce::sum, Reduce::average, Reduce::product}) {
            if (op == Reduce::average && dtype == DType::i32) continue;
            Tensor plain = (randn({count}) * 3).to(dtype), mine = in_group(plain);
            all_reduce(plain, {.op = op});
            all_reduce(mine, {.op = op});
            ASSERT_TRUE(equal(plain, mine)) << count << " of " << to_string(dtype) << " on " << n;
          }
    });
}

TEST_P(GroupMemory, EveryCollectiveTakesIt) {
  run(3, [] {
    int n = world_size();
    int64_t rows = 40'000;
    for (int round = 0; round < 3; ++round) {
      Tensor x = randn({n * rows}), mine = in_group(x), part = x.narrow(0, 0, rows);
      Tensor a = empty({rows}), b = empty({rows});
      reduce_scatter(a, x);
      reduce_scatter(b, mine);
      EXPECT_TRUE(equal(a, b));
      Tensor c = empty({n * rows}), d = empty({n * rows});
      all_gather(c, part);
      all_gather(d, mine.narrow(0, 0, rows));
      EXPECT_TRUE(equal(c, d));
      // A rank's part may be where its result will be.
      Tensor place = in_group(zeros({n * rows}));
      place.narrow(0, rank() * rows, rows).copy_(part);
      all_gather(place, place.narrow(0, rank() * rows, rows));
      EXPECT_TRUE(equal(c, place));
      all_to_all(c, x);
      all_to_all(d, mine);
      EXPECT_TRUE(equal(c, d));
      broadcast(x, {.root = round});
      broadcast(mine, {.root = round});
      EXPECT_TRUE(equal(x, mine));
      x.add_(rank());
      mine.add_(rank());
      reduce(x, {.op = Reduce::max, .root = round});
      reduce(mine, {.op = Reduce::max, .root = round});
      EXPECT_TRUE(equal(x, mine));
      Tensor e = in_group(zeros({rows}));
      Tensor scattered = empty({rows});
      TensorList inputs;
      if (rank() == round)
        inputs = {mine.narrow(0, 0, rows), mine.narrow(0, rows, rows), mine.narrow(0, 2 * rows, rows)};
      scatter(e, inputs, {.root = round});
      scatter(scattered, inputs, {.root = round});
      EXPECT_TRUE(equal(e, scattered));
    }
  });
}

TEST_P(GroupMemory, MayBeMixedWithOther) {
  run(3, [] {
    Tensor plain = randn({50'000}), mine = in_group(plain), expected = plain.clone();
    all_reduce(expected);
    all_reduce(rank() == 1 ? plain : mine);  // not all name the region
    EXPECT_TRUE(equal(rank() == 1 ? plain : mine, expected));
    Tensor other = in_group(randn({60'000})), copy = other.clone();
    Tensor a = other.narrow(0, rank() * 1000, 50'000), b = copy.narrow(0, rank() * 1000, 50'000).clone();
    all_reduce(a);  // at another place in it on each rank
    all_reduce(b);
    EXPECT_TRUE(equal(a, b));
    EXPECT_TRUE(equal(other.narrow(0, 0, rank() * 1000), copy.narrow(0, 0, rank() * 1000)));
    Tensor first = group_empty({30'000}), second = group_empty({30'000});
    first.fill_(1);
    second.fill_(10);
    all_reduce(rank() == 0 ? first : second);  // different regions
    EXPECT_EQ((rank() == 0 ? first : second)[29'999].item<double>(), 21);
    TensorList list = {other.narrow(0, 0, 100), other.narrow(0, 100, 40'000)}, same;
    for (const Tensor& t : list) same.push_back(t.clone());
    Work work = all_reduce_async(list);
    all_reduce(same);
    work.wait();
    for (size_t k = 0; k < list.size(); ++k) EXPECT_TRUE(equal(list[k], same[k]));
  });
}

TEST_P(GroupMemory, OutlivesItsGroup) {
  run(2, [] {
    Tensor kept;
    for (int i = 0; i < 200; ++i) {
      Group pair = world().subgroup({1, 0});
      Tensor x = group_empty({5'000}, {.dtype = DType::f64, .group = pair});
      x.fill_(rank() + i);
      all_reduce(x, {.group = pair});
      all_reduce(x, {});  // another group's memory is like any other to this one
      kept = x;
    }
    EXPECT_EQ(kept[4'999].item<double>(), 2 * (1 + 2 * 199));
    kept.resize_storage(0);
    kept.resize_storage(40'000);
    kept.fill_(1);
    all_reduce(kept);
    EXPECT_EQ(kept[0].item<double>(), 2);
    EXPECT_EQ(group_empty({0, 3}).numel(), 0);
  });
}

TEST_P(GroupMemory, IsOneSizeForAll) {
  EXPECT_THAT(message_of<MismatchError>([&] { run(2, [] { group_empty({10 + rank()}); }); }), HasSubstr("asks for 4"));
}

#ifndef TUTTI_SANITIZE_THREAD
TEST(GroupMemoryOfProcesses, IsTakenBackAndLeavesNothing) {
  spawn_checked_processes(2,
                          [] {
                            auto mapped = [] {
                              std::ifstream maps("/proc/self/maps");
                              int count = 0;
                              for (std::string line; std::getline(maps, line);)
                                count += line.find("/dev/shm/tutti-") != std::string::npos;
                              return count;
                            };
                            barrier();
                            int before = mapped();
                            for (int i = 0; i < 20; ++i) {
                              Tensor x = group_empty({100'000});
                              x.fill_(1);
                              all_reduce(x);
                              EXPECT_EQ(mapped(), before + 1);
                            }
                            EXPECT_EQ(mapped(), before);
                            // Shared memory has not so much, and neither has any other.
                            EXPECT_THROW(group_empty({int64_t{1} << 50}, {.dtype = DType::u8}), MemoryError);
                            EXPECT_EQ(mapped(), before);
                          },
                          {});
}

// Pages of shared memory that exist, of all that this process has mapped: each takes from what the host has of it.
int64_t pages_taken() {
  std::ifstream maps("/proc/self/maps");
  int64_t pages = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/dev/shm/tutti-") == std::string::npos) continue;
    uintptr_t begin = 0, end = 0;
    EXPECT_EQ(std::sscanf(line.c_str(), "%lx-%lx", &begin, &end), 2);
    std::vector<unsigned char> is_there((end - begin) / 4096);
    EXPECT_EQ(::mincore(reinterpret_cast<void*>(begin), end - begin, is_there.data()), 0);
    for (unsigned char page : is_there) pages += page & 1;
  }
  return pages;
}

TEST(MemoryThatProcessesShare, IsTakenWhenItIsUsed) {
  spawn_checked_processes(8,
                          [] {
                            std::vector<int> all(8);
                            std::iota(all.begin(), all.end(), 0);
                            barrier();
                            int64_t before = pages_taken();
                            std::vector<Group> groups;
                            for (int k = 0; k < 10; ++k) groups.push_back(world().subgroup(all));
                            barrier();
                            EXPECT_EQ(pages_taken(), before + 10) << "of groups that were never called, one each";
                            barrier();
                            barrier({.group = groups[0]});
                            EXPECT_LT(pages_taken(), before + 10 + 20);
                            barrier();
                            // From each to the next: a page of each of the eight rings, and one or two of their heads.
                            before = pages_taken();
                            barrier();
                            Tensor x = ones({1}), y = empty({1});
                            Work sent = send_async(x, (rank() + 1) % 8, {.group = groups[1]});
                            recv(y, (rank() + 7) % 8, {.group = groups[1]});
                            sent.wait();
                            barrier();
                            EXPECT_LE(pages_taken(), before + 8 + 3);
                            EXPECT_GT(pages_taken(), before);
                          },
                          {});
}

// Its ring is written more than once around, the first time on pages that it takes as it goes.
TEST(MemoryThatProcessesShare, OfMessagesGrowsAsTheyAreWritten) {
  spawn_checked_processes(2,
                          [] {
                            Group group = world().subgroup({0, 1});
                            barrier();
                            int64_t before = pages_taken();
                            barrier();
                            for (int64_t k = 0; k < 100; ++k) {
                              Tensor x = full({700}, static_cast<double>(k));
                              if (rank() == 0) {
                                send(x, 1, {.group = group});
                              } else {
                                x.fill_(-1);
                                recv(x, 0, {.group = group});
                                ASSERT_TRUE(equal(x, full({700}, static_cast<double>(k))));
                              }
                              barrier();
                              if (k == 0) {
                                EXPECT_LE(pages_taken(), before + 2 + 1);
                              }
                            }
                            EXPECT_GE(pages_taken(), before + 16);
                            EXPECT_LE(pages_taken(), before + 16 + 1);
                          },
                          {});
}

// A rank that cannot have a group's memory: the others have it, and must not wait there until their time is over.
TEST(MemoryThatProcessesShare, ThatOneRankCannotHaveEndsTheWaitOfAll) {
#ifdef TUTTI_SANITIZE_ADDRESS
  GTEST_SKIP() << "without descriptors UBSan cannot look at memory, and takes an exception for no object";
#endif
  auto start = std::chrono::steady_clock::now();
  spawn_checked_processes(3,
                          [] {
                            barrier();
                            if (rank() != 1) {
                              Group group = world().subgroup({0, 1, 2});
                              EXPECT_THAT(message_of<RankFailure>([&] { barrier({.group = group}); }),
                                          AllOf(HasSubstr("rank 1 failed"), HasSubstr("shared memory")));
                              return;
                            }
                            rlimit files{};
                            ::getrlimit(RLIMIT_NOFILE, &files);
                            rlimit none = files;
                            none.rlim_cur = 3;
                            ::setrlimit(RLIMIT_NOFILE, &none);
                            EXPECT_THROW(world().subgroup({0, 1, 2}), MemoryError);
                            ::setrlimit(RLIMIT_NOFILE, &files);
                            std::this_thread::sleep_for(3s);  // it lives on: that it ended would be another failure
                          },
                          {.timeout = 60s});
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
}

// What a process says that runs where shared memory has so many bytes; none: this system does not let it.
std::optional<std::string> said_with(const char* size, const std::function<void()>& body) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  std::fflush(nullptr);
  pid_t child = ::fork();
  if (child == 0) {
    context().world = nullptr;
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("", "/", "none", MS_SLAVE | MS_REC, nullptr) != 0 ||
        ::mount("tmpfs", "/dev/shm", "tmpfs", 0, size) != 0)
      ::_exit(3);
    std::string text = "it ended well";
    try {
      spawn_processes(2, body, {.timeout = 20s});
    } catch (const std::exception& e) {
      text = e.what();
    }
    auto written = ::write(ends[1], text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string said;
  char part[256];
  for (ssize_t n = 0; (n = ::read(ends[0], part, sizeof part)) > 0;) said.append(part, static_cast<size_t>(n));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 3) return {};
  EXPECT_EQ(status, 0);
  return said;
}

// Where shared memory is short a rank that touches more would be killed by a signal.
TEST(SharedMemoryThatIsShort, IsAnErrorThatSaysWhatToDo) {
  auto small = [] {
    Tensor x = ones({1'000});
    all_reduce(x);
    if (x[-1].item<float>() != 2) throw std::runtime_error("a wrong sum");
  };
  auto enough = said_with("size=256k", small);
  if (!enough) GTEST_SKIP() << "needs the right to mount";
  EXPECT_EQ(*enough, "it ended well");
  auto is_clear = AllOf(HasSubstr("shared memory: "), HasSubstr("/dev/shm has "), HasSubstr("--shm-size"));
  // Groups as such; what large calls and messages need besides.
  EXPECT_THAT(*said_with("size=8k", small), is_clear);
  EXPECT_THAT(*said_with("size=256k", [] { all_reduce(ones({1'000'000})); }), is_clear);
  EXPECT_THAT(
      *said_with("size=256k", [] { all_gather(TensorList{ones({100'000}), ones({100'000})}, ones({100'000})); }),
      is_clear);
  auto messages = [] {
    Tensor x = ones({1'000'000}), y = ones({1'000'000});
    Work work = send_async(x, 1 - rank());
    recv(y, 1 - rank());
    work.wait();
  };
  EXPECT_THAT(*said_with("size=96k", messages), is_clear);
  EXPECT_EQ(*said_with("size=1m", messages), "it ended well");
  // Memory of a group is not needed: where there is none, its tensors have other memory.
  EXPECT_EQ(*said_with("size=256k",
                       [] {
                         Tensor x = group_empty({200'000});
                         x.fill_(1);
                       }),
            "it ended well");
}
#endif

}  // namespace
}  // namespace tutti
