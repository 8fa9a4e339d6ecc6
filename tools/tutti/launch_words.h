// Words of `tutti run` as users of torchrun and mpirun type them: what values mean.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/tutti/command.h"

namespace tutti::tool {

/// A number of ranks, or 0 for "auto" and "cpu": one for each core.
int64_t parse_rank_count(const std::string& option, const std::string& text);

/// A number of nodes; UsageError for a range (1:4), of which torchrun makes a world that changes.
int64_t parse_node_count(const std::string& text);

/// "host:port", "host", "[address of IPv6]:port": the port stays as it is where none is given.
struct Endpoint {
  std::string host;
  int64_t port;
};
Endpoint parse_endpoint(const std::string& text, int64_t port);

/// "NAME=VALUE", or the value that NAME has here, as mpirun's -x takes it.
std::string exported_variable(const std::string& text);

struct Host {
  std::string name;     // as ssh knows it: with a user, maybe
  std::string address;  // as others reach it
  int64_t ranks;        // 0: one for each of its cores
};
/// "a:2,b:2" ("a,a,b,b" is the same): where no host is repeated, those that name no number have `ranks` each. `total`,
/// if it is not 0, is divided among them: evenly, or, where all name a number, from the first on.
std::vector<Host> parse_hosts(const std::string& text, int64_t ranks, int64_t total);

}  // namespace tutti::tool
