// One object for the process, made when first asked for; a forked child makes its own, since threads do not follow it.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>

namespace tutti {

/// `forever`: it is not freed at the end, for what threads that end then may still use.
template <class T, bool forever = false>
T& per_process() {
  static std::atomic<T*> current{nullptr};
  static struct End {
    ~End() {
      if (!forever) std::unique_ptr<T>(current.exchange(nullptr));
    }
  } end;
  static std::array<T*, 8> parents{};  // of this process's ancestors: theirs, but not lost
  static const int once = ::pthread_atfork(nullptr, nullptr, [] {
    std::rotate(parents.begin(), parents.end() - 1, parents.end());
    parents[0] = current.exchange(nullptr);
  });
  (void)once;
  if (T* found = current.load()) return *found;
  auto fresh = std::make_unique<T>();
  T* expected = nullptr;
  if (current.compare_exchange_strong(expected, fresh.get())) return *fresh.release();
  return *expected;
}

}  // namespace tutti
