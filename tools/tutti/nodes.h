// The `tutti run` of every node of a job: how they find each other, and agree on how each epoch ended.
//
// Note [Epochs]
// A job runs in epochs, numbered from 0: each is a set of ranks that start together and end together. When one fails,
// all end, and the next epoch begins with a meeting of its own, at a port of its own, under names that carry its
// number: nothing of an epoch that went wrong can be mistaken for the next. Who is in an epoch is found out at its
// meeting.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "tools/tutti/signals.h"
#include "tutti/comm/store.h"

namespace tutti::tool {

/// Told to end while waiting for other nodes.
struct Interrupted {
  int signal;
};

struct NodeOptions {
  int nodes = 1, node = 0;  // how many, and which this is
  std::string address;      // of node 0; "": this host
  uint16_t port = 29400;    // where node 0 listens for the other nodes
  std::string secret;
  std::chrono::seconds join_timeout{300};
};

class Nodes {
 public:
  Nodes(NodeOptions options, Signals& signals);
  ~Nodes();
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;

  struct Place {
    int first_rank, world_size;
    std::string address;  // where the ranks meet
    uint16_t port;
  };
  /// Waits until all nodes have come to this epoch, each with so many ranks.
  Place meet(int epoch, int ranks);
  struct Verdict {
    int code = 0;        // of the first failure
    bool final = false;  // somebody wanted the job to end: no other epoch
    std::string text;    // "rank 3: exit code 5"
  };
  /// Something has failed here. `secondary`: it only says that something else had, and counts if nothing else did.
  void fail(int epoch, const Verdict& mine, bool secondary);
  /// What failed on any node, if something has.
  std::optional<std::string> failed(int epoch);
  /// Tells the others that it has ended here, and how, and waits until it has ended everywhere.
  Verdict end(int epoch, const Verdict& mine);

 private:
  template <class Try>
  void until(std::chrono::steady_clock::time_point deadline, const std::string& what, const Try& attempt);
  std::string key(int epoch, const std::string& name) const;
  std::optional<std::string> first_failure(int epoch);
  const NodeOptions options_;
  Signals& signals_;
  std::unique_ptr<TcpStore> store_;  // none: there are no others
  Descriptor reserved_;              // keeps the ranks' port from others
};

}  // namespace tutti::tool
