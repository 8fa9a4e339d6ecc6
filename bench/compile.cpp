// What compiling gains and costs: a chain of pointwise operators against eager and against copying memory, training
// steps against eager ones, and the time to trace and prepare a step.
#include <fmt/core.h>

#include <algorithm>

#include "bench/support/copy.h"
#include "bench/support/figure.h"
#include "bench/support/measure.h"
#include "bench/support/run.h"
#include "examples/gpt.h"
#include "tutti/tutti.h"

using bench::contender, bench::measure, bench::report, bench::Want;

namespace {

Tensor chain(const Tensor& x) {
  return (((x * 2 + 1).tanh() * x - 0.5).sigmoid() * x + x).relu() * 0.25 - 1;  // twelve operators
}

void pointwise(const bench::Options& options, int threads) {
  ThreadsGuard guard(threads);
  NoGrad no_grad;
  int64_t n = options.quick ? int64_t{1} << 18 : int64_t{1} << 24;
  Tensor x = randn({n});
  auto compiled = compile(chain);
  compiled(x);
  auto times = measure({contender("compiled", [&] { compiled(x); }), contender("eager", [&] { chain(x); }),
                        bench::copy_contender(n * 4, threads)},
                       bench::time_for(threads), options);
  std::string name = fmt::format("chain12_t{}", threads);
  report({.name = name,
          .value = times[0].median * 1e3,
          .unit = "ms",
          .peer = "eager",
          .peer_value = times[1].median * 1e3,
          .extra = {{"copy", times[2].median * 1e3}}});
}

// What tracing and preparing a step take beyond the two steps that they run, at the median.
template <class Run, class F>
double compile_time(const Run& run, F& f) {
  auto seconds = [&](auto&& work) {
    double before = bench::now(bench::Time::processor);
    work();
    return bench::now(bench::Time::processor) - before;
  };
  run(f);  // memory and kernels are there
  std::vector<double> differences;
  for (int i = 0; i < 7; ++i) {
    auto step = compile(f);
    double eager = seconds([&] { run(f), run(f); });
    differences.push_back(seconds([&] { run(step), run(step); }) - eager);
  }
  std::sort(differences.begin(), differences.end());
  return differences[differences.size() / 2];
}

void gpt(const bench::Options& options, int threads) {
  ThreadsGuard guard(threads);
  Gpt net({.vocabulary = 96, .length = 64, .width = 128, .heads = 4, .layers = options.quick ? 1 : 4, .dropout = 0});
  auto loss = [&](const Tensor& x, const Tensor& y) {
    return cross_entropy(net(x).reshape({-1, 96}), y.reshape({-1}));
  };
  Tensor x = randint(96, {8, 64}), y = randint(96, {8, 64});
  auto step = compile(loss);
  auto run = [&](auto& f) {
    net.zero_grad();
    f(x, y).backward();
  };
  report({.name = fmt::format("gpt_compile_t{}", threads),
          .value = compile_time(run, loss) * 1e3,
          .unit = "ms",
          .want = {Want::value_at_most, 300}});
  run(step);
  auto times = measure({contender("compiled", [&] { run(step); }), contender("eager", [&] { run(loss); })},
                       bench::time_for(threads), options);
  report({.name = fmt::format("gpt_step_t{}", threads),
          .value = times[0].median * 1e3,
          .unit = "ms",
          .peer = "eager",
          .peer_value = times[1].median * 1e3});
}

void overhead(const bench::Options& options) {
  NoGrad no_grad;
  Tensor x = ones({4});
  auto f = [](const Tensor& t) { return ((t + 1) * 2 + t) * 3; };
  auto compiled = compile(f);
  compiled(x);
  auto times = measure({contender("compiled", [&] { compiled(x); }), contender("eager", [&] { f(x); })},
                       bench::Time::processor, options);
  report({.name = "four_small_operators",
          .value = times[0].median * 1e6,
          .unit = "us",
          .peer = "eager",
          .peer_value = times[1].median * 1e6});
}

}  // namespace

int main(int argc, char** argv) {
  bench::Options options = bench::start(argc, argv, "compiled functions against eager ones");
  std::vector<int> threads = options.threads ? std::vector<int>{options.threads} : std::vector<int>{1, 2};
  bench::print_header("compile", threads, "backend=eager", "compiled functions against eager ones");
  if (options.wants("four_small_operators")) overhead(options);
  for (int t : threads) {
    if (options.wants("chain12")) pointwise(options, t);
    if (options.wants("gpt")) gpt(options, t);
  }
  bench::report_summary();
}
