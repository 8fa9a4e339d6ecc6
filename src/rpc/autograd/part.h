// What a worker keeps of contexts.
//
// Note [Lives of contexts]
// A context's id begins with its owner's rank, and the owner is who ends it, on all workers that took part. It knows
// those that it has called itself. A worker that was called by a third one tells the owner that it has joined; if the
// owner no longer knows the context, its answer is to release it. So nothing depends on workers in between, who may
// have died. Where the owner dies, everybody else drops its contexts.
//
// A call may arrive after the context it was made in has ended. So as not to keep it for ever, each worker remembers
// which contexts have ended; with every release the owner says which is its oldest that has not, and what is older need
// not be remembered one by one.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>

#include "rpc/agent.h"
#include "rpc/autograd/nodes.h"

namespace tutti::dist_autograd::detail {

class Pass;

/// What a pass is to all workers.
struct PassHead {
  uint64_t number = 0;
  int initiator = -1;  // rank in the world
  bool retain_graph = false;
  std::chrono::milliseconds timeout{};
  TUTTI_FIELDS(number, initiator, retain_graph, timeout)
};

inline int owner_of(ContextId id) { return static_cast<int>(id.number >> 48); }

/// What one worker keeps of one context.
class Part {
 public:
  Part(ContextId id, bool mine) : id(id), mine(mine) {}
  const ContextId id;
  const bool mine;  // this worker owns the context
  ContextSink sink;

  /// What was sent; not kept where the context is over.
  void keep(const std::string& key, Ref<SendNode> node);
  /// ValueError where there is none.
  Ref<SendNode> send(const std::string& key) const;
  /// Of the owner: another worker takes part.
  void involve(int rank);
  std::set<int> involved() const;
  size_t sends() const;

  /// Null: there is none such.
  std::shared_ptr<Pass> find_pass(uint64_t number) const;
  std::shared_ptr<Pass> active_pass() const;

  bool released() const { return released_.load(); }
  /// Lets go of everything; a pass that is under way ends with this error.
  void release(const std::exception_ptr& error);

  friend std::shared_ptr<Pass> begin_pass(const std::shared_ptr<Part>& part, const PassHead& head,
                                          const std::shared_ptr<rpc::detail::Agent>& agent);

 private:
  std::atomic<bool> released_{false};
  mutable std::mutex mutex_;
  std::unordered_map<std::string, Ref<SendNode>> sends_;
  std::set<int> involved_;
  std::shared_ptr<Pass> pass_;
};
/// The worker's part of a pass, made when it is first heard of. ValueError where another one is under way.
std::shared_ptr<Pass> begin_pass(const std::shared_ptr<Part>& part, const PassHead& head,
                                 const std::shared_ptr<rpc::detail::Agent>& agent);

/// What a thread's context (context.h) knows: in which context it works, and as what.
class Scope {
 public:
  Scope(std::shared_ptr<Part> part, Path path) : part(std::move(part)), path(std::move(path)) {}
  const std::shared_ptr<Part> part;
  const Path path;
  std::weak_ptr<Pass> pass;  // where nodes of one are being run
  std::atomic<uint32_t> calls{0};
  // Nodes that were made before the last call have numbers up to this. Answers are numbered beyond, so that coroutines,
  // which are continued by any thread, number their nodes in their order too.
  std::atomic<uint64_t> before{0};
};
/// The calling thread's; null: it works in no context.
std::shared_ptr<Scope> current_scope();

/// All contexts that a worker takes part in.
class Registry {
 public:
  Registry(const std::shared_ptr<rpc::detail::Agent>& agent, int rank, tutti::Context context);
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;
  /// The calling rank's; ValueError where it has no session.
  static std::shared_ptr<Registry> current(const char* operation);

  int rank() const { return rank_; }
  /// In which messages can be sent, on any thread.
  const tutti::Context& context() const { return context_; }
  std::shared_ptr<rpc::detail::Agent> agent() const { return agent_.lock(); }
  uint64_t next_number() { return static_cast<uint64_t>(rank_) << 48 | ++last_; }

  std::shared_ptr<Part> make();
  /// Of a call that came in; null: the context is over.
  std::shared_ptr<Part> adopt(ContextId id, int from);
  /// ValueError where there is none.
  std::shared_ptr<Part> get(ContextId id, const char* operation) const;
  /// Null where there is none.
  std::shared_ptr<Part> find(ContextId id) const;
  /// By the owner: on all workers. `error`: what it ends by, null where it is simply over.
  void release_everywhere(ContextId id, const std::exception_ptr& error);
  /// As the owner says.
  void release(ContextId id, uint64_t oldest, const std::string& why);
  /// Of a context of this worker's that has failed: its user is gone.
  void forget(ContextId id);
  void lost(int rank, const std::string& why);
  /// Another worker says that it takes part; false: the context is over.
  bool joined(ContextId id, int rank);
  uint64_t oldest() const;
  Statistics statistics() const;

  std::mutex optimizing;  // steps of optimizers change parameters one after the other

 private:
  struct Ended {
    uint64_t below = 0;  // all that are older have
    std::set<uint64_t> ids;
  };
  const std::weak_ptr<rpc::detail::Agent> agent_;
  const int rank_;
  const tutti::Context context_;
  std::atomic<uint64_t> last_{0};
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<Part>> parts_;
  std::set<uint64_t> own_;
  std::map<uint64_t, std::string> failed_;  // own ones, and why
  std::map<int, Ended> ended_;              // by owner
};

/// Distributed autograd becomes part of a worker's session.
void attach(const std::shared_ptr<rpc::detail::Agent>& agent, int rank, const tutti::Context& context);

}  // namespace tutti::dist_autograd::detail
