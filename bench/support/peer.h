// The same work done by libtorch. Its headers and ours do not meet: bench/peers/<name>_libtorch.cpp, which is compiled
// where libtorch is installed, defines the three functions below; elsewhere there is nobody to compare with.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "bench/support/measure.h"

extern "C" {

struct BenchPeerWork {
  void* state;  // null: this peer does not know the work
  void (*run)(void* state, int64_t iterations);
  void (*destroy)(void* state);
};

/// Prepares a piece of work, known by name, on tensors of these sizes.
BenchPeerWork bench_libtorch_prepare(const char* work, const int64_t* sizes, int count);
void bench_libtorch_set_threads(int threads);
const char* bench_libtorch_version();
}

namespace bench {

#ifdef TUTTI_BENCH_LIBTORCH
inline constexpr bool have_libtorch = true;
#else
inline constexpr bool have_libtorch = false;
#endif

inline Contender libtorch(const std::string& work, std::initializer_list<int64_t> sizes) {
  if constexpr (have_libtorch) {
    BenchPeerWork prepared = bench_libtorch_prepare(work.c_str(), sizes.begin(), static_cast<int>(sizes.size()));
    if (prepared.state) {
      std::shared_ptr<void> state(prepared.state, prepared.destroy);
      return {"libtorch", [state, run = prepared.run](int64_t iterations) { run(state.get(), iterations); }};
    }
  }
  return {"libtorch"};
}
inline void set_libtorch_threads(int threads) {
  if constexpr (have_libtorch) bench_libtorch_set_threads(threads);
}
inline std::string libtorch_version() {
  if constexpr (have_libtorch) return bench_libtorch_version();
  return "none";
}

}  // namespace bench
