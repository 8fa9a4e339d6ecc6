// Ranks that are processes and need not share a host: who they are, where they are, who of them has failed.
//
// Note [A world of hosts]
// Whatever the ranks of one host must know of each other lies in their shared memory (ProcessWorld), failures too; each
// rank's keeper, a thread that stays in touch with the store, carries failures and ends from host to host. Every rank
// leaves a will there: a process that is killed, or a host that falls silent, becomes everybody's failure in the time
// that is set. The first failure that the store hears of is the one that all report. Only the keeper waits for the
// store: who fails the world may be the thread that looks after the times of all groups, and a store that is slow must
// not make those late.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <set>
#include <stop_token>
#include <thread>
#include <tuple>

#include "comm/transport/process_world.h"
#include "comm/transport/transport.h"
#include "comm/transport/wire.h"

namespace tutti::comm {

class HostsGroup;
class HostMessages;

struct HostsOptions {
  std::vector<int> host_of = {};                                 // of each rank: the number of its host
  std::string engine = "ucx";                                    // or "gloo"
  bool share_memory = true;                                      // inside a host; false: everything goes by the engine
  std::chrono::milliseconds silence = std::chrono::seconds(10);  // after which a host counts as cut off
  int server = -1;                                               // the rank that serves the store; -1: no rank
  std::string address = {};                                      // of this host, as others reach it; for gloo
};

/// How a failure is written in the store.
struct Failure {
  int rank;
  std::string kind, text;  // the class of the error that the rank itself got
};
std::string encode_failure(const Failure& failure);
Failure decode_failure(const std::string& bytes);

class HostsWorld : public std::enable_shared_from_this<HostsWorld> {
 public:
  /// Meets the others: all ranks make theirs. `prefix` is of this world alone.
  HostsWorld(std::shared_ptr<ProcessWorld> local, std::shared_ptr<TcpStore> store, const std::string& prefix,
             HostsOptions options);
  ~HostsWorld();

  int rank() const { return local_->rank(); }
  int size() const { return local_->size(); }
  const HostsOptions& options() const { return options_; }
  int ranks_here() const;
  ProcessWorld& local() const { return *local_; }
  const std::shared_ptr<RankState>& state(int rank) const { return local_->state(rank); }
  Wire& wire() const { return *wire_; }

  /// Everybody's failure from now on, unless there was one before. Does not wait for other hosts to hear of it.
  void fail(int rank, const std::string& text, const char* kind = "RankFailure");
  bool failed() const { return local_->failed(); }
  /// Throws if the world has failed; nothing is on its way any more then.
  void check();
  /// Looks after ranks that a thread waits for: they may have died, ended, or be out of reach. `done(rank)`: it is not
  /// waited for any more. What is missing is `what` in the text of the failure.
  struct Awaited {  // a collective: its group and number
    uint64_t group, number;
  };
  void watch(const std::vector<int>& ranks, const std::function<bool(int)>& done, const std::string& what,
             std::optional<Awaited> call = {});
  /// Note [Ranks whose body is over].
  void over();
  /// The end of this rank's part, well or not: what it has sent arrives, and others learn that it has ended.
  void leave();

  std::shared_ptr<Transport> group(const std::vector<int>& ranks, uint64_t parent, uint64_t count);
  /// A group is no more, with so many collectives. Its messages stay until none is on its way.
  void dropped(uint64_t group, const std::shared_ptr<HostMessages>& messages, uint64_t made);

  // Note [Mail for groups to come]
  // A rank may be sent messages in a group that it has not made yet. They are kept, up to these limits, beyond which
  // the world fails: the group is one that this rank will never make. What comes for a group that this rank has had,
  // and has dropped, is thrown away.
  static constexpr size_t kEarlyBytes = 64 << 20, kEarlyCount = 4096, kDead = 4096;
  struct Early {
    size_t bytes = 0, count = 0;
  };
  /// What is kept of it now.
  Early early() const;

  /// Mail for a member of a group; kept there until that member has the group.
  void post(int to, uint64_t group, std::vector<std::byte> bytes);
  /// The group has something to look after: by its when_done.
  void nudge(uint64_t group);
  /// Hands out mail. Called by who waits, or by a thread for it when nobody does.
  void deliver();
  /// What ranks of other hosts did last, as they say themselves; "" for those who do not answer.
  std::map<int, std::string> ask_last_calls(const std::vector<int>& ranks, uint64_t group);

 private:
  void meet();
  void shake_hands();
  void let_others_hear();
  /// Tells other hosts of a failure that this one knows of.
  void announce();
  void keep(const std::stop_token& stop);
  void take_news();
  bool is_without(int rank, const Awaited& call);
  void carry();
  void fail_messages();
  void dispatch(Mail mail);
  /// Keeps it for a group to come; says what is wrong if there is too much. Wants the mutex.
  std::optional<std::string> keep_early(Mail mail);
  std::vector<Mail> take_early(uint64_t group);
  void answer(const Mail& question);

  const std::shared_ptr<ProcessWorld> local_;
  const std::shared_ptr<TcpStore> tcp_;
  const StorePtr store_, news_;  // for meeting, and for the keeper: one may be cancelled without the other
  const std::string prefix_;
  const HostsOptions options_;
  std::stop_source meeting_;  // stops with the keeper, which knows why: a rank that still meets others need not
  std::atomic<Wire*> to_wake_{nullptr};
  bool left_ = false;

  mutable std::mutex mutex_;
  std::map<std::tuple<std::vector<int>, uint64_t, uint64_t>, std::weak_ptr<HostsGroup>> groups_;
  std::map<uint64_t, std::weak_ptr<HostsGroup>> by_id_;
  std::map<uint64_t, std::vector<Mail>> early_;  // of groups that are not yet made here
  Early early_size_;
  std::deque<std::pair<uint64_t, uint64_t>> dead_;  // groups that were, the last kDead of them, and their calls
  std::map<int, Clock::time_point> ended_since_;
  std::map<int, std::map<uint64_t, uint64_t>> over_;   // of ranks whose body is: the calls they have made, by group
  std::vector<std::shared_ptr<HostMessages>> moving_;  // of groups that are no more

  std::mutex posting_;
  std::vector<uint64_t> posted_;  // to each rank

  std::mutex delivering_;
  std::mutex answers_mutex_;
  std::map<int, std::string> answers_;

  std::mutex carrying_;
  std::condition_variable to_carry_;
  bool has_news_ = false, stop_ = false;
  std::set<uint64_t> nudged_;
  std::thread carrier_;
  std::unique_ptr<Wire> wire_;  // before what is above: its thread uses that, and messages on their way are there
  std::jthread keeper_;         // before the wire, which it wakes
};

}  // namespace tutti::comm
