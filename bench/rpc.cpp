// What a call costs: an empty one, tensors there and back, many at once; between two threads and between two processes
// of a host; and a layer that lives elsewhere, forward and backward. PyTorch's RPC does the same work in two processes
// of its own (bench/peers/rpc_torch.py). And how long it takes until a worker that is killed fails who waits for it.
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <string>
#include <thread>

#include "bench/support/figure.h"
#include "bench/support/ranks.h"
#include "bench/support/run.h"
#include "tutti/tutti.h"

using namespace bench;
using namespace tutti;

namespace {

int64_t next(int64_t x) { return x + 1; }
Tensor echo(const Tensor& x) { return x; }

/// The median time of one of `count` calls of f, over rounds.
template <class F>
double time_of(int rounds, int count, F f) {
  std::vector<double> times;
  f();
  for (int r = 0; r < rounds; ++r) {
    double begin = seconds();
    for (int i = 0; i < count; ++i) f();
    times.push_back((seconds() - begin) / count);
  }
  return median(times);
}

double calls_a_second(int rounds, int count) {
  double time = time_of(rounds, 1, [&] {
    std::vector<rpc::Future<int64_t>> futures;
    futures.reserve(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) futures.push_back(rpc::async<&next>("worker1", i));
    rpc::all(std::move(futures)).wait();
  });
  return count / time;
}

/// Seconds of an empty call, of an echo of 4 MB and of 16 MB; asynchronous calls a second; seconds of a remote
/// Linear(256, 256) forward and distributed backward, batch 64; and of the same layer here, the least that can take.
constexpr size_t kFigures = 6;
std::vector<double> measure(bool quick) {
  rpc::Session session;
  if (rank() != 0) return {};
  int rounds = quick ? 3 : 15;
  std::vector<double> found;
  found.push_back(time_of(rounds, quick ? 200 : 2000, [] { rpc::sync<&next>("worker1", 1); }));
  for (int64_t megabytes : {4, 16}) {
    Tensor x = ones({megabytes * 250'000});
    found.push_back(time_of(rounds, 10, [&] { rpc::sync<&echo>("worker1", x); }));
  }
  found.push_back(calls_a_second(rounds, quick ? 500 : 5000));
  rpc::RemoteModule<nn::Linear> layer("worker1", 256, 256);
  Tensor x = randn({64, 256});
  found.push_back(time_of(rounds, quick ? 20 : 100, [&] {
    dist_autograd::Context context;
    dist_autograd::backward(context, {layer(x).sum()});
  }));
  nn::Linear here(256, 256);
  found.push_back(time_of(rounds, quick ? 20 : 100, [&] { here(x).sum().backward(); }));
  return found;
}

std::vector<double> all_figures(std::vector<double> found) {
  found.resize(kFigures, NAN);
  return found;
}

void report_way(const std::string& way, const std::vector<double>& t, const std::vector<double>& torch) {
  bool shm = way == "shm";
  auto gigabytes = [](double megabytes, double time) { return 2 * megabytes / 1e3 / time; };
  report({.name = "call_" + way,
          .value = t[0] * 1e6,
          .unit = "us",
          .peer = "pytorch",
          .peer_value = torch[0] * 1e6,
          .want = {Want::value_at_most, shm ? 10.0 : 3.0}});
  report({.name = "echo4_" + way,
          .value = t[1] * 1e3,
          .unit = "ms",
          .peer = "pytorch",
          .peer_value = torch[1] * 1e3,
          .want = {Want::ratio_at_most, 1.0}});
  report({.name = "echo16_" + way,
          .value = gigabytes(16, t[2]),
          .unit = "GB/s",
          .peer = "pytorch",
          .peer_value = gigabytes(16, torch[2]),
          .want = {Want::value_at_least, 8.0}});
  report({.name = "async_" + way,
          .value = t[3] / 1e3,
          .unit = "thousand/s",
          .peer = "pytorch",
          .peer_value = torch[3] / 1e3,
          .want = {Want::value_at_least, 200.0}});
  report({.name = "remote_linear_" + way,
          .value = t[4] * 1e3,
          .unit = "ms",
          .peer = "pytorch",
          .peer_value = torch[4] * 1e3,
          .want = {Want::value_at_most, 0.2}});
  report({.name = "linear_here_" + way, .value = t[5] * 1e3, .unit = "ms"});
}

// ---- Deaths

constexpr int kVictims = 4;  // of a world

/// In memory that the processes share: steady clocks of one host agree.
struct Deaths {
  double died;             // when the last one did
  double heard[kVictims];  // seconds until the others knew; NaN: nobody did, or by another name
};
Deaths* deaths = nullptr;

void die() {
  deaths->died = seconds();
  ::raise(SIGKILL);
}
void wait_for_ever() {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}
Tensor die_in_backward(const Tensor& x) {
  Tensor y = x * 2;
  y.register_hook([](const Tensor& g) {
    die();
    return g;
  });
  return y;
}

/// Seconds until the error of f, which is to name the worker.
double heard_of(const std::string& worker, const std::function<void()>& f) {
  try {
    f();
  } catch (const RankFailure& e) {
    double now = seconds();
    if (std::string(e.what()).find("'" + worker + "'") != std::string::npos) return now - deaths->died;
  }
  return INFINITY;
}

double death(const std::string& worker, bool in_backward) {
  if (!in_backward) {
    auto waiting = rpc::async<&wait_for_ever>(worker);
    (void)rpc::async<&die>(worker);
    return heard_of(worker, [&] { waiting.wait(); });
  }
  dist_autograd::Context context;
  Tensor y = rpc::sync<&die_in_backward>(worker, ones({8}).requires_grad_());
  return heard_of(worker, [&] { dist_autograd::backward(context, {y.sum()}); });
}

void report_deaths(bool in_backward, int worlds) {
  void* memory = ::mmap(nullptr, sizeof(Deaths), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  deaths = new (memory) Deaths{};
  std::vector<double> times;
  for (int w = 0; w < worlds; ++w) {
    std::fill_n(deaths->heard, kVictims, INFINITY);
    try {
      spawn_processes(kVictims + 1,
                      [&] {
                        rpc::Session session;
                        if (rank() != 0) wait_for_ever();
                        for (int k = 0; k < kVictims; ++k)
                          deaths->heard[k] = death("worker" + std::to_string(k + 1), in_backward);
                      },
                      {});
    } catch (const Error&) {  // of those that were killed
    }
    times.insert(times.end(), deaths->heard, deaths->heard + kVictims);
  }
  ::munmap(memory, sizeof(Deaths));
  std::sort(times.begin(), times.end());
  report({.name = in_backward ? "death_backward_shm" : "death_shm",
          .value = times.back() * 1e3,
          .unit = "ms",
          .want = {Want::value_at_most, 100.0},
          .extra = {{"median", times[times.size() / 2] * 1e3}, {"deaths", static_cast<double>(times.size())}}});
}

}  // namespace

int main(int argc, char** argv) {
  bench::Options options = start(argc, argv, "Measures calls between two workers, beside PyTorch.");
  print_header("rpc", {1}, "", "calls between two workers");
  auto torch = all_figures(numbers_of_python(TUTTI_BENCH_RPC_TORCH, options.quick ? "3" : "15"));
  // Processes first: those forked after threads had worked here would share their memory, page by page, with this one.
  for (auto [name, spawn] : {std::pair<const char*, Spawn>{"shm", spawn_processes}, {"threads", spawn_ranks}})
    if (options.wants(name))
      report_way(name, all_figures(numbers_of_ranks(spawn, 2, [&] { return measure(options.quick); })), torch);
  if (options.wants("death"))
    for (bool in_backward : {false, true}) report_deaths(in_backward, options.quick ? 1 : 15);
  report_summary();
}
