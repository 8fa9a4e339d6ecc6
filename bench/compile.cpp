// What compiling gains and costs: chains of pointwise operators against eager and against copying memory, training
// steps against eager ones, and the time to trace and prepare a step: with code to generate, and with code on disk.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "bench/support/copy.h"
#include "bench/support/figure.h"
#include "bench/support/measure.h"
#include "bench/support/run.h"
#include "examples/gpt.h"
#include "graph/backends/native/library.h"
#include "tutti/tutti.h"

using bench::contender, bench::measure, bench::report, bench::Want;

namespace {

// Twelve operators each: some that a processor does as fast as memory comes, and some of everyday networks.
Tensor arithmetic(const Tensor& x) { return (maximum((x * 2 + 1) * x - 0.5, x).abs() * x + x).relu().neg() * 0.25 - 1; }
Tensor curves(const Tensor& x) { return (((x * 2 + 1).tanh() * x - 0.5).sigmoid() * x + x).relu().neg() * 0.25 - 1; }

template <class F>
void chain(const char* what, F f, Want want, const bench::Options& options, int threads) {
  ThreadsGuard guard(threads);
  NoGrad no_grad;
  int64_t n = options.quick ? int64_t{1} << 18 : int64_t{1} << 24;
  Tensor x = randn({n});
  auto compiled = compile(f);
  compiled(x);
  auto times = measure({contender("compiled", [&] { compiled(x); }), contender("eager", [&] { f(x); }),
                        bench::copy_contender(n * 4, threads)},
                       bench::time_for(threads), options);
  report({.name = fmt::format("{}_t{}", what, threads),
          .value = times[0].median * 1e3,
          .unit = "ms",
          .peer = "copy",
          .peer_value = times[2].median * 1e3,
          .want = want,
          .extra = {{"eager", times[1].median * 1e3}}});
}

// What tracing and preparing a step take beyond the two steps that they run, at the median.
template <class Run, class F>
double compile_time(const Run& run, F& f, bool cold) {
  auto seconds = [&](auto&& work) {
    double before = bench::now(bench::Time::processor);
    work();
    return bench::now(bench::Time::processor) - before;
  };
  auto directory = std::filesystem::temp_directory_path() / fmt::format("tutti-bench-{}", getpid());
  setenv("TUTTI_CACHE", directory.c_str(), 1);  // NOLINT: before other threads look
  auto warm = compile(f);
  run(warm), run(warm);  // memory, kernels and LLVM are there
  std::vector<double> differences;
  for (int i = 0; i < 7; ++i) {
    graph::native::forget_entries();
    if (cold) std::filesystem::remove_all(directory);
    auto step = compile(f);
    double eager = seconds([&] { run(f), run(f); });
    differences.push_back(seconds([&] { run(step), run(step); }) - eager);
  }
  std::filesystem::remove_all(directory);
  std::sort(differences.begin(), differences.end());
  return differences[differences.size() / 2];
}

template <class Run, class F>
void training(const char* what, const Run& run, F& f, const bench::Options& options, int threads) {
  ThreadsGuard guard(threads);
  if (threads == 1) {
    report({.name = fmt::format("{}_compile_cold", what),
            .value = compile_time(run, f, true) * 1e3,
            .unit = "ms",
            .want = {Want::value_at_most, 300}});
    report({.name = fmt::format("{}_compile_cached", what),
            .value = compile_time(run, f, false) * 1e3,
            .unit = "ms",
            .want = {Want::value_at_most, 20}});
  }
  auto step = compile(f);
  run(step);
  auto times = measure({contender("compiled", [&] { run(step); }), contender("eager", [&] { run(f); })},
                       bench::time_for(threads), options);
  report({.name = fmt::format("{}_step_t{}", what, threads),
          .value = times[0].median * 1e3,
          .unit = "ms",
          .peer = "eager",
          .peer_value = times[1].median * 1e3,
          .want = {Want::ratio_at_most, 0.85}});
}

void gpt(const bench::Options& options, int threads) {
  Gpt net({.vocabulary = 96, .length = 64, .width = 128, .heads = 4, .layers = options.quick ? 1 : 4, .dropout = 0});
  auto loss = [&](const Tensor& x, const Tensor& y) {
    return cross_entropy(net(x).reshape({-1, 96}), y.reshape({-1}));
  };
  Tensor x = randint(96, {8, 64}), y = randint(96, {8, 64});
  auto run = [&](auto& f) {
    net.zero_grad();
    f(x, y).backward();
  };
  training("gpt", run, loss, options, threads);
}

// The same network as one finds it in papers and tutorials: norms, attention and GELU written out in operators.
struct PlainBlock : nn::Module<PlainBlock> {
  nn::Linear qkv{128, 384}, out{128, 128}, up{128, 512}, down{512, 128};
  nn::Parameter scale1 = ones({128}), shift1 = zeros({128}), scale2 = ones({128}), shift2 = zeros({128});
  TUTTI_FIELDS(qkv, out, up, down, scale1, shift1, scale2, shift2)

  static Tensor norm(const Tensor& x, const Tensor& scale, const Tensor& shift) {
    Tensor d = x - x.mean({-1}, true);
    return d * rsqrt((d * d).mean({-1}, true) + 1e-5) * scale + shift;
  }
  static Tensor gelu(const Tensor& x) { return 0.5 * x * (1 + tanh(0.7978845608 * (x + 0.044715 * x * x * x))); }
  Tensor attend(const Tensor& x, const Tensor& hidden) {
    auto part = [&](int64_t k) {
      return x.narrow(2, 128 * k, 128).reshape({x.size(0), x.size(1), 4, 32}).transpose(1, 2);
    };
    Tensor s = matmul(part(0), part(1).transpose(2, 3)) * 0.1767766953 + hidden;
    Tensor e = exp(s - s.detach().amax({-1}, true));
    return matmul(e / e.sum({-1}, true), part(2)).transpose(1, 2).reshape({x.size(0), x.size(1), 128});
  }
  Tensor forward(const Tensor& x, const Tensor& hidden) {
    Tensor h = x + out(attend(qkv(norm(x, scale1, shift1)), hidden));
    return h + down(gelu(up(norm(h, scale2, shift2))));
  }
};

void plain_gpt(const bench::Options& options, int threads) {
  nn::Embedding tokens(96, 128), places(64, 128);
  std::vector<PlainBlock> blocks(options.quick ? 1 : 4);
  nn::Linear head(128, 96);
  Tensor hidden = triu(full({64, 64}, -1e9), 1), x = randint(96, {8, 64}), y = randint(96, {8, 64});
  auto loss = [&](const Tensor& text, const Tensor& next) {
    Tensor h = tokens(text) + places(arange(64));
    for (PlainBlock& block : blocks) h = block(h, hidden);
    return cross_entropy(head(h).reshape({-1, 96}), next.reshape({-1}));
  };
  auto run = [&](auto& f) {
    tokens.zero_grad(), places.zero_grad(), head.zero_grad();
    for (PlainBlock& block : blocks) block.zero_grad();
    f(x, y).backward();
  };
  training("plain_gpt", run, loss, options, threads);
}

// A small residual network on images of 32 × 32.
struct ConvBlock : nn::Module<ConvBlock> {
  nn::Conv2d first{32, 32, 3, {.padding = 1}}, second{32, 32, 3, {.padding = 1}};
  nn::BatchNorm2d norm1{32}, norm2{32};
  TUTTI_FIELDS(first, second, norm1, norm2)
  Tensor forward(const Tensor& x) { return relu(x + norm2(second(relu(norm1(first(x)))))); }
};
struct ConvNet : nn::Module<ConvNet> {
  nn::Conv2d stem{3, 32, 3, {.padding = 1}};
  ConvBlock block1, block2;
  nn::Linear head{32, 10};
  TUTTI_FIELDS(stem, block1, block2, head)
  Tensor forward(const Tensor& x) { return head(block2(max_pool2d(block1(relu(stem(x))), 2)).mean({2, 3})); }
};

void cnn(const bench::Options& options, int threads) {
  ConvNet net;
  Tensor x = randn({options.quick ? 2 : 16, 3, 32, 32}), y = randint(10, {x.size(0)});
  auto loss = [&](const Tensor& images, const Tensor& labels) { return cross_entropy(net(images), labels); };
  auto run = [&](auto& f) {
    net.zero_grad();
    f(x, y).backward();
  };
  training("cnn", run, loss, options, threads);
}

// What a new batch size costs beyond a step: the graphs of two others with its own numbers.
void batch_sizes(const bench::Options& options) {
  ThreadsGuard guard(1);
  Gpt net({.vocabulary = 96, .length = 64, .width = 128, .heads = 4, .layers = options.quick ? 1 : 4, .dropout = 0});
  auto loss = [&](const Tensor& x, const Tensor& y) {
    return cross_entropy(net(x).reshape({-1, 96}), y.reshape({-1}));
  };
  auto step = compile(loss, {.dynamic_batch = true});
  auto seconds = [&](int64_t batch) {
    Tensor x = randint(96, {batch, 64}), y = randint(96, {batch, 64});
    double before = bench::now(bench::Time::processor);
    net.zero_grad();
    step(x, y).backward();
    return bench::now(bench::Time::processor) - before;
  };
  seconds(2), seconds(24);
  std::vector<double> differences;
  for (int64_t batch = 3; batch < 10; ++batch) {
    double first = seconds(batch);
    seconds(batch);
    differences.push_back(first - seconds(batch));
  }
  std::sort(differences.begin(), differences.end());
  report({.name = "gpt_another_batch_size",
          .value = differences[differences.size() / 2] * 1e3,
          .unit = "ms",
          .want = {Want::value_at_most, 20}});
}

// A polynomial of bf16 numbers in a cache: what rounding as eager does costs.
void inexact(const bench::Options& options) {
  ThreadsGuard guard(1);
  NoGrad no_grad;
  auto f = [](const Tensor& x) { return ((((x * 3 + 1) * x - 2) * x + 0.5) * x - 0.25) * x + 1; };
  for (DType dtype : {bf16, f32}) {
    Tensor x = rand({1 << 16}).to(dtype);
    auto exact = compile(f), quick = compile(f, {.exact = false});
    exact(x), quick(x);
    auto times = measure({contender("inexact", [&] { quick(x); }), contender("exact", [&] { exact(x); })},
                         bench::Time::processor, options);
    report({.name = fmt::format("inexact_{}", dtype == bf16 ? "bf16" : "f32"),
            .value = times[0].median * 1e6,
            .unit = "us",
            .peer = "exact",
            .peer_value = times[1].median * 1e6});
  }
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
  bench::Options options = bench::start(argc, argv, "Measures compiled functions against eager ones.");
  std::vector<int> threads = options.threads ? std::vector<int>{options.threads} : std::vector<int>{1, 2};
  bool native = graph::native::unavailable().empty();
  bench::print_header("compile", threads, native ? "backend=native" : "backend=eager",
                      "compiled functions against eager ones");
  if (options.wants("four_small_operators")) overhead(options);
  if (options.wants("gpt_another_batch_size")) batch_sizes(options);
  if (options.wants("inexact")) inexact(options);
  for (int t : threads) {
    // 85 % of the speed of copying.
    if (options.wants("chain12_arithmetic"))
      chain("chain12_arithmetic", arithmetic, {Want::ratio_at_most, 1 / 0.85}, options, t);
    if (options.wants("chain12_curves")) chain("chain12_curves", curves, {}, options, t);
    if (options.wants("gpt")) gpt(options, t);
    if (options.wants("plain_gpt")) plain_gpt(options, t);
    if (options.wants("cnn")) cnn(options, t);
  }
  bench::report_summary();
}
