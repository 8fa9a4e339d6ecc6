#include "bench/support/measure.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>

namespace bench {

double now(Time time) {
  timespec t{};
  clock_gettime(time == Time::wall ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

namespace {

double time_of(const Contender& c, int64_t iterations, Time time) {
  if (c.timed) return c.timed(iterations, time);
  double start = now(time);
  c.run(iterations);
  return now(time) - start;
}

// How often the work must be done for a sample of this length. Finding out is the warm-up, too.
int64_t calibrate(const Contender& c, double sample, Time time) {
  c.run(1);
  for (int64_t n = 1;; n *= 2) {
    double best = std::min(time_of(c, n, time), time_of(c, n, time));
    if (best >= sample) return n;
    if (best >= sample / 8) return static_cast<int64_t>(std::ceil(static_cast<double>(n) * sample / best));
  }
}

// Seconds for which other processes have kept cores busy since the machine started; NaN where nobody counts them.
double seconds_of_others() {
  std::ifstream file("/proc/stat");
  std::string label;
  double user, nice, system, idle, wait, interrupts, soft_interrupts, stolen;
  if (!(file >> label >> user >> nice >> system >> idle >> wait >> interrupts >> soft_interrupts >> stolen)) return NAN;
  rusage mine{};
  getrusage(RUSAGE_SELF, &mine);
  auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
  return (user + nice + system + interrupts + soft_interrupts + stolen) / static_cast<double>(sysconf(_SC_CLK_TCK)) -
         seconds(mine.ru_utime) - seconds(mine.ru_stime);
}

double quantile(const std::vector<double>& sorted, double q) {
  double at = q * static_cast<double>(sorted.size() - 1);
  auto low = static_cast<size_t>(at);
  size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
}

Timing summarize(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  double median = quantile(samples, 0.5);
  return {.median = median,
          .best = samples.front(),
          .spread = (quantile(samples, 0.75) - quantile(samples, 0.25)) / median};
}

}  // namespace

std::vector<Timing> measure(const std::vector<Contender>& contenders, Time time, const Options& options) {
  const double sample = options.quick ? 0.001 : 0.005;
  const int rounds = options.quick ? 3 : 15, most = options.quick ? 3 : 45;
  constexpr double kRestless = 0.1, kPatience = 10, kLimit = 60;  // a spread; seconds

  size_t count = contenders.size();
  std::vector<int64_t> iterations(count, 0);
  for (size_t k = 0; k < count; ++k)
    if (contenders[k].run) iterations[k] = calibrate(contenders[k], sample, time);

  std::vector<std::vector<double>> samples(count);
  std::vector<Timing> timings(count);
  double start = now(Time::wall), others = seconds_of_others();
  for (int round = 0; round < most; ++round) {
    for (size_t i = 0; i < count; ++i) {
      size_t k = (i + static_cast<size_t>(round)) % count;  // everybody comes after everybody else in turn
      if (!contenders[k].run) continue;
      contenders[k].run(iterations[k] / 16 + 1);  // caches and threads are its own again
      samples[k].push_back(time_of(contenders[k], iterations[k], time) / static_cast<double>(iterations[k]));
    }
    bool too_long = round >= 2 && now(Time::wall) - start > kLimit;
    if (round + 1 < rounds && !too_long) continue;
    double spread = 0;
    for (size_t k = 0; k < count; ++k) {
      timings[k] = summarize(samples[k]);
      if (timings[k].measured()) spread = std::max(spread, timings[k].spread);
    }
    if (too_long || spread <= kRestless || now(Time::wall) - start > kPatience) break;
  }
  others = std::max(0.0, (seconds_of_others() - others) / (now(Time::wall) - start));
  for (auto& t : timings)
    if (t.measured()) t.others = others;
  return timings;
}

}  // namespace bench
