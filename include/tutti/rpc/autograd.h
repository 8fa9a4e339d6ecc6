// Distributed autograd: gradients through calls to other workers, as if all of it were local.
//
//   dist_autograd::Context context;                         // calls made from here on are recorded
//   Tensor hidden = rpc::sync<&embed>("server", words);     // uses parameters of the server
//   Tensor loss = cross_entropy(net(hidden), labels);
//   dist_autograd::backward(context, {loss});               // runs on every worker that took part
//   Tensor g = dist_autograd::get_gradients(context).at(net.weight);
//
// A context travels with the calls that are made inside of it, and with those that the called functions make. Tensors
// that require gradients, in arguments and in results, then have a history that reaches over the wire. Gradients of
// leaves go to the context's own table on the leaf's worker, and .grad stays as it is, so that any number of contexts
// can be at work at the same time.
//
// What is done without a gradient being wanted (NoGrad) is not recorded, and neither is the context passed on.
#pragma once

#include <chrono>
#include <functional>
#include <unordered_map>

#include "tutti/autograd.h"
#include "tutti/rpc/call.h"

namespace tutti::dist_autograd {

/// Names a context on every worker. Can be an argument of a call.
struct ContextId {
  uint64_t number = 0;
  TUTTI_FIELDS(number)
  friend bool operator==(const ContextId&, const ContextId&) = default;
};

namespace detail {
class Scope;
}

/// While it lives, calls of this thread, and of what the library starts for it, belong to it. When it goes, what every
/// worker keeps for it (graphs, gradients) is freed there, without waiting. Contexts may be nested; the innermost
/// counts.
class [[nodiscard]] Context {
 public:
  Context();
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ContextId id() const;
  operator ContextId() const { return id(); }  // NOLINT: functions below take either

 private:
  std::shared_ptr<detail::Scope> scope_;
  std::shared_ptr<void> outer_;
};

/// The context that this thread works in: its own, or, in a function that was called, that of the call. ValueError
/// where there is none.
ContextId current();

struct BackwardOptions {
  bool retain_graph = false;               // another backward will go through the same graph
  TensorList gradients = {};               // of the losses; none: 1 each, which then are scalars
  std::chrono::milliseconds timeout = {};  // of the whole pass; zero: the session's
};
/// Runs backward from losses of this worker, over all workers that they lead to, and returns when all are through. The
/// sums are made in an order that does not depend on when messages arrive. What any worker throws ends the pass on all
/// of them and is thrown here; so does the loss of a worker (RankFailure). The context is then freed everywhere, and
/// can be used no more.
void backward(ContextId context, const TensorList& losses, const BackwardOptions& options = {},
              std::source_location where = std::source_location::current());
/// The same without waiting.
rpc::Future<> backward_async(ContextId context, const TensorList& losses, const BackwardOptions& options = {},
                             std::source_location where = std::source_location::current());

struct SameTensor {
  size_t operator()(const Tensor& t) const { return std::hash<const void*>()(t.impl()); }
  bool operator()(const Tensor& a, const Tensor& b) const { return a.is_same(b); }
};
/// By leaf: the tensor itself, not its values.
using GradientMap = std::unordered_map<Tensor, Tensor, SameTensor, SameTensor>;

/// The gradients of this worker's leaves in this context so far. To see those of another worker, call a function there.
GradientMap get_gradients(ContextId context);
/// Where they are kept: inside of a SinkGuard, optimizers and gradient clipping work on them. Lives as long as the
/// context.
GradientSink& sink(ContextId context);

/// What this worker keeps for all contexts together; for tests and monitoring.
struct Statistics {
  size_t contexts = 0;
  size_t sends = 0;      // messages that gradients may come back for
  size_t gradients = 0;  // of leaves
  size_t passes = 0;     // that are under way
};
Statistics statistics();

}  // namespace tutti::dist_autograd
