#include "base/ticks.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace tutti {
namespace {

using Clock = std::chrono::steady_clock;

int64_t clock_now() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

#if defined(__x86_64__)
// Counters of older processors change their pace, or stop while the core sleeps.
bool counter_runs_evenly() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & 1u << 8);
}
const bool counts = counter_runs_evenly();
int64_t counter() { return static_cast<int64_t>(__rdtsc()); }
#else
constexpr bool counts = false;
int64_t counter() { return 0; }
#endif

struct Moment {
  int64_t ticks, nanoseconds;
};
// Both clocks read as one: the closest of a few attempts, since a thread may lose its core in between.
Moment moment_now() {
  Moment best{};
  int64_t least = INT64_MAX;
  for (int i = 0; i < 5; ++i) {
    int64_t before = counter(), now = clock_now(), after = counter();
    if (after - before >= least) continue;
    least = after - before;
    best = {before + (after - before) / 2, now};
  }
  return best;
}
// The pace is known from this and the moment of asking: the better, the longer ago it was.
const Moment beginning = moment_now();

}  // namespace

int64_t ticks_now() { return counts ? counter() : clock_now(); }

TickScale::TickScale() {
  if (!counts) {
    ticks_ = nanoseconds_ = clock_now();
    pace_ = 1;
    return;
  }
  Moment now = moment_now();
  constexpr int64_t enough = 5'000'000;  // a program that has just begun
  while (now.nanoseconds - beginning.nanoseconds < enough) now = moment_now();
  ticks_ = now.ticks;
  nanoseconds_ = now.nanoseconds;
  pace_ = static_cast<double>(nanoseconds_ - beginning.nanoseconds) / static_cast<double>(ticks_ - beginning.ticks);
}

Clock::time_point TickScale::time(int64_t ticks) const {
  return Clock::time_point(
      std::chrono::nanoseconds(nanoseconds_ - static_cast<int64_t>(static_cast<double>(ticks_ - ticks) * pace_)));
}

}  // namespace tutti
