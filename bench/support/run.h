// How every benchmark program starts: its options, the environment its peers need, and the line that says where and
// what.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bench {

struct Options {
  std::string filter;  // only figures whose name contains this
  int threads = 0;     // measure with this many threads; 0: the benchmark's own choice
  bool quick = false;  // few and short samples, to see that everything runs

  bool wants(std::string_view name) const { return name.find(filter) != std::string_view::npos; }
};

/// Reads --filter, --threads and --quick (tools/flags/flags.h); `what` says in --help what the program measures. Peers
/// read some settings when they are loaded, before main(): where those are missing the program sets them and executes
/// itself again.
Options start(int argc, char** argv, std::string_view what);

/// How many cores this process may use.
int cores();

/// `bench name=ops cpu="..." cores=2 threads=1,2 compiler="..." <details> what="..."`
void print_header(std::string_view name, const std::vector<int>& threads, std::string_view details,
                  std::string_view what);

}  // namespace bench
