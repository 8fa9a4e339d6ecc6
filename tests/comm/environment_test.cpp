// Worlds that mpirun and its like start: who is where, and where they meet.
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "comm/launch/launch.h"
#include "tests/comm/started.h"
#include "tests/comm/ways.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"
#include "tutti/testing.h"

#ifndef TUTTI_SANITIZE_THREAD  // which does not follow a process that has threads into its children

namespace tutti {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using namespace test;  // NOLINT

void all_reduce_as(int n) {
  EXPECT_EQ(world_size(), n);
  EXPECT_EQ(world().transport(), "shm");
  Tensor x = full({50'000}, rank() + 1);
  all_reduce(x);
  EXPECT_TRUE(equal(x, full({50'000}, n * (n + 1) / 2)));
}

std::string unique_job(const char* what) { return std::string("test-") + what + "-" + std::to_string(::getpid()); }
std::string meeting_file(const std::string& job) { return "/tmp/tutti-" + std::to_string(::getuid()) + "-" + job; }

TEST(Starters, OpenMpiAndSlurm) {
  for (auto [rank, size, job, local] :
       {std::array{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE", "OMPI_COMM_WORLD_LOCAL_RANK"},
        std::array{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_LOCALID"}}) {
    std::string name = unique_job("starter");
    std::vector<Variables> environments;
    for (int r = 0; r < 2; ++r)
      environments.push_back({{rank, std::to_string(r)},
                              {size, "2"},
                              {job, name},
                              {local, std::to_string(1 - r)},
                              {"TUTTI_TIMEOUT", "60"}});
    start_with(environments, [] {
      all_reduce_as(2);
      EXPECT_EQ(local_rank(), 1 - tutti::rank());  // as the starter says
      EXPECT_EQ(local_size(), 2);
    });
    EXPECT_FALSE(std::filesystem::exists(meeting_file(name)));
    EXPECT_FALSE(std::filesystem::exists(meeting_file(name) + ".ranks"));
  }
}

TEST(Starters, LocalRanksAreWhatIsSaid) {
  start_with(
      ranks_of(3, [](int r) { return Variables{{"LOCAL_RANK", std::to_string(2 - r)}, {"LOCAL_WORLD_SIZE", "3"}}; }),
      [] {
        EXPECT_EQ(local_rank(), 2 - rank());
        EXPECT_EQ(local_size(), 3);
      });
  // Two starters on one host each count their own.
  start_with(ranks_of(2, [](int) { return Variables{{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}}; }), [] {
    EXPECT_EQ(local_rank(), 0);
    EXPECT_EQ(local_size(), 1);
  });
  // Or what ranks find: where nobody says, those of a host are counted.
  start_with(ranks_of(2, [](int) { return Variables{}; }), [] {
    EXPECT_EQ(local_rank(), rank());
    EXPECT_EQ(local_size(), 2);
  });
  if (comm::has_ucx())
    start_with(ranks_of(3, [](int r) { return Variables{{"TUTTI_HOST", r == 1 ? "b" : "a"}}; }), [] {
      EXPECT_EQ(local_rank(), rank() / 2);
      EXPECT_EQ(local_size(), rank() == 1 ? 1 : 2);
    });
}

TEST(Starters, LocalRanksThatMakeNoSenseAreErrors) {
  auto says = [](const Variables& variables, const char* text) {
    start_with({variables}, [&] { EXPECT_THAT(message_of<ValueError>([] { world(); }), ContainsRegex(text)); });
  };
  Variables one{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}};
  says(one, "LOCAL_RANK is 2 and LOCAL_WORLD_SIZE is 2 in a world of 2: ranks of a host are numbered from 0");
  one[2].second = "here";
  says(one, "LOCAL_RANK is 'here', which is not a whole number");
}

TEST(Starters, SeveralHostsNeedAMeetingPlace) {
  auto says = [](const Variables& variables, const char* text) {
    start_with({variables}, [&] { EXPECT_THAT(message_of<ValueError>([] { world(); }), ContainsRegex(text)); });
  };
  says({{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
        {"PMIX_NAMESPACE", unique_job("hosts")}},
       "OMPI_COMM_WORLD_RANK says that this is rank 1 of 4, of which 2 are on this host, and nothing says where they "
       "meet: set MASTER_ADDR .the host of rank 0. and MASTER_PORT, .* TUTTI_SECRET .mpirun passes them on by -x");
  says({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_NNODES", "2"}, {"SLURM_JOB_ID", unique_job("hosts")}},
       "of which some are on this host, and nothing says where they meet: set MASTER_ADDR");
}

// A job whose processes were killed while they met; the next one has the same name.
TEST(Starters, AStaleMeetingFileIsNotJoined) {
  std::string job = unique_job("stale"), file = meeting_file(job);
  auto variables = [&](int r) {
    return Variables{{"OMPI_COMM_WORLD_RANK", std::to_string(r)},
                     {"OMPI_COMM_WORLD_SIZE", "2"},
                     {"PMIX_NAMESPACE", job},
                     {"TUTTI_TIMEOUT", "60"}};
  };
  pid_t first = start_one(variables(0), [] { world(); });
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  {
    while (!std::filesystem::exists(file) && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    FileStore store(file);
    store.wait({"0/rank/0"}, {.timeout = std::chrono::seconds(60)});
    // It has got as far as to say where the memory of the host is, and that is gone.
    store.set("0/name/0", "tutti-of-a-job-that-is-dead");
    store.set("0/all/0", "yes");
  }
  ::kill(first, SIGKILL);
  ::waitpid(first, nullptr, 0);
  ASSERT_TRUE(std::filesystem::exists(file));
  ASSERT_TRUE(std::filesystem::exists(file + ".ranks"));
  start_with({variables(0), variables(1)}, [] { all_reduce_as(2); });
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_FALSE(std::filesystem::exists(file + ".ranks"));
}

// One that failed while its processes met leaves nothing: whoever gives up last takes the list with it.
TEST(Starters, AMeetingThatFailedLeavesNothing) {
  std::string job = unique_job("failed"), file = meeting_file(job);
  std::vector<Variables> environments;
  for (int r = 0; r < 2; ++r)
    environments.push_back({{"OMPI_COMM_WORLD_RANK", std::to_string(r)},
                            {"OMPI_COMM_WORLD_SIZE", "3"},
                            {"PMIX_NAMESPACE", job},
                            {"TUTTI_TIMEOUT", "0.3"}});
  start_with(environments, [] { EXPECT_THROW(world(), TimeoutError); });
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_FALSE(std::filesystem::exists(file + ".ranks"));
}

// ---- Two processes with the same number

// Ranks that meet at a port, or in a file.
struct Twice : testing::TestWithParam<bool> {
  Variables of(int r, int n, const Variables& more = {}) const {
    std::string number = std::to_string(r), size = std::to_string(n);
    Variables all{{"OMPI_COMM_WORLD_RANK", number}, {"OMPI_COMM_WORLD_SIZE", size}, {"PMIX_NAMESPACE", job}};
    if (GetParam())
      all = {
          {"RANK", number}, {"WORLD_SIZE", size}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::to_string(port)}};
    all.emplace_back("TUTTI_TIMEOUT", "60");
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  /// Waits until all of these have come, rank 0 among them.
  void await(int ranks) const {
    std::unique_ptr<Store> store;
    if (GetParam()) {
      store = std::make_unique<TcpStore>(TcpStoreOptions{.port = static_cast<uint16_t>(port)});
    } else {
      for (int i = 0; i < 10'000 && !std::filesystem::exists(meeting_file(job)); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      store = std::make_unique<FileStore>(meeting_file(job));
    }
    for (int r = 0; r < ranks; ++r) store->get("0/rank/" + std::to_string(r), {.timeout = std::chrono::seconds(60)});
  }
  static void expect_well(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  const std::string job = unique_job("twice");
  const int port = reserved_port();
  std::string text(pid_t first) const {
    return "rank 1 is taken by process " + std::to_string(first) +
           " on host .*, and process [0-9]+ on host .* wants to be it too: ranks given twice. " +
           (GetParam() ? "RANK" : "OMPI_COMM_WORLD_RANK") + " must be another one for each process";
  }
};

// One of three was given another's number, so that the third never comes: all end at once, and say why.
TEST_P(Twice, IsToldToAll) {
  auto began = std::chrono::steady_clock::now();
  pid_t zero = start_one(of(0, 3), [&] {
    EXPECT_THAT(message_of<RankFailure>([] { world(); }), HasSubstr("rank 1 failed: rank 1 is taken by process "));
  });
  pid_t one = start_one(of(1, 3), [&] {
    EXPECT_THAT(message_of<RankFailure>([] { world(); }), ContainsRegex("rank 1 failed: " + text(::getpid())));
  });
  await(2);
  expect_well(
      start_one(of(1, 3), [&] { EXPECT_THAT(message_of<ValueError>([] { world(); }), ContainsRegex(text(one))); }));
  expect_well(zero);
  expect_well(one);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(50));
}

// Whoever comes when all are there is sent away, and they go on.
TEST_P(Twice, DoesNotDisturbAWorldThatIsComplete) {
  if (!comm::has_engine("gloo")) GTEST_SKIP() << "this build has no gloo";
  if (!GetParam()) GTEST_SKIP() << "the file is gone by then";
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  auto body = [&] {
    ::close(pipe[1]);
    barrier();
    char none;
    EXPECT_EQ(::read(pipe[0], &none, 1), 0);  // waits for the test to close it
    Tensor x = ones({10});
    all_reduce(x);
    EXPECT_EQ(x[9].item<double>(), 2);
  };
  Variables engine{{"TUTTI_TRANSPORT", "gloo"}};
  pid_t zero = start_one(of(0, 2, engine), body), one = start_one(of(1, 2, engine), body);
  await(2);
  for (int i = 0; i < 2; ++i)
    expect_well(start_one(of(1, 2, engine),
                          [&] { EXPECT_THAT(message_of<ValueError>([] { world(); }), ContainsRegex(text(one))); }));
  ::close(pipe[0]);
  ::close(pipe[1]);
  expect_well(zero);
  expect_well(one);
}

// Who was killed while the ranks met in a file, of which they do not hear, may come again.
TEST_P(Twice, IsNotWhoWasKilledAndComesAgain) {
  if (GetParam()) GTEST_SKIP() << "at a port all ranks hear of it, and end";
  // It is gone; its parent has not asked yet how it ended; another process has its number now.
  for (auto then : {"gone", "kept", "reused"}) {
    SCOPED_TRACE(then);
    std::string what = then;
    pid_t zero = start_one(of(0, 3), [] { all_reduce_as(3); }), one = start_one(of(1, 3), [] { world(); });
    await(2);
    ::kill(one, SIGKILL);
    siginfo_t ended{};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(one), &ended, WEXITED | WNOWAIT), 0);
    if (what != "kept") ::waitpid(one, nullptr, 0);
    if (what == "reused") {
      FileStore store(meeting_file(job));
      std::string note = store.get("0/rank/1"), other = std::to_string(::getpid());
      for (size_t at = 0; (at = note.find("\n" + std::to_string(one), at)) != std::string::npos;)
        note.replace(++at, std::to_string(one).size(), other);
      store.set("0/rank/1", note);
    }
    pid_t again = start_one(of(1, 3), [] { all_reduce_as(3); });
    {  // not for longer: the file goes with the last that has it open
      FileStore store(meeting_file(job));
      auto has_come = [&] {
        return store.get("0/rank/1").find("\n" + std::to_string(again) + "\n") != std::string::npos;
      };
      auto has_failed = [&] {
        siginfo_t info{};
        ::waitid(P_PID, static_cast<id_t>(again), &info, WEXITED | WNOHANG | WNOWAIT);
        return info.si_pid == again;
      };
      for (int i = 0; i < 10'000 && !has_come() && !has_failed(); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    expect_well(start_one(of(2, 3), [] { all_reduce_as(3); }));
    expect_well(zero);
    expect_well(again);
    if (what == "kept") ::waitpid(one, nullptr, 0);
  }
}

// A rank that cannot have the memory of its world, here since it finds another /dev/shm than the others: they end at
// once, though it lives on.
TEST_P(Twice, OrWithoutMemoryIsToldToAll) {
  pid_t child = ::fork();
  if (child == 0)  // in a chroot, / may be no mount
    ::_exit(::unshare(CLONE_NEWNS) == 0 && ::mount("", "/", "none", MS_SLAVE | MS_REC, nullptr) == 0 ? 0 : 3);
  int may_mount = 0;
  ::waitpid(child, &may_mount, 0);
  if (may_mount != 0) GTEST_SKIP() << "needs the right to mount";
  auto began = std::chrono::steady_clock::now();
  Variables host{{"TUTTI_HOST", "one"}};
  auto is_told = [] {
    EXPECT_THAT(message_of<RankFailure>([] { world(); }), ContainsRegex("rank 1 failed: .*/dev/shm has 4096 bytes"));
  };
  pid_t zero = start_one(of(0, 3, host), is_told), two = start_one(of(2, 3, host), is_told);
  pid_t one = start_one(of(1, 3, host), [] {
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(::mount("", "/", "none", MS_SLAVE | MS_REC, nullptr), 0);
    ASSERT_EQ(::mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=4k"), 0);
    EXPECT_THROW(world(), MemoryError);
    std::this_thread::sleep_for(std::chrono::seconds(3));
  });
  for (pid_t rank : {zero, one, two}) expect_well(rank);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30));
}
INSTANTIATE_TEST_SUITE_P(Ways, Twice, testing::Bool(),
                         [](const auto& info) { return info.param ? "AtAPort" : "InAFile"; });

TEST(Starters, TheEngineBetweenHostsIsOneThatAllHave) {
  using comm::default_transport;
  EXPECT_EQ(default_transport(1, {" ", " "}), "shm");
  EXPECT_EQ(default_transport(2, {"ucx gloo", "ucx gloo"}), "shm+ucx");
  EXPECT_EQ(default_transport(2, {" gloo", " gloo"}), "shm+gloo");
  EXPECT_EQ(default_transport(3, {"ucx gloo", " gloo", "ucx gloo"}), "shm+gloo");
  EXPECT_THAT(message_of<ValueError>([] { default_transport(2, {"ucx ", " gloo"}); }),
              HasSubstr("no engine between hosts that the builds of all of them have: build Tutti with UCX"));
}

// ---- By the real mpirun, which starts this program again

TEST(UnderMpirun, DISABLED_IsARank) {
  all_reduce_as(3);
  EXPECT_EQ(local_rank(), rank());
  EXPECT_EQ(local_size(), 3);
  Group others = world().split(rank() % 2);
  Tensor x = ones({1});
  all_reduce(x, {.group = others});
  EXPECT_EQ(x.item<double>(), others.size());
}
TEST(UnderMpirun, DISABLED_IsToldOfAFailure) {
  barrier();
  if (rank() == 1) throw IndexError("on purpose");
  EXPECT_THAT(message_of<RankFailure>([] { barrier(); }), HasSubstr("rank 1 failed"));
}

struct Mpirun {
  int code;
  std::string output;
};
Mpirun mpirun(int n, const std::string& test, const std::string& options = {}) {
  std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  std::string command = "timeout -k 5 120 mpirun --allow-run-as-root --oversubscribe --bind-to none " + options +
                        " -n " + std::to_string(n) + " '" + program +
                        "' --gtest_also_run_disabled_tests --gtest_brief=1 " + "--gtest_filter=UnderMpirun.DISABLED_" +
                        test + " 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  Mpirun result{-1, {}};
  std::array<char, 4096> part;
  while (pipe && std::fgets(part.data(), part.size(), pipe)) result.output += part.data();
  if (pipe) result.code = ::pclose(pipe);
  return result;
}
bool has_mpirun() { return std::system("mpirun --version > /dev/null 2>&1") == 0; }

TEST(Starters, Mpirun) {
  if (!has_mpirun()) GTEST_SKIP() << "there is no mpirun here";
  Mpirun well = mpirun(3, "IsARank");
  EXPECT_EQ(well.code, 0) << well.output;
  // Where MASTER_ADDR says it, they meet there.
  Mpirun told = mpirun(3, "IsARank", "-x MASTER_ADDR=127.0.0.1 -x MASTER_PORT=" + std::to_string(reserved_port()));
  EXPECT_EQ(told.code, 0) << told.output;
  Mpirun fails = mpirun(3, "IsToldOfAFailure");
  EXPECT_NE(fails.code, 0);
  EXPECT_THAT(fails.output, HasSubstr("on purpose"));
}

}  // namespace
}  // namespace tutti

#endif
