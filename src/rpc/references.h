// A worker's objects that references lead to, and its references to objects of all. See Note [Leases].
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <typeinfo>
#include <vector>

#include "rpc/lease.h"
#include "rpc/message.h"
#include "tutti/rpc/future.h"
#include "tutti/rpc/session.h"

namespace tutti::rpc::detail {

class Agent;

/// The fork number of the reference that a call is to make the object of.
inline constexpr uint64_t kMaking = ~uint64_t{0};

/// What RemoteRefs on one worker share: a lease's handle.
class RefHandle {
 public:
  RefHandle(std::weak_ptr<Agent> agent, RefId id, std::string type, std::string made_at)
      : id(id), type(std::move(type)), made_at(std::move(made_at)), agent_(std::move(agent)) {}
  ~RefHandle();
  RefHandle(const RefHandle&) = delete;
  RefHandle& operator=(const RefHandle&) = delete;
  /// ValueError where its session is over.
  std::shared_ptr<Agent> agent() const;

  const RefId id;
  const std::string type, made_at;
  std::shared_ptr<FutureCore> made;  // where this worker made it

 private:
  const std::weak_ptr<Agent> agent_;
};

class References {
 public:
  References(Agent& agent, int me) : agent_(agent), owner_(), holder_(me), me_(me) {}

  // ---- References
  std::shared_ptr<RefHandle> make(int owner, const std::string& type, std::string made_at);
  /// Those in a message become forks, since it is about to leave, or handles, since it has come. What the message is to
  /// make is taken out of it.
  void leave(Message& message, int to);
  std::optional<RefRecord> arrive(Message& message);
  void drop(const RefId& id);
  void take(int from, const LeaseMessage& message);
  void died(int worker);

  // ---- Objects
  /// There it is, or why it is not.
  void put(const RefRecord& making, std::shared_ptr<void> object, const std::type_info* type, std::exception_ptr error);
  /// Waits until it is there; type null: any. Throws what its making threw.
  std::shared_ptr<void> get(const RefId& id, const std::type_info* type);

  std::vector<Leak> leaks() const;
  void clear();
  size_t objects() const;
  size_t held() const;

 private:
  struct Object {
    std::shared_ptr<void> value;
    const std::type_info* type = nullptr;
    std::string type_name, made_at;
    std::shared_ptr<FutureCore> ready = std::make_shared<FutureCore>();
  };
  using Freed = std::vector<std::shared_ptr<Object>>;
  /// Wants the lock: what to send and to free, once it is released.
  struct Outcome {
    std::vector<LeaseMessage> messages;
    Freed freed;
  };
  Outcome settle();
  void carry_out(Outcome outcome);
  std::shared_ptr<Object> object(const RefId& id);

  Agent& agent_;
  mutable std::mutex mutex_;
  LeaseOwner owner_;
  LeaseHolder holder_;
  int me_;
  std::map<RefId, std::shared_ptr<Object>> objects_;
};

}  // namespace tutti::rpc::detail
