// Timing on machines that others use too: all ways of doing a piece of work take turns in short samples, so that what
// disturbs one disturbs them all, and medians are compared.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bench/support/run.h"

namespace bench {

/// Which seconds count. Work of one thread is measured in those that the cores gave to this process (all its threads),
/// of which others cannot take any; work of several threads in those of the clock on the wall, which wants a quiet
/// machine.
enum class Time { processor, wall };
inline Time time_for(int threads) { return threads == 1 ? Time::processor : Time::wall; }
double now(Time time);

/// One way of doing the work: does it `iterations` times. Without a body (a peer that is not installed) it is skipped.
/// One that works in another process says itself how many seconds it took.
struct Contender {
  std::string name;
  std::function<void(int64_t iterations)> run = {};
  std::function<double(int64_t iterations, Time time)> timed = {};
};
template <class F>
Contender contender(std::string name, F once) {
  return {std::move(name), [once = std::move(once)](int64_t iterations) mutable {
            for (; iterations > 0; --iterations) once();
          }};
}

/// Seconds an iteration takes; NaN if it was not measured.
struct Timing {
  double median = NAN;
  double best = NAN;
  double spread = NAN;  // between the quartiles, as a part of the median
  double others = NAN;  // cores that other processes kept busy meanwhile
  bool measured() const { return !std::isnan(median); }
};

/// Samples of at least 5 ms in at least 15 rounds, more while the machine is restless, fewer (but three) where they
/// would take more than a minute. Timings in the order given.
std::vector<Timing> measure(const std::vector<Contender>& contenders, Time time, const Options& options);

}  // namespace bench
