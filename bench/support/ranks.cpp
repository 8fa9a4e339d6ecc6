#include "bench/support/ranks.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <memory>

namespace bench {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> list) {
  if (list.empty()) return NAN;
  std::sort(list.begin(), list.end());
  return list[list.size() / 2];
}

// By a file, since ranks may be processes.
std::vector<double> numbers_of_ranks(Spawn spawn, int ranks, const std::function<std::vector<double>()>& body) {
  char path[] = "/tmp/tutti-bench-XXXXXX";
  if (::mkstemp(path) < 0) return {};
  spawn(ranks,
        [&] {
          std::vector<double> found = body();
          if (tutti::rank() != 0) return;
          std::ofstream out(path);
          for (double d : found) out << d << ' ';
        },
        {});
  std::ifstream in(path);
  std::vector<double> found;
  for (double d; in >> d;) found.push_back(d);
  std::remove(path);
  return found;
}

std::string python() {
  const char* chosen = std::getenv("TUTTI_BENCH_PYTHON");
  return chosen ? chosen : "/usr/bin/python3";
}

std::vector<double> numbers_of_python(const std::string& program, const std::string& arguments) {
  std::string command =
      fmt::format("OPENBLAS_CORETYPE=SkylakeX OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 {} {} {} 2>/dev/null", python(),
                  program, arguments);
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::vector<double> found;
  for (double d = 0; pipe && std::fscanf(pipe.get(), "%lf", &d) == 1;) found.push_back(d);
  return found;
}

}  // namespace bench
