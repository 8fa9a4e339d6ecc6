#include "comm/event.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace tutti::comm {

void Event::wake() {
  value_.fetch_add(1);
  syscall(SYS_futex, &value_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Event::yield() { sched_yield(); }

bool Event::sleep(uint32_t seen, Clock::time_point deadline) {
  auto left = deadline - Clock::now();
  if (left <= Clock::duration::zero()) return false;
  // Longer sleeps are cut, so that no deadline overflows a timespec.
  auto capped = std::min<Clock::duration>(left, std::chrono::hours(1));
  auto seconds = std::chrono::duration_cast<std::chrono::seconds>(capped);
  timespec time{seconds.count(), std::chrono::duration_cast<std::chrono::nanoseconds>(capped - seconds).count()};
  syscall(SYS_futex, &value_, FUTEX_WAIT, seen, &time, nullptr, 0);
  return true;
}

}  // namespace tutti::comm
