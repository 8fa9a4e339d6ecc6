// What an all_reduce costs, by ranks as threads, by ranks as processes (with memory of any kind, and with memory of the
// group), beside OpenMPI (bench/peers/comm_openmpi.cpp), Gloo (bench/peers/comm_gloo.cpp) and PyTorch with gloo
// (bench/peers/comm_torch.py) by ranks as processes; and over TCP, as between hosts, beside those and bare sockets
// (bench/peers/comm_sockets.cpp), which are the limit.
#include "tutti/comm.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "bench/parts/comm_scale.h"
#include "bench/support/figure.h"
#include "bench/support/ranks.h"
#include "bench/support/run.h"
#include "tutti/ops.h"

using namespace bench;
using namespace tutti;

namespace {

using Seconds = std::chrono::duration<double>;
using Times = std::map<int64_t, std::vector<double>>;  // bytes → seconds a call, one for each round

constexpr std::array<int64_t, 5> kSizes = {4, 4 << 10, 64 << 10, 4 << 20, 64 << 20};

// Like the peer's program: five samples of about 30 ms each, their median. Seconds for each size.
std::vector<double> measure(bool group_memory) {
  std::vector<double> seconds;
  for (int64_t bytes : kSizes) {
    Tensor x = group_memory ? group_empty({bytes / 4}) : empty({bytes / 4});
    x.zero_();
    auto many = [&](int64_t n) {
      barrier();
      auto begin = std::chrono::steady_clock::now();
      for (int64_t i = 0; i < n; ++i) all_reduce(x);
      return Seconds(std::chrono::steady_clock::now() - begin).count();
    };
    many(3);
    Tensor first = full({1}, many(3) / 3, {.dtype = DType::f64});
    broadcast(first);
    auto n = std::clamp<int64_t>(static_cast<int64_t>(0.03 / first.item<double>()), 3, 20000);
    std::vector<double> samples;
    for (int s = 0; s < 5; ++s) samples.push_back(many(n) / static_cast<double>(n));
    seconds.push_back(median(samples));
  }
  return seconds;
}

void keep(const std::vector<double>& seconds, Times& times) {
  for (size_t k = 0; k < seconds.size(); ++k) times[kSizes[k]].push_back(seconds[k]);
}

void measure_threads(int ranks, Times& times) {
  spawn_ranks(ranks, [&] {
    std::vector<double> seconds = measure(false);
    if (rank() == 0) keep(seconds, times);
  });
}

// What processes do to variables stays there: the figures come back through a file.
void measure_processes(int ranks, bool group_memory, Times& times, const char* transport = "shm") {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::tmpfile(), std::fclose);
  spawn_processes(ranks,
                  [&] {
                    std::vector<double> seconds = measure(group_memory);
                    if (rank() != 0) return;
                    std::fwrite(seconds.data(), sizeof(double), seconds.size(), file.get());
                    std::fflush(file.get());
                  },
                  {.transport = transport, .silence = std::chrono::seconds(30)});
  std::vector<double> seconds(kSizes.size());
  std::rewind(file.get());
  if (std::fread(seconds.data(), sizeof(double), seconds.size(), file.get()) == seconds.size()) keep(seconds, times);
}

// A program that prints "bytes seconds" for each size.
void measure_peer(std::string command, Times& times) {
  for (int64_t bytes : kSizes) command += fmt::format(" {}", bytes);
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen((command + " 2>/dev/null").c_str(), "r"), ::pclose);
  long bytes = 0;
  double seconds = 0;
  while (pipe && std::fscanf(pipe.get(), "%ld %lg", &bytes, &seconds) == 2) times[bytes].push_back(seconds);
}

void measure_openmpi([[maybe_unused]] int ranks, [[maybe_unused]] Times& times,
                     [[maybe_unused]] const char* ways = "self,vader") {
#ifdef TUTTI_BENCH_OPENMPI
  measure_peer(
      fmt::format("mpirun --allow-run-as-root --oversubscribe --bind-to none --mca pml ob1 --mca btl {} -n {} {}", ways,
                  ranks, TUTTI_BENCH_OPENMPI),
      times);
#endif
}

void measure_gloo([[maybe_unused]] int ranks, [[maybe_unused]] Times& times) {
#ifdef TUTTI_BENCH_GLOO
  measure_peer(fmt::format("{} {}", TUTTI_BENCH_GLOO, ranks), times);
#endif
}

void measure_torch(int ranks, Times& times) {
  measure_peer(fmt::format("OMP_NUM_THREADS=1 {} {} {}", python(), TUTTI_BENCH_COMM_TORCH, ranks), times);
}

// What memory alone would take for an all_reduce of so many bytes: every rank reads its numbers once and writes them
// once, as copying does; all that lies in between may stay in the caches. By memcpy, on as many threads as there are
// ranks; the best of some, since this is a limit.
double memory_limit(int ranks, int64_t bytes) {
  auto size = static_cast<size_t>(bytes);
  std::vector<std::vector<char>> from(static_cast<size_t>(ranks), std::vector<char>(size, 1)), to = from;
  double best = INFINITY;
  std::chrono::steady_clock::time_point before, now;  // when all had come, the last time and the one before
  auto mark = [&]() noexcept { before = std::exchange(now, std::chrono::steady_clock::now()); };
  std::barrier all(ranks, mark);
  auto copy = [&](size_t r) {
    for (int round = 0; round < (bytes < 64 << 20 ? 50 : 7); ++round) {
      all.arrive_and_wait();
      std::memcpy(to[r].data(), from[r].data(), size);
      all.arrive_and_wait();
      if (r == 0) best = std::min(best, Seconds(now - before).count());
    }
  };
  std::vector<std::thread> threads;
  for (size_t r = 0; r < from.size(); ++r) threads.emplace_back(copy, r);
  for (std::thread& t : threads) t.join();
  return best;
}

std::string size_name(int64_t bytes) {
  return bytes >= 1 << 20 ? fmt::format("{}M", bytes >> 20)
         : bytes >= 1024  ? fmt::format("{}K", bytes >> 10)
                          : fmt::format("{}B", bytes);
}

// Between hosts: over TCP, on one host's loopback device.
void report_hosts(const bench::Options& options) {
  constexpr std::array<const char*, 3> kPeers = {"openmpi_tcp", "gloo", "sockets"};
  constexpr std::array<Want, kPeers.size()> kWants = {{{Want::ratio_at_most, 1 / 1.5}, {Want::ratio_at_most, 0.5}, {}}};
  auto name = [&](int64_t bytes, int ranks, size_t peer) {
    return fmt::format("ucx_{}_{}_{}", size_name(bytes), ranks, kPeers[peer]);
  };
  for (int ranks : {2, 4}) {
    bool any = false;
    for (int64_t bytes : kSizes)
      for (size_t p = 0; p < kPeers.size(); ++p) any = any || options.wants(name(bytes, ranks, p));
    if (!any) continue;
    Times ours;
    std::array<Times, kPeers.size()> theirs;
    for (int round = 0; round < (options.quick ? 1 : 5); ++round) {
      measure_processes(ranks, false, ours, "ucx");
      measure_openmpi(ranks, theirs[0], "self,tcp");
      measure_gloo(ranks, theirs[1]);
      if (ranks == 2) measure_peer(TUTTI_BENCH_SOCKETS, theirs[2]);
    }
    for (int64_t bytes : kSizes)
      for (size_t p = 0; p < kPeers.size(); ++p) {
        if (!options.wants(name(bytes, ranks, p)) || (p == 2 && ranks != 2)) continue;
        report({.name = name(bytes, ranks, p),
                .value = median(ours[bytes]) * 1e6,
                .unit = "us",
                .peer = kPeers[p],
                .peer_value = median(theirs[p][bytes]) * 1e6,
                .want = kWants[p]});
      }
  }
}

}  // namespace

int main(int argc, char** argv) {
  bench::Options options =
      start(argc, argv, "Measures all_reduce and what failures cost, beside Open MPI, Gloo and PyTorch.");
  print_header(
      "comm", {1}, "",
      "us an all_reduce of f32 takes; _2 and _4: ranks, which are threads, processes (shm), or processes with "
      "memory of the group (shm_group), beside processes of OpenMPI's and Gloo's, in turns; ucx: processes that "
      "meet over TCP on the loopback device, beside OpenMPI's, Gloo's, and bare sockets; memory_limit: us in which "
      "as many threads copy as many bytes, limit_ratio: that over Gloo's time; failure: ms from a rank's end to the "
      "error in the last of the others");
  // Processes first: they are forked from one that has started no threads.
  constexpr std::array<const char*, 3> kWays = {"shm", "shm_group", "threads"};
  auto wants_any = [&](int ranks) {
    for (const char* way : kWays)
      for (int64_t bytes : kSizes)
        for (const char* peer : {"", "_gloo", "_pytorch"})
          if (options.wants(fmt::format("{}_{}_{}{}", way, size_name(bytes), ranks, peer))) return true;
    return false;
  };
  for (int ranks : {2, 4}) {
    if (!wants_any(ranks)) continue;
    std::array<Times, 3> ours;
    Times theirs, gloo, torch;
    for (int round = 0; round < (options.quick ? 1 : 5); ++round) {
      measure_processes(ranks, false, ours[0]);
      measure_processes(ranks, true, ours[1]);
      measure_threads(ranks, ours[2]);
      measure_openmpi(ranks, theirs);
      measure_gloo(ranks, gloo);
      measure_torch(ranks, torch);
    }
    std::map<int64_t, double> limits;
    for (int64_t bytes : kSizes)
      if (bytes >= 4 << 20) limits[bytes] = memory_limit(ranks, bytes) * 1e6;
    for (size_t way = 0; way < kWays.size(); ++way)
      for (int64_t bytes : kSizes) {
        std::string name = fmt::format("{}_{}_{}", kWays[way], size_name(bytes), ranks);
        bool large = bytes >= 64 << 10, threads = way == 2;
        double most = ranks == 4 ? (large ? 0.5 : 1.0) : threads ? (large ? 1.0 / 3 : 1.0) : large ? 0.5 : 1.5;
        if (options.wants(name))
          report({.name = name,
                  .value = median(ours[way][bytes]) * 1e6,
                  .unit = "us",
                  .peer = "openmpi",
                  .peer_value = median(theirs[bytes]) * 1e6,
                  .want = way == 0 && large ? Want{} : Want{Want::ratio_at_most, most}});
        if (options.wants(name + "_pytorch"))
          report({.name = name + "_pytorch",
                  .value = median(ours[way][bytes]) * 1e6,
                  .unit = "us",
                  .peer = "pytorch",
                  .peer_value = median(torch[bytes]) * 1e6});
        if (!options.wants(name + "_gloo")) continue;
        // Large ones go by memory's speed: where limit_ratio is above what is wanted, this machine cannot do it.
        double limit = limits.count(bytes) ? limits[bytes] : NAN, theirs_us = median(gloo[bytes]) * 1e6;
        report({.name = name + "_gloo",
                .value = median(ours[way][bytes]) * 1e6,
                .unit = "us",
                .peer = "gloo",
                .peer_value = theirs_us,
                .want = {Want::ratio_at_most, 0.1},
                .extra = {{"memory_limit", limit}, {"limit_ratio", limit / theirs_us}}});
      }
  }
  report_hosts(options);
  report_overlap(options);
  report_scale(options);
  report_failures(options);
  report_summary();
}
