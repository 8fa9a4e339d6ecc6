// Time for records that are written all the time and read seldom: the processor's counter, where it runs evenly, takes
// a third of what the system's clock takes. What it counts is turned into times when somebody asks.
#pragma once

#include <chrono>
#include <cstdint>

namespace tutti {

/// The same on all cores and in all processes of a host.
int64_t ticks_now();

/// Turns them into times of the steady clock: all by one scale, so that their order stays.
class TickScale {
 public:
  TickScale();
  std::chrono::steady_clock::time_point time(int64_t ticks) const;
  /// Between then and the making of this scale.
  double seconds_since(int64_t ticks) const { return static_cast<double>(ticks_ - ticks) * pace_ * 1e-9; }

 private:
  int64_t ticks_, nanoseconds_;  // of one moment
  double pace_;                  // nanoseconds a tick
};

}  // namespace tutti
