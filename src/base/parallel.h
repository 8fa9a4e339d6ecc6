// parallel_for: the threads inside an operator. One OpenMP pool, the one that oneDNN uses too; how many of its threads
// may work is the calling thread's share (Context::threads, else its device's cores).
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <type_traits>

namespace tutti {

/// Threads that an operator of the calling thread may use now: 1 inside of a parallel_for.
int thread_share();

namespace detail {
void parallel_run(int64_t chunks, int threads, void (*body)(void*, int64_t chunk), void* data);
}

/// Calls body(begin, end) for pieces of [0, count), each of `grain` (the last maybe less). The pieces do not depend on
/// the number of threads, so that what is computed for each piece does not either. An exception reaches the caller.
template <class Body>
void parallel_for(int64_t count, int64_t grain, Body&& body) {
  if (count <= 0) return;
  int64_t chunks = (count + grain - 1) / grain;
  int threads = chunks > 1 ? thread_share() : 1;
  if (threads == 1) {
    for (int64_t c = 0; c < chunks; ++c) body(c * grain, c + 1 == chunks ? count : (c + 1) * grain);
    return;
  }
  struct Job {
    std::remove_reference_t<Body>* body;
    int64_t count, grain;
  } job{std::addressof(body), count, grain};
  detail::parallel_run(
      chunks, threads,
      [](void* data, int64_t chunk) {
        auto& j = *static_cast<Job*>(data);
        int64_t begin = chunk * j.grain;
        (*j.body)(begin, begin + j.grain < j.count ? begin + j.grain : j.count);
      },
      &job);
}

}  // namespace tutti
