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
