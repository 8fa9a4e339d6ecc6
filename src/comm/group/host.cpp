// Which ranks are on one host.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "tutti/comm/objects.h"

namespace tutti {

std::string host_id() {
  if (const char* said = std::getenv("TUTTI_HOST"); said && *said) return said;
  // Names alone may be the same on several hosts; the kernel numbers each of its starts. Containers of a host are apart
  // if they do not see each other's processes, memory or network.
  std::string start;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> start;
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) name[0] = 0;
  struct stat pids{}, shm{}, net{};
  ::stat("/proc/self/ns/pid", &pids);
  ::stat("/dev/shm", &shm);
  ::stat("/proc/self/ns/net", &net);
  return fmt::format("{}/{}/{}/{}/{}", name, start, pids.st_ino, shm.st_dev, net.st_ino);
}

Group Group::split_by_host(const std::string& host) const {
  std::vector<std::string> hosts = all_gather_object(host, {.group = *this});
  return split(std::find(hosts.begin(), hosts.end(), host) - hosts.begin());
}

}  // namespace tutti
