// Groups of ranks that need not share a host, over an engine (see wire.h).
//
// Note [Collectives of hosts]
// First every rank tells the facts of its call, and with them what it gives, if that is little: then the call is done
// in this one exchange (Note [Facts of hosts]). Otherwise the numbers are cut into a slice for each rank, its owner,
// and go in rounds of a part of every slice at a time (exchange.h):
// 1. Ranks of a host divide the slices of other hosts among themselves (its carriers), and hand each other, through
//    shared memory, what they have of them. A carrier adds up what the canonical order allows: the largest subtrees
//    that its host holds completely. It sends these to the slice's owner.
// 2. The owner finishes the tree, and sends the result to one carrier on each host that wants it.
// 3. Carriers hand results around in shared memory.
// A group without shared memory is one where every rank is a host of its own: the same, without 1 and 3.
// The first rounds leave right behind the facts, without waiting for those of the others: what comes is used when the
// facts have come too, and fit, so that comparing them costs no wait of its own (Note [Tentative messages]).
#pragma once

#include <algorithm>

#include "comm/transport/call_queue.h"
#include "comm/transport/host_facts.h"
#include "comm/transport/host_messages.h"
#include "comm/transport/hosts_world.h"
#include "comm/transport/streams.h"

namespace tutti::comm {

class HostsGroup : public Transport {
 public:
  HostsGroup(std::shared_ptr<HostsWorld> world, std::vector<int> ranks, uint64_t id);
  ~HostsGroup() override;
  /// "ucx", or "shm+ucx" where members share hosts.
  const char* name() const override { return name_.c_str(); }
  uint64_t id() const override { return id_; }
  void look_after_ranks() override;
  void fail(int, const std::string& kind, const std::string& text) override {
    world_->fail(world_->local().rank(), text, kind.c_str());
  }
  std::chrono::milliseconds timeout() const override { return world_->local().timeout(); }

  void run(int rank, Call&& call, std::chrono::milliseconds timeout) override;
  void start(int rank, Call call, const std::shared_ptr<WorkState>& work) override;
  bool wait(WorkState& work, Clock::time_point deadline, bool give_up) override;
  bool expire(WorkState& work) override;
  bool cancel(WorkState& work) override;
  void start_send(int rank, int to, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) override;
  void start_receive(int rank, int from, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) override;
  std::shared_ptr<Transport> subgroup(int rank, const std::vector<int>& members) override;

  /// Its collectives, with those that have not begun, and whether some are not over.
  uint64_t made() const { return queue_ ? queue_->made() : 0; }
  bool open() const { return queue_ && queue_->open(); }
  const HostsWorld& hosts() const { return *world_; }
  /// Mail for this group has come, or messages may have ended.
  void arrived(Mail mail);
  void settle();
  /// The world has failed: nobody waits any more.
  void fail_messages();

 private:
  /// A call that is being carried out.
  struct Running {
    const Call& call;
    uint64_t number;
    const TimeLimit& limit;
  };
  void execute(const Call& call, const TimeLimit& limit);
  void carry_out(const Running& running, const CallFacts& mine);
  void clear_away(const ExchangeContext& context, const Running& running);
  ExchangeContext context(const Running& running);
  std::unique_ptr<Exchange> begin(const ExchangeContext& context, const Running& running,
                                  const std::vector<std::optional<CallFacts>>& known);
  void finish_small(const Call& call, const std::vector<CallFacts>& calls);
  /// has_come(k): of rank k of the group, as far as this one knows. `here`: waits in memory, for ranks of this host.
  void await(const std::function<bool()>& ready, const std::function<bool(int)>& has_come, bool here,
             const Running& running);
  [[noreturn]] void time_out(const std::function<bool(int)>& has_come, const Running& running);
  std::string late_text(const std::function<bool(int)>& has_come, const Running& running);
  bool wait_message(WorkState& work, Clock::time_point deadline, bool give_up);
  int at(int rank) const { return ranks()[static_cast<size_t>(rank)]; }

  const std::shared_ptr<HostsWorld> world_;
  const uint64_t id_;
  int me_ = -1;
  std::string name_;
  Layout layout_;
  std::shared_ptr<ShmGroup> inner_;  // the members on this host, where it has several
  std::atomic<uint64_t> next_{0};
  std::unique_ptr<HostFacts> facts_;
  std::shared_ptr<HostMessages> messages_;
  std::mutex subgroups_mutex_;
  std::map<std::vector<int>, uint64_t> subgroups_;
  std::unique_ptr<CallQueue> queue_;  // the last: its thread uses all of the others
};

}  // namespace tutti::comm
