// The `tutti run` of every node of a job: how they find each other, and agree on how each epoch ended.
//
// Note [Epochs]
// A job runs in epochs, numbered from 0: each is a set of ranks that start together and end together. When one fails,
// all end, and the next epoch begins with a meeting of its own, at a port of its own, under names that carry its
// number: nothing of an epoch that went wrong can be mistaken for the next. Who is in an epoch is found out at its
// meeting.
//
// Note [Lost nodes]
// Node 0 keeps the table by which they talk. Every other node has left a will there: if its command ends before the
// job does (its connection is gone) or says nothing for a while (its host is), the table says that it is lost. Each
// listens to the table in a thread of its own, whatever else keeps it busy; if the table does not answer, node 0 is
// lost. A job that has lost a node is over, on all. So that all name the same one, node 0 keeps the table until each of
// the others has said that it needs it no more (it has heard of the loss, or has come to its end) or is lost too.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "tools/tutti/signals.h"
#include "tutti/comm/store.h"

namespace tutti::tool {

/// Told to end while waiting for other nodes.
struct Interrupted {
  int signal;
};

struct NodeOptions {
  int nodes = 1;
  int node = 0;           // which this is; -1: node 0 if it is the first at `address`, or else a number that none has
  std::string address;    // of node 0; "": this host
  uint16_t port = 29400;  // where node 0 listens for the other nodes
  std::string secret;
  std::chrono::milliseconds join_timeout{300'000};
  std::chrono::milliseconds node_timeout{30'000};  // a node that says nothing for so long is lost
  int64_t max_restarts = 0;                        // what the caller makes of verdicts: must be the same on all nodes
  std::string job;                                 // a name that must be the same on all nodes, too
};

class Nodes {
 public:
  Nodes(NodeOptions options, Signals& signals);
  ~Nodes();
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;

  /// Which this is.
  int node() const { return node_; }

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
    bool lost = false;   // a node is: the text says which
  };
  /// Something has failed here. `secondary`: it only says that something else had, and counts if nothing else did.
  void fail(int epoch, const Verdict& mine, bool secondary);
  /// What failed on any node, if something is known to have. Does not wait.
  std::optional<std::string> failed(int epoch);
  /// Tells the others that it has ended here, and how, and waits until it has ended everywhere.
  Verdict end(int epoch, const Verdict& mine);

 private:
  template <class Try>
  void until(std::chrono::steady_clock::time_point deadline, const std::string& what, const Try& attempt);
  std::string key(int epoch, const std::string& name) const;
  std::optional<std::string> first_failure(int epoch, const Wait& wait);
  void listen(const std::stop_token& stop);
  std::optional<std::string> lost();
  std::optional<std::string> ask_for_lost(const Wait& wait);
  void leave_table();
  bool serve(TcpStoreOptions store);
  void claim_place();
  void claim_any_place();
  void compare_options();
  [[noreturn]] void give_up(const std::string& why);
  bool needed_by_none();
  const NodeOptions options_;
  int node_;
  const std::string identity_;  // of this command; no other has it
  Signals& signals_;
  std::unique_ptr<TcpStore> store_;  // none: there are no others
  Descriptor reserved_;              // keeps the ranks' port from others
  bool awaited_ = false;             // by the others: it has come to an epoch, and not to its end

  std::mutex mutex_;  // guards what the listener has heard
  std::condition_variable_any changed_;
  int epoch_ = 0;
  std::optional<std::string> failed_, lost_;  // failed: in this epoch
  std::jthread listener_;
};

}  // namespace tutti::tool
