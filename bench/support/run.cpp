#include "bench/support/run.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tools/flags/flags.h"

namespace bench {
namespace {

constexpr const char* kMarker = "TUTTI_BENCH_ENVIRONMENT";  // set in the second life of the program

void execute_again(char** argv) {
  if (std::getenv(kMarker)) return;
  setenv(kMarker, "1", 1);
  // What a user has set stays. OpenBLAS 0.3.21 takes newer processors for old ones, five times slower; and its idle
  // threads would spin through a hundred samples of whoever is measured next.
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
    setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
#endif
  setenv("OPENBLAS_NUM_THREADS", std::to_string(cores()).c_str(), 0);
  setenv("OPENBLAS_THREAD_TIMEOUT", "20", 0);  // 2^20 cycles
  execv("/proc/self/exe", argv);               // where this fails, the measurement goes on as it is
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

std::string compiler() {
#if defined(__clang__)
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("GCC {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

}  // namespace

Options start(int argc, char** argv, std::string_view what) {
  Options chosen;
  int64_t threads = 0;
  tutti::flags::Options options(std::filesystem::path(argv[0]).filename().string(), std::string(what));
  options.text("--filter", "TEXT", "only figures whose name contains TEXT", chosen.filter);
  options.number("--threads", "N", "measure with N threads only", threads, 1, 1024);
  options.flag("--quick", "few and short samples, to see that everything runs", chosen.quick);
  options.parse(argc, argv);
  chosen.threads = static_cast<int>(threads);
  execute_again(argv);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return chosen;
}

int cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

void print_header(std::string_view name, const std::vector<int>& threads, std::string_view details,
                  std::string_view what) {
  fmt::print("bench name={} cpu=\"{}\" cores={} threads={} compiler=\"{}\" {} what=\"{}\"\n", name, cpu_model(),
             cores(), fmt::join(threads, ","), compiler(), details, what);
}

}  // namespace bench
