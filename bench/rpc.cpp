// What a call costs: an empty one, tensors there and back, many at once; between two threads and between two processes
// of a host; and a layer that lives elsewhere, forward and backward. PyTorch's RPC does the same work in two processes
// of its own (bench/peers/rpc_torch.py).
#include <cmath>

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

}  // namespace

int main(int argc, char** argv) {
  bench::Options options = start(argc, argv, "rpc");
  print_header("rpc", {1}, "", "calls between two workers");
  auto torch = all_figures(numbers_of_python(TUTTI_BENCH_RPC_TORCH, options.quick ? "3" : "15"));
  // Processes first: those forked after threads had worked here would share their memory, page by page, with this one.
  for (auto [name, spawn] : {std::pair<const char*, Spawn>{"shm", spawn_processes}, {"threads", spawn_ranks}})
    if (options.wants(name))
      report_way(name, all_figures(numbers_of_ranks(spawn, 2, [&] { return measure(options.quick); })), torch);
  report_summary();
}
