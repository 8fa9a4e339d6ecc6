// Many ranks in one process, and what an asynchronous all_reduce costs those who compute beside it.
#include "bench/parts/comm_scale.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "bench/support/figure.h"
#include "bench/support/ranks.h"
#include "tutti/tutti.h"

using namespace tutti;

namespace bench {
namespace {

using Seconds = std::chrono::duration<double>;

double now() { return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double resident_kib() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("VmRSS:")) return std::strtod(line.c_str() + 6, nullptr);
  return NAN;
}

void report_ranks(const Options& options, int ranks, bool wanted) {
  std::string name = fmt::format("ranks_{}", ranks);
  if (!options.wants(name)) return;
  double before = resident_kib(), after = NAN, begin = now(), started = NAN;
  std::vector<double> calls;
  spawn_ranks(ranks, [&] {
    set_num_threads(1);
    barrier();
    if (rank() == 0) started = now() - begin;
    Tensor x = ones({1});
    for (int k = 0; k < (options.quick ? 5 : 21); ++k) {
      barrier();
      double first = now();
      all_reduce(x);
      if (rank() == 0) calls.push_back(now() - first);
    }
    if (rank() == 0) after = resident_kib();
    barrier();
  });
  auto bound = [&](double most) { return wanted ? Want{Want::value_at_most, most} : Want{}; };
  report({.name = name + "_start", .value = started, .unit = "s", .want = bound(2)});
  report({.name = name + "_4B", .value = median(calls) * 1e3, .unit = "ms", .want = bound(15)});
  report({.name = name + "_memory", .value = (after - before) / ranks, .unit = "KiB", .want = bound(300)});
}

// Bytes a second that one thread of each rank copies when all do, reads and writes counted.
double copy_rate(int64_t bytes) {
  Tensor a = ones({bytes / 4}), b = ones({bytes / 4});
  std::vector<double> times;
  for (int k = 0; k < 7; ++k) {
    barrier();
    double begin = now();
    for (int i = 0; i < 4; ++i) b.copy_(a);
    barrier();
    times.push_back((now() - begin) / 4);
  }
  return 2.0 * static_cast<double>(bytes) * world_size() / median(times);
}

}  // namespace

void report_scale(const Options& options) {
  report_ranks(options, 1024, true);
  report_ranks(options, 4096, false);
}

// Two ranks multiply matrices, alone and while 16 MB are being reduced. How much longer that takes is compared with the
// share of the memory's traffic that the reduction needs: each rank's numbers are read by one and written for both.
void report_overlap(const Options& options) {
  if (!options.wants("overlap_16M")) return;
  constexpr int64_t kBytes = 16 << 20;
  double alone = NAN, beside = NAN, rate = NAN, waited = NAN;
  spawn_ranks(2, [&] {
    set_num_threads(1);
    NoGrad guard;
    double copied = copy_rate(kBytes);
    Tensor a = randn({512, 512}), b = randn({512, 512}), x = ones({kBytes / 4});
    auto compute = [&] {
      for (int k = 0; k < 12; ++k) mm(a, b);
    };
    std::vector<double> without, with, rest;
    for (int k = 0; k < (options.quick ? 5 : 31); ++k) {
      barrier();
      double begin = now();
      compute();
      without.push_back(now() - begin);
      barrier();
      begin = now();
      Work work = all_reduce_async(x);
      compute();
      with.push_back(now() - begin);
      begin = now();
      work.wait();
      rest.push_back(now() - begin);
      x.fill_(1);
    }
    if (rank() != 0) return;
    alone = median(without);
    beside = median(with);
    waited = median(rest);
    rate = copied;
  });
  double traffic = 2.0 * 2 * kBytes;  // of all ranks: each number read once, and written once to each
  report({.name = "overlap_16M",
          .value = (beside / alone - 1) * 100,
          .unit = "percent",
          .want = {Want::value_at_most, traffic / rate / beside * 100},
          .extra = {{"alone_ms", alone * 1e3}, {"beside_ms", beside * 1e3}, {"left_ms", waited * 1e3}}});
}

}  // namespace bench
