// One backward pass over many workers.
//
// Note [A distributed pass]
// Not everything that was sent has a part in every pass, so nobody knows in advance which gradients will come. A pass
// has two halves. In the first, the worker that begins it looks which ReceiveNodes its losses lead to, and tells the
// senders (mark); they look where the marked SendNodes lead, and tell others; each answers when those it has told have
// answered. When all have, every worker knows exactly which of its SendNodes will get gradients, and who takes part is
// known. In the second half each worker runs one GraphTask, which expects those. It runs what it can, without waiting
// (GraphTask::proceed), whenever gradients arrive, on the thread that brings them. The worker that began the pass has a
// call to each of the others (run_pass) that is answered when that worker's task is through and all that it has sent
// has been taken, or fails as it does, or as the worker is lost. What a worker has sent can be lost with it: so who
// dies before its gradients were taken has not answered, and the pass fails.
//
// Gradients may arrive before that call does, and after the pass has failed.
//
// Note [Errands]
// Where the other worker is a thread of this process, waking one of its threads takes as long as a small layer. So its
// gradients are an errand, which one of its threads is asked to do, while this worker goes on with what it can; when
// there is nothing left of that, it does itself what nobody has begun.
#pragma once

#include <optional>
#include <unordered_set>

#include "autograd/engine.h"
#include "rpc/autograd/part.h"

namespace tutti::dist_autograd::detail {

inline constexpr const char* kBackwardOperation = "dist_autograd::backward";  // in errors

class Pass : public std::enable_shared_from_this<Pass> {
 public:
  Pass(std::shared_ptr<Part> part, const PassHead& head, const std::shared_ptr<rpc::detail::Agent>& agent);
  /// The one that the calling thread runs nodes of; null: none.
  static std::shared_ptr<Pass> current();

  ContextId context() const { return part_->id; }
  const PassHead& head() const { return head_; }
  /// The line that began it, where that was here.
  const rpc::To::Where& where() const { return where_; }
  /// Of its calls; zero: the session's.
  std::chrono::nanoseconds timeout() const;

  // ---- The first half
  /// Where it begins. `path`: of what begins it. Returns the ranks that take part beside this one.
  rpc::Future<std::vector<int>> start(const TensorList& losses, const TensorList& gradients, const Path& path,
                                      const rpc::To::Where& where);
  /// These will get gradients. Returns the ranks that take part because of that.
  rpc::Future<std::vector<int>> mark(const std::vector<std::string>& keys);

  // ---- The second half
  void begin();
  /// Runs what is ready, unless another thread is at it, which then sees what is new.
  void proceed();
  void deliver(const std::string& key, TensorList gradients);
  void send_back(const ReceiveNode& node, TensorList gradients);
  /// Ends it with this error, unless it has ended.
  void abort(const std::exception_ptr& error);
  bool ended() const { return ended_.load(); }
  rpc::Future<> done() const { return done_.future(); }

 private:
  using Marks = std::map<int, std::vector<std::string>>;  // keys, by the rank to tell
  class Errand;                                           // Note [Errands]
  void explore(Node* from, Marks& marks);
  void carry(int peer, const std::string& key, const TensorList& gradients, bool here);
  void run_errands();
  rpc::Future<std::vector<int>> tell(const Marks& marks);
  void step();
  void took(const std::exception_ptr& error);
  void end(const std::exception_ptr& error);

  const std::shared_ptr<Part> part_;
  const PassHead head_;
  const std::weak_ptr<rpc::detail::Agent> agent_;
  const rpc::Promise<void> done_;

  mutable std::mutex mutex_;
  bool starts_here_ = false, begun_ = false;
  std::atomic<bool> ended_{false};  // changed under the lock; read without it, by who holds the part's
  tutti::Context context_;          // in which nodes are run
  Path path_;                       // of what began it, where that was here
  rpc::To::Where where_;
  std::shared_ptr<GraphTask> task_;
  std::unordered_set<const Node*> visited_;
  std::unordered_set<const ReceiveNode*> reached_;  // which have not sent yet
  std::unordered_map<std::string, Ref<SendNode>> expected_;
  std::unordered_set<std::string> arrived_;
  size_t on_their_way_ = 0;                       // gradients that were sent and not yet taken
  bool through_ = false;                          // the task is
  std::vector<std::shared_ptr<Errand>> errands_;  // some of which have begun
  std::atomic<uint32_t> wanted_{0};               // times that there was something new, since it was looked
};

/// Calls a function of those below that returns at once. Where the other worker is a thread of this process, this
/// thread runs it: waking another takes longer.
template <auto F, class... A>
rpc::Future<rpc::detail::Result<F>> ask(const rpc::To& to, const A&... arguments) {
  rpc::detail::Outgoing call(to, rpc::detail::function<rpc::detail::Calling<F>>);
  return rpc::detail::start<rpc::detail::Arguments<F>, rpc::detail::Result<F>>(call, true, arguments...);
}

// ---- What workers say to each other

rpc::Future<std::vector<int>> mark_sends(ContextId context, const PassHead& head, const std::vector<std::string>& keys);
rpc::Future<> run_pass(ContextId context, uint64_t number);
void take_gradients(ContextId context, uint64_t number, const std::string& key, const TensorList& gradients);
void join_context(ContextId context);
void release_context(ContextId context, uint64_t oldest, const std::string& why);
void fail_context(ContextId context, const std::string& why);

}  // namespace tutti::dist_autograd::detail
