// What DistributedDataParallel adds to a training step, and to memory: a multilayer perceptron, 3 × 1024, batch 64, by
// ranks as threads and as processes, one thread each. Ranks take the step alone (each its own parameters, all at the
// same time) and together in turns; the figure is the ratio of the two. PyTorch with gloo does the same, in a process
// of its own (bench/peers/ddp_torch.py). Then what it costs that parameters need not be used: a step of an mlp with a
// layer that never is, over the same step with a static graph, where nothing is asked. Then DataParallel
// (parts/ddp_devices.cpp). And fully_shard: its step over that of DistributedDataParallel, of an mlp of 6 layers, each
// a unit, with the memory that each needs.
#include <fmt/core.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "bench/parts/ddp_devices.h"
#include "bench/support/figure.h"
#include "bench/support/ranks.h"
#include "bench/support/run.h"
#include "tutti/tutti.h"

using namespace bench;
using namespace tutti;

namespace {

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

struct Idle : nn::Module<Idle> {
  Mlp mlp;
  nn::Linear idle{256, 256};
  TUTTI_FIELDS(mlp, idle)
  Tensor forward(const Tensor& x) { return mlp(x); }
};

// [the median of the ratios, milliseconds of a step with a static graph, and of one without]
std::vector<double> measure_unused(int rounds, int steps) {
  set_num_threads(1);
  manual_seed(1);
  Trainer fixed{parallel::DistributedDataParallel(Idle(), {.static_graph = true})};
  Trainer asking{parallel::DistributedDataParallel(Idle())};
  std::vector<double> a, b, ratios;
  for (int i = -1; i < rounds; ++i) {
    double times[2] = {round_of(fixed, steps), round_of(asking, steps)};
    if (i < 0) continue;
    a.push_back(times[0]);
    b.push_back(times[1]);
    ratios.push_back(times[1] / times[0]);
  }
  return {median(ratios), median(a), median(b)};
}

void report_unused(const bench::Options& options, int rounds, int steps) {
  for (auto [name, spawn] : {std::pair<const char*, Spawn>{"threads", spawn_ranks}, {"shm", spawn_processes}}) {
    std::string figure = fmt::format("unused_{}_2", name);
    if (!options.wants(figure)) continue;
    auto t = numbers_of_ranks(spawn, 2, [&] { return measure_unused(rounds, steps); });
    report({.name = figure,
            .value = t.at(0),
            .unit = "times",
            .want = bench::cores() >= 2 ? Want{Want::value_at_most, 1.02} : Want{},
            .extra = {{"static_ms", t[1]}, {"asking_ms", t[2]}}});
  }
}

Times measure_torch(int ranks, bool quick) {
  auto found = numbers_of_python(TUTTI_BENCH_DDP_TORCH, fmt::format("{} {}", ranks, quick ? 3 : 12));
  return found.size() == 3 ? Times{found[0], found[1], found[2]} : Times{};
}

double resident(const char* key, const char* path = "/proc/self/status") {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) return std::strtod(line.c_str() + std::strlen(key) + 1, nullptr) / 1024;
  return NAN;
}

// The most memory of this process so far, in MiB. Of what ranks share, each has its part.
double most_memory() {
  return resident("VmHWM:") - resident("RssShmem:") + resident("Pss_Shmem:", "/proc/self/smaps_rollup");
}

// The most memory of a process that trains: alone, or wrapped.
double peak(int ranks, bool wrapped) {
  auto found = numbers_of_ranks(spawn_processes, ranks, [&]() -> std::vector<double> {
    set_num_threads(1);
    Mlp net;
    auto run = [](auto trainer) {
      for (int i = 0; i < 6; ++i) trainer.step();
    };
    if (wrapped)
      run(Trainer{parallel::DistributedDataParallel(net)});
    else
      run(Trainer{net});
    return {most_memory()};
  });
  return found.empty() ? NAN : found[0];
}

struct Tower : nn::Module<Tower> {
  std::vector<nn::Linear> layers;
  TUTTI_FIELDS(layers)
  Tensor forward(Tensor x) {
    for (nn::Linear& layer : layers) x = relu(layer(x));
    return x;
  }
};

Tower whole() {
  Tower net;
  for (int i = 0; i < 6; ++i) net.layers.emplace_back(1024, 1024);
  return net;
}
Tower sharded(bool reshard) {
  Tower net;
  for (int i = 0; i < 6; ++i) {
    net.layers.emplace_back(1024, 1024);
    parallel::fully_shard(net.layers.back(), {.reshard_after_forward = reshard});
  }
  parallel::fully_shard(net, {.reshard_after_forward = reshard});
  return net;
}

// [step over that of DDP, milliseconds of that, of FSDP, and of FSDP that frees parameters between forward and
// backward]. With two ranks, DDP keeps four numbers a parameter, FSDP two and, until backward, the parameters: three.
std::vector<double> measure_sharded(int rounds, int steps) {
  set_num_threads(1);
  manual_seed(1);
  Trainer ddp{parallel::DistributedDataParallel(whole())};
  Trainer kept{sharded(false)}, freed{sharded(true)};
  std::vector<double> a, b, c, ratios;
  for (int i = -1; i < rounds; ++i) {
    double times[3] = {round_of(ddp, steps), round_of(kept, steps), round_of(freed, steps)};
    if (i < 0) continue;
    a.push_back(times[0]);
    b.push_back(times[1]);
    c.push_back(times[2]);
    ratios.push_back(times[1] / times[0]);
  }
  return {median(ratios), median(a), median(b), median(c)};
}

// The most memory of a rank, in MiB.
double peak_sharded(int ranks, int how) {
  auto found = numbers_of_ranks(spawn_processes, ranks, [&]() -> std::vector<double> {
    set_num_threads(1);
    auto run = [](auto trainer) {
      for (int i = 0; i < 6; ++i) trainer.step();
    };
    if (how == 0)
      run(Trainer{parallel::DistributedDataParallel(whole())});
    else
      run(Trainer{sharded(how == 2)});
    return {most_memory()};
  });
  return found.empty() ? NAN : found[0];
}

void report_sharded(const bench::Options& options, int rounds, int steps) {
  if (options.wants("fsdp_memory_2")) {
    double ddp = peak_sharded(2, 0), kept = peak_sharded(2, 1), freed = peak_sharded(2, 2);
    report({.name = "fsdp_memory_2",
            .value = kept / ddp,
            .unit = "times",
            .want = {Want::value_at_most, 1.0},
            .extra = {{"ddp_mib", ddp}, {"fsdp_mib", kept}, {"fsdp_freed_mib", freed}}});
  }
  for (auto [name, spawn] : {std::pair<const char*, Spawn>{"threads", spawn_ranks}, {"shm", spawn_processes}}) {
    std::string figure = fmt::format("fsdp_{}_2", name);
    if (!options.wants(figure)) continue;
    auto t = numbers_of_ranks(spawn, 2, [&] { return measure_sharded(rounds, steps); });
    report({.name = figure,
            .value = t.at(0),
            .unit = "times",
            .want = bench::cores() >= 2 ? Want{Want::value_at_most, 1.15} : Want{},
            .extra = {{"ddp_ms", t[1]}, {"fsdp_ms", t[2]}, {"fsdp_freed_ms", t[3]}}});
  }
}

}  // namespace

int main(int argc, char** argv) {
  bench::Options options = start(argc, argv, "Measures what data parallelism adds to a training step, beside PyTorch.");
  print_header("ddp", {1}, "", "a step of an mlp, wrapped over alone");
  int rounds = options.quick ? 3 : 15, steps = options.quick ? 2 : 8;
  // First: a forked rank begins with the most that its parent ever had.
  if (options.wants("memory_2")) {
    double alone = peak(2, false), wrapped = peak(2, true),
           bucket = double(parallel::DdpOptions{}.bucket_bytes) / (1 << 20);
    report(
        {.name = "memory_2",
         .value = wrapped - alone,
         .unit = "MiB",
         .want = {Want::value_at_most, bucket},
         .extra = {{"alone", alone}, {"wrapped", wrapped}, {"gradients", 3 * (1024 * 1024 + 1024) * 4.0 / (1 << 20)}}});
  }
  report_sharded(options, rounds, steps);
  report_unused(options, rounds, steps);
  for (int ranks : {2, 4, 8}) {
    if (ranks > 4 && bench::cores() < ranks) continue;
    Times torch;
    for (auto [name, spawn] : {std::pair<const char*, Spawn>{"threads", spawn_ranks}, {"shm", spawn_processes}}) {
      std::string figure = fmt::format("mlp_{}_{}", name, ranks);
      if (!options.wants(figure)) continue;
      if (std::isnan(torch.ratio)) torch = measure_torch(ranks, options.quick);
      auto t = numbers_of_ranks(spawn, ranks, [&]() -> std::vector<double> {
        Times own = measure_ranks(rounds, steps, parallel::DdpOptions{}.bucket_bytes);
        return {own.local, own.ddp, own.ratio};
      });
      bool cores = bench::cores() >= ranks;
      report({.name = figure,
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
  report_devices(options, rounds, steps);
  report_summary();
}
