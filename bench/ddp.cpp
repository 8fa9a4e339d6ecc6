// What DistributedDataParallel adds to a training step, and to memory: a multilayer perceptron, 3 × 1024, batch 64, by
// ranks as threads and as processes, one thread each. Ranks take the step alone (each its own parameters, all at the
// same time) and together in turns; the figure is the ratio of the two. PyTorch with gloo does the same, in a process
// of its own (bench/peers/ddp_torch.py).
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

#include "bench/support/figure.h"
#include "bench/support/run.h"
#include "tutti/tutti.h"

using namespace tutti;

namespace {

using bench::Figure;
using bench::Want;

struct Mlp : nn::Module<Mlp> {
  nn::Linear a{1024, 1024}, b{1024, 1024}, c{1024, 1024};
  TUTTI_FIELDS(a, b, c)
  Tensor forward(const Tensor& x) { return relu(c(relu(b(relu(a(x)))))); }
};

template <class Net>
struct Trainer {
  Net net;
  optim::Adam adam;
  Tensor x = randn({64, 1024}), y = randn({64, 1024});
  explicit Trainer(Net n) : net(std::move(n)), adam(net.parameters(), {.lr = 1e-4}) {}
  void step() {
    adam.zero_grad();
    mse_loss(net(x), y).backward();
    adam.step();
  }
};

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

struct Times {
  double local = NAN, ddp = NAN, ratio = NAN;  // milliseconds a step, and the median of the ratios of rounds
};

template <class T>
double round_of(T& trainer, int steps) {
  barrier();
  double begin = seconds();
  for (int i = 0; i < steps; ++i) trainer.step();
  barrier();
  return (seconds() - begin) / steps * 1e3;
}

// On every rank; what rank 0 saw counts.
Times measure_ranks(int rounds, int steps, int64_t bucket_bytes) {
  set_num_threads(1);
  manual_seed(1);
  Trainer local{Mlp()};
  Trainer together{parallel::DistributedDataParallel(Mlp(), {.bucket_bytes = bucket_bytes})};
  std::vector<double> alone, ddp, ratios;
  for (int i = -1; i < rounds; ++i) {
    double a = round_of(local, steps), b = round_of(together, steps);
    if (i < 0) continue;  // caches, code and buckets are made in the first
    alone.push_back(a);
    ddp.push_back(b);
    ratios.push_back(b / a);
  }
  return {median(alone), median(ddp), median(ratios)};
}

using Spawn = void (*)(int, const std::function<void()>&, const SpawnOptions&);

// Ranks may be processes: what they found comes back by a file.
std::vector<double> run_ranks(Spawn spawn, int ranks, const std::function<std::vector<double>()>& body) {
  char path[] = "/tmp/tutti-bench-XXXXXX";
  int file = ::mkstemp(path);
  if (file < 0) return {};
  spawn(ranks,
        [&] {
          std::vector<double> found = body();
          if (rank() != 0) return;
          std::ofstream out(path);
          for (double d : found) out << d << ' ';
        },
        {});
  std::ifstream in(path);
  std::vector<double> found;
  for (double d; in >> d;) found.push_back(d);
  std::remove(path);
  return found;
}

Times measure_torch(int ranks, bool quick) {
#ifdef TUTTI_BENCH_DDP_TORCH
  std::string command = fmt::format(
      "OPENBLAS_CORETYPE=SkylakeX OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 /usr/bin/python3 {} {} {} 2>/dev/null",
      TUTTI_BENCH_DDP_TORCH, ranks, quick ? 3 : 12);
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  Times t;
  if (pipe && std::fscanf(pipe.get(), "%lf %lf %lf", &t.local, &t.ddp, &t.ratio) == 3) return t;
#else
  (void)ranks, (void)quick;
#endif
  return {};
}

double resident(const char* key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) return std::strtod(line.c_str() + std::strlen(key) + 1, nullptr) / 1024;
  return NAN;
}

// The most memory of a process that trains, in MiB: alone, or wrapped. What ranks share counts once.
double peak(int ranks, bool wrapped) {
  auto found = run_ranks(spawn_processes, ranks, [&]() -> std::vector<double> {
    set_num_threads(1);
    Mlp net;
    auto run = [](auto trainer) {
      for (int i = 0; i < 6; ++i) trainer.step();
    };
    if (wrapped)
      run(Trainer{parallel::DistributedDataParallel(net)});
    else
      run(Trainer{net});
    return {resident("VmHWM:") - resident("RssShmem:") * (ranks - 1) / ranks};
  });
  return found.empty() ? NAN : found[0];
}

}  // namespace

int main(int argc, char** argv) {
  bench::Options options = bench::start(argc, argv, "ddp");
  bench::print_header("ddp", {1}, "", "a step of an mlp, wrapped over alone");
  int rounds = options.quick ? 3 : 15, steps = options.quick ? 2 : 8;
  // First: a forked rank begins with the most that its parent ever had.
  if (options.wants("memory_2")) {
    double alone = peak(2, false), wrapped = peak(2, true),
           bucket = double(parallel::DdpOptions{}.bucket_bytes) / (1 << 20);
    bench::report(
        {.name = "memory_2",
         .value = wrapped - alone,
         .unit = "MiB",
         .want = {Want::value_at_most, bucket},
         .extra = {{"alone", alone}, {"wrapped", wrapped}, {"gradients", 3 * (1024 * 1024 + 1024) * 4.0 / (1 << 20)}}});
  }
  for (int ranks : {2, 4, 8}) {
    if (ranks > 4 && bench::cores() < ranks) continue;
    Times torch;
    for (auto [name, spawn] : {std::pair<const char*, Spawn>{"threads", spawn_ranks}, {"shm", spawn_processes}}) {
      std::string figure = fmt::format("mlp_{}_{}", name, ranks);
      if (!options.wants(figure)) continue;
      if (std::isnan(torch.ratio)) torch = measure_torch(ranks, options.quick);
      auto t = run_ranks(spawn, ranks, [&]() -> std::vector<double> {
        Times own = measure_ranks(rounds, steps, parallel::DdpOptions{}.bucket_bytes);
        return {own.local, own.ddp, own.ratio};
      });
      bool cores = bench::cores() >= ranks;
      bench::report({.name = figure,
                     .value = t.at(2),
                     .unit = "times",
                     .peer = "pytorch",
                     .peer_value = torch.ratio,
                     .want = cores ? Want{Want::value_at_most, ranks == 2 ? 1.10 : 1.15} : Want{},
                     .extra = {{"local_ms", t[0]},
                               {"ddp_ms", t[1]},
                               {"pytorch_local_ms", torch.local},
                               {"pytorch_ddp_ms", torch.ddp}}});
    }
  }
  bench::report_summary();
}
