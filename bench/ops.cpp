// What single operators cost: (a) small ones, alone and as a chain with gradients; (b) those bound by memory, against a
// measured copy; (c) products (bench/matmul.cpp has them beside oneDNN). libtorch, where installed, does the same in
// the same run.
#include <fmt/core.h>
#include <omp.h>

#include <functional>

#include "base/isa.h"
#include "bench/support/copy.h"
#include "bench/support/figure.h"
#include "bench/support/measure.h"
#include "bench/support/peer.h"
#include "bench/support/products.h"
#include "bench/support/run.h"
#include "tutti/tutti.h"

using namespace bench;
using tutti::Tensor;

namespace {

void use_threads(int threads) {
  tutti::context().threads = threads;
  omp_set_num_threads(threads);
  set_libtorch_threads(threads);
}

// ---- (a) Small operators

void report_small(const Options& options, const std::string& name, Contender ours, Contender peer, double nodes,
                  Want want) {
  if (!options.wants(name)) return;
  use_threads(1);
  auto t = measure({std::move(ours), std::move(peer)}, Time::processor, options);
  double scale = 1e6 / nodes;
  report({.name = name,
          .value = t[0].median * scale,
          .unit = "us",
          .peer = "libtorch",
          .peer_value = t[1].median * scale,
          .want = want,
          .extra = {{"best", t[0].best * scale}, {"spread", t[0].spread}, {"others", t[0].others}}});
}

template <class F>
Contender chain(int64_t elements, int64_t nodes, F step) {
  Tensor x = uniform({elements}), one = tutti::ones({elements});
  x.requires_grad_();
  return contender("tutti", [=] {
    Tensor h = x;
    for (int64_t i = 0; i < nodes; ++i) h = step(h, one);
    h.backward(one);
    x.zero_grad();
  });
}

void small_operators(const Options& options) {
  constexpr int64_t elements = 4, nodes = 1000;
  Tensor x = uniform({elements}), y = uniform({elements}), leaf = uniform({elements});
  leaf.requires_grad_();
  Want operator_want{Want::value_at_most, 0.15}, chain_want{Want::value_at_most, 0.4};

  report_small(options, "add4", contender("tutti", [=] { tutti::add(x, y); }), libtorch("add", {elements}), 1,
               operator_want);
  report_small(options, "add4_recorded", contender("tutti", [=] { tutti::add(leaf, y); }),
               libtorch("add_recorded", {elements}), 1, {});
  report_small(options, "chain1000",
               chain(elements, nodes, [](const Tensor& h, const Tensor& c) { return tutti::add(h, c); }),
               libtorch("chain_add", {elements, nodes}), nodes, chain_want);
  report_small(options, "chain1000_mul",
               chain(elements, nodes, [](const Tensor& h, const Tensor& c) { return tutti::mul(h, c); }),
               libtorch("chain_mul", {elements, nodes}), nodes, chain_want);
  report_small(options, "chain1000_tanh",
               chain(elements, nodes, [](const Tensor& h, const Tensor&) { return tutti::tanh(h); }),
               libtorch("chain_tanh", {elements, nodes}), nodes, chain_want);
}

// ---- (b) Operators bound by memory

struct Streaming {
  const char* name;
  std::function<Tensor(const Tensor& x, const Tensor& y)> run;
  int streams;  // of the tensor's size, read or written
  Want of_copy = {}, of_libtorch = {};
};

void report_streaming(const Options& options, const Streaming& work, int exponent, int threads) {
  std::string name = fmt::format("{}_2p{}_t{}", work.name, exponent, threads);
  if (!options.wants(name)) return;
  use_threads(threads);
  int64_t count = int64_t{1} << exponent, columns = 1024, bytes = count * 4;
  Tensor x = uniform({count / columns, columns}), y = uniform({count / columns, columns});
  auto t = measure({contender("tutti", [&] { work.run(x, y); }), copy_contender(bytes, threads),
                    libtorch(work.name, {count / columns, columns})},
                   time_for(threads), options);
  auto rate = [&](double streams, double seconds) { return streams * static_cast<double>(bytes) / seconds * 1e-9; };
  double value = rate(work.streams, t[0].median), copy = rate(2, t[1].median), peer = rate(work.streams, t[2].median);
  Figure f{.name = name, .value = value, .unit = "GB/s"};
  if (work.of_libtorch.kind == Want::nothing) {
    f.peer = "copy", f.peer_value = copy, f.want = work.of_copy;
    f.extra = {{"libtorch", peer}, {"of_libtorch", value / peer}};
  } else {
    f.peer = "libtorch", f.peer_value = peer, f.want = work.of_libtorch;
    f.extra = {{"copy", copy}, {"of_copy", value / copy}};
  }
  f.extra.insert(f.extra.end(),
                 {{"best", rate(work.streams, t[0].best)}, {"spread", t[0].spread}, {"others", t[0].others}});
  report(f);
}

void streaming_operators(const Options& options, int threads) {
  Want most_of_copy{Want::ratio_at_least, 0.85}, three_times{Want::ratio_at_least, 3};
  const Streaming all[] = {
      {"add", [](const Tensor& x, const Tensor& y) { return tutti::add(x, y); }, 3, most_of_copy},
      {"relu", [](const Tensor& x, const Tensor&) { return tutti::relu(x); }, 2, most_of_copy},
      {"tanh", [](const Tensor& x, const Tensor&) { return tutti::tanh(x); }, 2, {}, three_times},
      {"gelu", [](const Tensor& x, const Tensor&) { return tutti::gelu(x); }, 2, {}, three_times},
      {"sum", [](const Tensor& x, const Tensor&) { return tutti::sum(x); }, 1},
      {"softmax", [](const Tensor& x, const Tensor&) { return tutti::softmax(x, -1); }, 2},
  };
  for (int exponent : {20, 24})
    for (auto& work : all) report_streaming(options, work, exponent, threads);
}

// Layer normalisation written out: six operators, which read or write the tensor ten times. Rates count that.
void layer_norm_chain(const Options& options, int threads) {
  for (int exponent : {20, 24}) {
    std::string name = fmt::format("layer_norm_chain_2p{}_t{}", exponent, threads);
    if (!options.wants(name)) continue;
    use_threads(threads);
    int64_t columns = 1024, rows = (int64_t{1} << exponent) / columns, bytes = rows * columns * 4;
    Tensor x = uniform({rows, columns}), w = uniform({columns}), b = uniform({columns});
    auto ours = [&] { (x - tutti::mean(x, -1, true)) * tutti::rsqrt(tutti::var(x, -1, true, 0) + 1e-5) * w + b; };
    auto t =
        measure({contender("tutti", ours), copy_contender(bytes, threads), libtorch("layer_norm", {rows, columns})},
                time_for(threads), options);
    auto rate = [&](double streams, double seconds) { return streams * static_cast<double>(bytes) / seconds * 1e-9; };
    double value = rate(10, t[0].median), peer = rate(10, t[2].median);
    report({.name = name,
            .value = value,
            .unit = "GB/s",
            .peer = "copy",
            .peer_value = rate(2, t[1].median),
            .extra = {{"libtorch", peer},
                      {"of_libtorch", value / peer},
                      {"us", t[0].median * 1e6},
                      {"spread", t[0].spread},
                      {"others", t[0].others}}});
  }
}

// ---- (c) Products

void report_product(const Options& options, const Product& p, int threads) {
  std::string name = p.name(threads);
  if (!options.wants(name)) return;
  use_threads(threads);
  auto t = measure({p.by_tutti(), libtorch(p.kind(), {p.m, p.k, p.n})}, time_for(threads), options);
  report({.name = name,
          .value = t[0].median * 1e6,
          .unit = "us",
          .peer = "libtorch",
          .peer_value = t[1].median * 1e6,
          .extra = {{"gflops", p.gflop() / t[0].median},
                    {"best", t[0].best * 1e6},
                    {"best_libtorch", t[1].best * 1e6},
                    {"spread", t[0].spread},
                    {"others", t[0].others}}});
}

std::string details() {
  const char* isa[] = {"base", "v3", "v4"};
  return fmt::format("isa={} libtorch={}", isa[static_cast<int>(tutti::best_isa())], libtorch_version());
}

}  // namespace

int main(int argc, char** argv) {
  Options options = start(argc, argv, "Measures single operators, beside libtorch, a copy and bare oneDNN.");
  std::vector<int> threads = options.threads ? std::vector{options.threads} : std::vector{1, 2};
  if (!options.threads && cores() < 2) threads.pop_back();
  print_header("ops", threads, details(),
               "us an operator of 4 floats, us a node of a 1000-node chain forward+backward (1 thread); GB/s of "
               "operators on 2^20 "
               "and 2^24 floats; us a matrix product m x k x n and its two gradients; processor time with 1 thread, "
               "wall time with more");
  small_operators(options);
  for (int t : threads) {
    streaming_operators(options, t);
    layer_norm_chain(options, t);
  }
  for (int t : threads) for_each_product([&](const Product& p) { report_product(options, p, t); });
  report_summary();
}
