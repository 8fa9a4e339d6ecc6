// Which ranks are on one host.
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "tutti/comm/objects.h"

namespace tutti {

std::string host_id() {
  // Names alone may be the same on several hosts; the kernel numbers each of its starts.
  std::string start;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> start;
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) name[0] = 0;
  return std::string(name) + " " + start;
}

Group Group::split_by_host(const std::string& host) const {
  std::vector<std::string> hosts = all_gather_object(host, {.group = *this});
  return split(std::find(hosts.begin(), hosts.end(), host) - hosts.begin());
}

}  // namespace tutti
