// How long it takes until all other ranks know of a rank's end: a thread that throws, a process that is killed (on the
// same host and on another), and a host that falls silent.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "bench/parts/comm_scale.h"
#include "bench/support/figure.h"
#include "bench/support/ranks.h"
#include "tutti/tutti.h"

using namespace tutti;

namespace bench {
namespace {

constexpr int kRanks = 4, kCulprit = 2;

// When the culprit ended, and when each other rank had heard of it: seen by all processes of the host.
struct Moments {
  std::atomic<double> ended;
  std::atomic<double> heard[kRanks];
};
class SharedMoments {
 public:
  SharedMoments()
      : at_(static_cast<Moments*>(
            ::mmap(nullptr, sizeof(Moments), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    if (at_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~SharedMoments() { ::munmap(at_, sizeof(Moments)); }
  SharedMoments(const SharedMoments&) = delete;
  SharedMoments& operator=(const SharedMoments&) = delete;
  Moments* operator->() const { return at_; }

 private:
  Moments* at_;
};

using Run = std::function<void(const std::function<void()>& body)>;

// Seconds until the last of the others has heard.
double measure(const Run& run, const std::function<void()>& end) {
  SharedMoments moments;
  auto body = [&] {
    Tensor x = ones({1000});
    for (int k = 0; k < 20; ++k) all_reduce(x, {.op = Reduce::max});
    if (rank() == kCulprit) {
      moments->ended = seconds();
      end();
      return;
    }
    try {
      while (true) all_reduce(x, {.op = Reduce::max});
    } catch (const RankFailure&) {
      moments->heard[rank()] = seconds();
    }
  };
  try {
    run(body);
  } catch (const Error&) {  // what the culprit did
  }
  if (moments->ended.load() == 0) return NAN;  // this build has no such transport
  double last = 0;
  for (int r = 0; r < kRanks; ++r) {
    if (r == kCulprit) continue;
    if (moments->heard[r].load() == 0) return INFINITY;  // it was told something else, or nothing
    last = std::max(last, moments->heard[r].load());
  }
  return last - moments->ended.load();
}

// The median, and the worst of all.
void report_one(const Options& options, const std::string& name, int times_over, double most_ms, const Run& run,
                const std::function<void()>& end) {
  if (!options.wants(name) && !options.wants(name + "_worst")) return;
  std::vector<double> times;
  for (int k = 0; k < (options.quick ? 3 : times_over); ++k) times.push_back(measure(run, end));
  if (std::isnan(times[0])) return;
  double worst = *std::max_element(times.begin(), times.end());
  auto one = [&](const std::string& name, double seconds) {
    if (options.wants(name))
      report({.name = name,
              .value = seconds * 1e3,
              .unit = "ms",
              .want = {Want::value_at_most, most_ms},
              .extra = {{"runs", static_cast<double>(times.size())}}});
  };
  one(name, median(times));
  one(name + "_worst", worst);
}

// Stops this process, which another ends when all is over.
void fall_silent() {
  if (::fork() == 0) {
    ::usleep(2'500'000);
    ::kill(::getppid(), SIGKILL);
    ::_exit(0);
  }
  ::kill(::getpid(), SIGSTOP);
}

}  // namespace

void report_failures(const Options& options) {
  auto killed = [] { ::kill(::getpid(), SIGKILL); };
  report_one(
      options, "failure_threads", 51, 10, [](const auto& body) { spawn_ranks(kRanks, body); },
      [] { throw ValueError("on purpose"); });
  report_one(options, "failure_shm", 51, 100, [](const auto& body) { spawn_processes(kRanks, body); }, killed);
  for (std::string engine : {"ucx", "gloo"}) {
    SpawnOptions two{.transport = "shm+" + engine, .hosts = {0, 0, 1, 1}, .silence = std::chrono::seconds(1)};
    auto hosts = [&](const auto& body) { spawn_processes(kRanks, body, two); };
    report_one(options, "failure_hosts_" + engine, 11, 1000, hosts, killed);
    // What is configured, and a look that comes at its end.
    report_one(options, "silence_hosts_" + engine, 7, 1500, hosts, fall_silent);
  }
}

}  // namespace bench
