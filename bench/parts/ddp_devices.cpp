// DataParallel: a step of a CNN on one logical device (half of the cores) over the same on two, beside what the machine
// allows, and what DataParallel does itself. With a batch of 32 in all, as bench/train's CNN has, and of 128: half of a
// small batch is more than half of the work, since all weights' gradients are computed twice.
//
// The limit: two threads, one on each device's cores, that take steps of half of the batch with a model of their own
// and know nothing of each other. `joined` is the same where they wait for each other after every forward and backward,
// as replicas must: one is always a little later. What is left between that and DataParallel is its own.
//
// The overhead: "replicate + scatter + gather", of the step. `pieces` is the calls of these three alone, as forward
// makes them. The figure is more: all that two devices take longer for a module that does next to nothing than one, so
// also handing over to threads and back, and in backward the gradients' way back into the module.
#include "bench/parts/ddp_devices.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <ctime>
#include <string>
#include <vector>

#include "base/workers.h"
#include "bench/support/figure.h"
#include "bench/support/ranks.h"
#include "tutti/tutti.h"

using namespace tutti;

namespace bench {
namespace {

struct Cnn : nn::Module<Cnn> {
  nn::Conv2d a{3, 32, 3, {.padding = 1}}, b{32, 64, 3, {.padding = 1}}, c{64, 64, 3, {.padding = 1}};
  nn::BatchNorm2d norm{64};
  nn::Linear head{64, 10};
  TUTTI_FIELDS(a, b, c, norm, head)
  Tensor forward(const Tensor& x) {
    Tensor h = max_pool2d(relu(a(x)), 2);
    h = max_pool2d(relu(b(h)), 2);
    return head(relu(norm(c(h))).flatten(2).mean(2));
  }
};
// Every parameter gets a gradient from each device.
struct Idle : nn::Module<Idle> {
  Cnn net;
  TUTTI_FIELDS(net)
  Tensor forward(const Tensor& x) {
    Tensor y = x.narrow(1, 0, 1).select(2, 0).select(2, 0);
    for (const Tensor& p : net.parameters()) y = y + p.sum();
    return y;
  }
};

struct Time {
  double wall = NAN, cpu = NAN;  // milliseconds a step; cpu: of all threads, which others' load hardly changes
};

double cpu_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

template <class Run>
Time time_of(int steps, const Run& run) {
  double wall = seconds(), cpu = cpu_seconds();
  run();
  return {(seconds() - wall) / steps * 1e3, (cpu_seconds() - cpu) / steps * 1e3};
}

template <class Net>
void train(Net& net, const Tensor& x, const auto& meet) {
  net.zero_grad();
  Tensor y = net(x);
  meet();
  y.square().mean().backward();
  meet();
}
void alone() {}

const parallel::Devices& both() {
  static const parallel::Devices devices{"cpu:0", "cpu:1"};
  return devices;
}

class Halves {
 public:
  explicit Halves(const Tensor& x) {
    int64_t half = x.size(0) / 2;
    for (size_t k = 0; k < 2; ++k)
      x_[k] = view_on(x.narrow(0, static_cast<int64_t>(k) * half, half), both()[k]).clone();
    for (size_t k = 0; k < 2; ++k) nets_[k].to(both()[k]);
  }
  Time time(int steps, bool joined) {
    std::barrier<> meeting(2);
    auto run = [&](size_t k) {
      auto meet = [&] {
        if (joined) meeting.arrive_and_wait();
      };
      for (int i = 0; i < steps; ++i) train(nets_[k], x_[k], meet);
    };
    return time_of(steps, [&] {
      Jobs jobs;
      for (size_t k = 0; k < 2; ++k) {
        Context mine = context();
        mine.device = both()[k];
        mine.generator = nullptr;
        jobs.start(both()[k], [=, &run] {
          ContextGuard guard(mine);
          run(k);
        });
      }
    });
  }

 private:
  std::array<Cnn, 2> nets_;
  std::array<Tensor, 2> x_;
};

double pieces(const Cnn& net, const Tensor& x, parallel::detail::ReplicaTensors& tensors, int steps) {
  std::vector<Tensor> outputs;
  for (Device device : both()) outputs.push_back(view_on(zeros({x.size(0) / 2, 10}), device).requires_grad_(true));
  return time_of(steps,
                 [&] {
                   for (int i = 0; i < steps; ++i) {
                     auto inputs = parallel::scatter(std::tuple(x), both());
                     parallel::detail::ReplicaTensors::Use kept(&tensors);
                     auto replicas = parallel::detail::replicas_of(net, both(), kept.state);
                     Tensor y = parallel::gather(outputs, both()[0]);
                   }
                 })
      .wall;
}

void report_batch(int64_t batch, const std::string& name, int rounds, int steps) {
  Tensor x = randn({batch, 3, 32, 32});
  Cnn net;
  Idle nothing;
  parallel::DataParallel one(net, {.devices = {"cpu:0"}}), two(net, {.devices = both()});
  parallel::DataParallel idle_one(nothing, {.devices = {"cpu:0"}}), idle_two(nothing, {.devices = both()});
  Halves halves(x);
  parallel::detail::ReplicaTensors tensors;
  auto time = [&](auto& dp) {
    for (int i = 0; i < 3; ++i) train(dp, x, alone);  // OpenMP's threads of the other way spin for some time yet
    return time_of(steps, [&] {
      for (int i = 0; i < steps; ++i) train(dp, x, alone);
    });
  };
  std::vector<double> ratios, limits, joins, one_ms, two_ms, one_cpu, two_cpu, halves_cpu, overheads, shares;
  for (int i = -1; i < rounds; ++i) {
    Time a = time(one), b = time(two), c = halves.time(steps, false), d = halves.time(steps, true);
    double overhead = time(idle_two).wall - time(idle_one).wall, own = pieces(net, x, tensors, steps);
    if (i < 0) continue;  // caches are filled in the first
    ratios.push_back(a.wall / b.wall);
    limits.push_back(a.wall / c.wall);
    joins.push_back(a.wall / d.wall);
    one_ms.push_back(a.wall);
    two_ms.push_back(b.wall);
    one_cpu.push_back(a.cpu);
    two_cpu.push_back(b.cpu);
    halves_cpu.push_back(c.cpu);
    overheads.push_back(overhead / b.wall * 100);
    shares.push_back(own / b.wall * 100);
  }
  // A goal where a device is a core: on more of them half of this small batch is too little work.
  bool cores = bench::cores() == 2;
  report({.name = name,
          .value = median(ratios),
          .unit = "times",
          .want = cores ? Want{Want::value_at_least, 1.8} : Want{},
          .extra = {{"one_ms", median(one_ms)},
                    {"two_ms", median(two_ms)},
                    {"limit", median(limits)},
                    {"joined", median(joins)},
                    {"one_cpu_ms", median(one_cpu)},
                    {"two_cpu_ms", median(two_cpu)},
                    {"halves_cpu_ms", median(halves_cpu)}}});
  report({.name = name + "_overhead",
          .value = median(overheads),
          .unit = "percent",
          .want = cores ? Want{Want::value_at_most, 3} : Want{},
          .extra = {{"pieces", median(shares)}}});
}

}  // namespace

void report_devices(const Options& options, int rounds, int steps) {
  set_cpu_devices(2);
  for (int64_t batch : {32, 128}) {
    std::string name = batch == 32 ? "data_parallel_2" : "data_parallel_2_batch128";
    if (options.wants(name) || options.wants(name + "_overhead"))
      report_batch(batch, name, rounds, std::max(1, static_cast<int>(steps * 32 / batch)));
  }
  set_cpu_devices(1);
}

}  // namespace bench
