// Messages of ranks in a group of hosts. Short ones go at once, as mail, and are kept by their receiver until somebody
// asks for them. Of long ones only an offer goes; the bytes follow when the receiver says that it is ready, so that
// they are never kept, and their sender has not gone on before somebody takes them.
#pragma once

#include <list>
#include <optional>

#include "comm/group/facts.h"
#include "comm/group/work.h"
#include "comm/transport/hosts_world.h"

namespace tutti::comm {

class HostMessages {
 public:
  HostMessages(HostsWorld& world, uint64_t group, const std::vector<int>& ranks, int rank)
      : world_(world), group_(group), ranks_(ranks), me_(rank) {}

  void send(int to, int64_t tag, Call call, const std::shared_ptr<WorkState>& work);
  void receive(int from, int64_t tag, Call call, const std::shared_ptr<WorkState>& work);
  /// Mail, in its order.
  void arrived(const Mail& mail);
  /// Completes what has ended.
  void settle();
  struct Withdrawn {
    bool sends;
    std::string call;
  };
  /// Takes back what nobody has begun to move; `always`: also what is on its way, where the wire has been cut.
  std::optional<Withdrawn> withdraw(const WorkState& work, bool always);
  std::vector<std::shared_ptr<WorkState>> withdraw_all();
  /// What this work does, unless it has ended.
  std::optional<Withdrawn> find(const WorkState& work);
  /// Whether bytes are on their way to or from memory of messages.
  bool moving();

 private:
  enum class Kind : uint32_t { message, offer, ready, discard, withdrawn };
  struct Letter {
    Kind kind = Kind::message;
    uint32_t reserved = 0;
    uint64_t id = 0;  // of an offer, its sender's
    int64_t tag = 0, count = 0;
    uint64_t bytes = 0;
    CallHeader call = {};
  };
  struct Receive {
    int from;
    int64_t tag;
    Call call;
    std::shared_ptr<WorkState> work;
  };
  struct Offer {  // made to another
    int to;
    Call call;
    std::shared_ptr<WorkState> work;
  };
  struct Incoming {
    int from;
    Letter letter;
    std::vector<std::byte> bytes;
  };
  struct Transfer {
    bool sends;
    Call call;
    std::shared_ptr<WorkState> work;
    int from = -1;  // of what is received: who offered it, by which number, and with which tag it was asked for
    uint64_t id = 0;
    int asked = -1;
    int64_t tag = 0;
    Pending pending = {};
  };
  using Completed = std::vector<std::pair<std::shared_ptr<WorkState>, std::exception_ptr>>;

  void post(int to, const Letter& letter, const void* data = nullptr, size_t bytes = 0);
  void take(Incoming& message, Receive receive, Completed& completed);
  void came(Incoming message, Completed& completed);
  void taken_back(int from, uint64_t id, Completed& completed);
  std::exception_ptr misfit(const Incoming& message, const Receive& receive) const;
  Transfer& add_transfer(bool sends, Call call, std::shared_ptr<WorkState> work);
  static void complete(Completed& completed);

  HostsWorld& world_;
  const uint64_t group_;
  const std::vector<int> ranks_;
  const int me_;
  std::mutex mutex_;
  uint64_t next_id_ = 0;
  std::map<uint64_t, Offer> offers_;
  std::list<Incoming> kept_;
  std::list<Receive> receives_;
  std::list<std::unique_ptr<Transfer>> transfers_;
};

}  // namespace tutti::comm
