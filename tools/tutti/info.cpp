// tutti info: what this build and this machine have.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>

#include "base/cores.h"
#include "base/isa.h"
#include "tools/tutti/command.h"
#include "tutti/comm/group.h"

namespace tutti::tool {
namespace {

namespace fs = std::filesystem;

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

// "0-3, 8"
std::string ranges(const std::vector<int>& sorted) {
  std::string text;
  for (size_t i = 0; i < sorted.size();) {
    size_t end = i + 1;
    while (end < sorted.size() && sorted[end] == sorted[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", sorted[i]);
    if (end - i > 1) text += fmt::format("-{}", sorted[end - 1]);
    i = end;
  }
  return text;
}

// Those that this process may use, by its cpuset and affinity, and what a cgroup leaves of their time.
std::string cores() {
  auto mine = process_cores();
  long all = ::sysconf(_SC_NPROCESSORS_ONLN);
  std::string text = fmt::format("{}", mine.size());
  if (static_cast<long>(mine.size()) != all) text += fmt::format(" of {} (allowed are {})", all, ranges(mine));
  double quota = 0, period = 0;
  std::ifstream limit("/sys/fs/cgroup/cpu.max");
  if (limit >> quota >> period && period > 0) text += fmt::format(", limited to the time of {:.3g}", quota / period);
  return text;
}

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> list;
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator(folder, gone)) list.push_back(entry.path());
  std::sort(list.begin(), list.end());
  return list;
}

std::string joined(const std::vector<std::string>& parts, const char* none) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : "; ") + part;
  return text.empty() ? none : text;
}

std::string numa_nodes() {
  std::vector<std::string> nodes;
  for (const fs::path& path : entries("/sys/devices/system/node")) {
    std::string name = path.filename().string(), cpus = first_line(path / "cpulist");
    if (name.starts_with("node") && !cpus.empty()) nodes.push_back(fmt::format("{}: cores {}", name, cpus));
  }
  return joined(nodes, "one");
}

std::string gpus() {
  std::vector<std::string> list;
  for (const fs::path& path : entries("/proc/driver/nvidia/gpus"))
    list.push_back(value_of((path / "information").string(), "Model"));
  std::string driver = first_line("/proc/driver/nvidia/version");
  return joined(list, driver.empty() ? "none (there is no driver)" : "none (there is a driver)");
}

std::string address_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET)
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  else
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof text);
  return text;
}

// Interfaces that are up, with their addresses.
std::string network() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return "unknown";
  std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, ::freeifaddrs);
  std::map<std::string, std::string> found;
  for (const ifaddrs* a = first; a; a = a->ifa_next) {
    if (!(a->ifa_flags & IFF_UP) || !a->ifa_addr) continue;
    std::string& text = found[a->ifa_name];
    int family = a->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) text += " " + address_of(a->ifa_addr);
  }
  std::vector<std::string> list;
  for (auto& [name, addresses] : found) list.push_back(name + addresses);
  return joined(list, "none");
}

// What UCX would use between hosts; without any it is TCP.
std::string rdma() {
  std::vector<std::string> list;
  for (const fs::path& path : entries("/sys/class/infiniband"))
    list.push_back(fmt::format("{} ({})", path.filename().string(), first_line(path / "ports/1/link_layer")));
  return joined(list, "none: ucx uses tcp between hosts");
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
  line("compiler", TUTTI_TOOL_NATIVE);
  line("kernels", isa_name());
  line("host", host_id());
  line("system", fmt::format("{} {} {}", system.sysname, system.release, system.machine));
  line("processor", value_of("/proc/cpuinfo", "model name"));
  line("cores", cores());
  line("numa nodes", numa_nodes());
  line("gpus", gpus());
  line("network", network());
  line("rdma", rdma());
  line("memory", fmt::format("{} free of {}", kilobytes_of("MemAvailable"), kilobytes_of("MemTotal")));
  line("shared memory", free_space("/dev/shm"));
  line("descriptors", limit(RLIMIT_NOFILE));
  line("processes", limit(RLIMIT_NPROC));
  line("environment", variables());
  return 0;
}

}  // namespace tutti::tool
