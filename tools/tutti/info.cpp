// tutti info: what this build and this machine have.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>

#include "base/cores.h"
#include "base/isa.h"
#include "tools/tutti/command.h"
#include "tutti/comm/group.h"

namespace tutti::tool {
namespace {

// The first value of a key in a file of "key : value" lines.
std::string value_of(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "unknown";
}

std::string gigabytes(double bytes) { return fmt::format("{:.1f} GB", bytes / 1e9); }

std::string kilobytes_of(const std::string& key) {
  return gigabytes(1024 * std::strtod(value_of("/proc/meminfo", key).c_str(), nullptr));
}

std::string free_space(const char* path) {
  struct statvfs fs{};
  if (::statvfs(path, &fs) != 0) return "not there: ranks as processes cannot share memory";
  auto block = static_cast<double>(fs.f_frsize);
  return fmt::format("{} free of {}", gigabytes(block * static_cast<double>(fs.f_bavail)),
                     gigabytes(block * static_cast<double>(fs.f_blocks)));
}

std::string cores() {
  auto mine = process_cores();
  long all = ::sysconf(_SC_NPROCESSORS_ONLN);
  return fmt::format("{}{}", mine.size(), static_cast<long>(mine.size()) == all ? "" : fmt::format(" of {}", all));
}

std::string limit(int what) {
  rlimit l{};
  ::getrlimit(static_cast<__rlimit_resource>(what), &l);
  return l.rlim_cur == RLIM_INFINITY ? "unlimited" : fmt::format("{}", l.rlim_cur);
}

const char* isa_name() {
  switch (best_isa()) {
    case Isa::v4:
      return "v4 (AVX-512)";
    case Isa::v3:
      return "v3 (AVX2, FMA)";
    default:
      return "base (SSE2)";
  }
}

// The variables that change what the library does, where they are set.
std::string variables() {
  std::string text;
  for (const char* name :
       {"TUTTI_TRANSPORT", "TUTTI_TRACE", "TUTTI_RECORD", "TUTTI_FAULTS", "TUTTI_TIMEOUT", "TUTTI_ISA", "RANK",
        "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"})
    if (const char* value = std::getenv(name)) text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  return text.empty() ? "none" : text;
}

}  // namespace

int info(const Words& words) {
  Options options("tutti info", "Says what this build and this machine have.");
  if (!options.parse_all(words).empty()) throw UsageError("takes no arguments");
  utsname system{};
  ::uname(&system);
  auto line = [](const char* what, const std::string& value) { std::cout << fmt::format("{:<14} {}\n", what, value); };
  line("tutti", TUTTI_TOOL_VERSION);
  line("built by", TUTTI_TOOL_BUILD);
  line("transports", TUTTI_TOOL_TRANSPORTS);
  line("kernels", isa_name());
  line("host", host_id());
  line("system", fmt::format("{} {} {}", system.sysname, system.release, system.machine));
  line("processor", value_of("/proc/cpuinfo", "model name"));
  line("cores", cores());
  line("memory", fmt::format("{} free of {}", kilobytes_of("MemAvailable"), kilobytes_of("MemTotal")));
  line("shared memory", free_space("/dev/shm"));
  line("descriptors", limit(RLIMIT_NOFILE));
  line("processes", limit(RLIMIT_NPROC));
  line("environment", variables());
  return 0;
}

}  // namespace tutti::tool
