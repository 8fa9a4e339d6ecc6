// Waiting awake, for a moment.
#pragma once

#include <chrono>

namespace tutti {

/// Looks again and again whether it is so, for about as long as it takes to put a thread to sleep and to wake it up.
/// Only for threads that have a core to themselves.
template <class Ready>
bool look_for_a_while(Ready&& ready) {
  using Clock = std::chrono::steady_clock;
  for (auto end = Clock::now() + std::chrono::microseconds(100); Clock::now() < end;)
    for (int i = 0; i < 8; ++i) {
      if (ready()) return true;
      __builtin_ia32_pause();
    }
  return false;
}

}  // namespace tutti
