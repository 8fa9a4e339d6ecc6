#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "tutti/context.h"

#ifdef TUTTI_SANITIZE_THREAD
#include <thread>
#include <vector>
#else
#include <omp.h>
#endif

namespace tutti {
namespace {

thread_local bool inside = false;

struct InsideGuard {
  bool saved = inside;
  InsideGuard() { inside = true; }
  ~InsideGuard() { inside = saved; }
};

// Keeps the exception of the lowest piece that throws, so that the error does not depend on which thread was faster.
struct FirstError {
  std::mutex mutex;
  std::exception_ptr error;
  std::atomic<int64_t> piece{INT64_MAX};
  template <class F>
  void guard(int64_t c, F&& f) {
    if (c > piece.load(std::memory_order_relaxed)) return;
    try {
      f();
    } catch (...) {
      std::lock_guard lock(mutex);
      if (c > piece) return;
      error = std::current_exception();
      piece = c;
    }
  }
};

}  // namespace

int thread_share() {
  if (inside) return 1;
  const Context& c = context();
  int share = cores_of(c.device);
  return std::max(1, c.threads > 0 ? c.threads : share);
}

void detail::parallel_run(int64_t chunks, int threads, void (*body)(void*, int64_t), void* data) {
  FirstError first;
  threads = static_cast<int>(std::min<int64_t>(threads, chunks));
  // Contiguous runs of pieces for each thread: neighbours in memory stay with one core.
  auto work = [&](int64_t thread) {
    InsideGuard guard;
    for (int64_t c = chunks * thread / threads; c < chunks * (thread + 1) / threads; ++c)
      first.guard(c, [&] { body(data, c); });
  };
#ifdef TUTTI_SANITIZE_THREAD
  // ThreadSanitizer cannot see into the OpenMP runtime; plain threads show it the real order of events.
  std::vector<std::thread> team;
  for (int t = 1; t < threads; ++t) team.emplace_back([&, t] { work(t); });
  work(0);
  for (auto& t : team) t.join();
#else
#pragma omp parallel num_threads(threads)
  // The runtime may give fewer threads than asked for.
  for (int t = omp_get_thread_num(); t < threads; t += omp_get_num_threads()) work(t);
#endif
  if (first.error) std::rethrow_exception(first.error);
}

}  // namespace tutti
