#include "bench/support/run.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>

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

[[noreturn]] void usage(const char* program, std::string_view what, int status) {
  std::fputs(fmt::format("{}: {}\n"
                         "  --filter=TEXT   only figures whose name contains TEXT\n"
                         "  --threads=N     measure with N threads only\n"
                         "  --quick         few and short samples\n",
                         program, what)
                 .c_str(),
             status ? stderr : stdout);
  std::exit(status);
}

bool take(std::string_view& argument, std::string_view prefix) {
  if (!argument.starts_with(prefix)) return false;
  argument.remove_prefix(prefix.size());
  return true;
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
  Options options;
  for (int i = 1; i < argc; ++i) {
    std::string_view argument = argv[i];
    if (argument == "--help") usage(argv[0], what, 0);
    if (argument == "--quick") {
      options.quick = true;
    } else if (take(argument, "--filter=")) {
      options.filter = argument;
    } else if (take(argument, "--threads=")) {
      const char* last = argument.data() + argument.size();
      auto [end, error] = std::from_chars(argument.data(), last, options.threads);
      if (error != std::errc() || end != last || options.threads < 1) usage(argv[0], what, 2);
    } else {
      usage(argv[0], what, 2);
    }
  }
  execute_again(argv);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return options;
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
