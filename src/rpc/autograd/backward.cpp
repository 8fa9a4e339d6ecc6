// What users call, and what workers say to each other.
#include "base/check.h"
#include "comm/launch/launch.h"
#include "rpc/autograd/pass.h"

namespace tutti::dist_autograd {
namespace detail {
namespace {

/// A pass, at the worker that began it.
class Backward : public std::enable_shared_from_this<Backward> {
 public:
  Backward(std::shared_ptr<Registry> registry, std::shared_ptr<Part> part, std::shared_ptr<Pass> pass)
      : registry_(std::move(registry)), part_(std::move(part)), pass_(std::move(pass)) {}

  rpc::Future<> result() const { return result_.future(); }

  /// Tells the workers that take part, and waits for none. What this worker has to do is left to it.
  void run(const std::vector<int>& ranks) {
    std::vector<int> others;
    for (int rank : ranks)
      if (rank != registry_->rank()) others.push_back(rank);
    left_ = others.size() + 1;
    pass_->begin();
    tutti::Context quiet = context();
    quiet.distributed_autograd = nullptr;
    ContextGuard guard(std::move(quiet));
    for (int rank : others)
      watch(ask<&run_pass>({rank, pass_->timeout(), pass_->where()}, part_->id, pass_->head().number), false);
    watch(pass_->done(), true);
  }
  void fail(const std::exception_ptr& error) {
    {
      std::lock_guard lock(mutex_);
      if (error_) return;
      error_ = error;
    }
    tell_owner(error);
    pass_->abort(error);
    {
      std::lock_guard lock(mutex_);
      told_ = true;
    }
    settle();
  }
  /// Fails before anybody was told.
  void fail_early(const std::exception_ptr& error) {
    fail(error);
    result_.fail(error);
  }

 private:
  void tell_owner(const std::exception_ptr& error) {
    if (part_->mine) return registry_->release_everywhere(part_->id, error);
    ContextGuard guard(registry_->context());
    try {
      (void)rpc::async<&fail_context>(owner_of(part_->id), part_->id, comm::text_of(error));
    } catch (const Error&) {  // the session is over
    }
  }
  void watch(const rpc::Future<>& future, bool own) {
    future.core()->on_done([self = shared_from_this(), core = future.core(), own] { self->ended(core->error(), own); });
  }
  void ended(const std::exception_ptr& error, bool own) {
    if (error) fail(error);
    {
      std::lock_guard lock(mutex_);
      --left_;
      own_ended_ = own_ended_ || own;
    }
    settle();
  }
  // After an error nobody waits for the others, but this worker's own nodes have ended, and the context is freed.
  void settle() {
    std::exception_ptr error;
    {
      std::lock_guard lock(mutex_);
      if (error_ ? !told_ || !own_ended_ : left_ > 0) return;
      error = error_;
    }
    error ? result_.fail(error) : result_.set();
  }

  const std::shared_ptr<Registry> registry_;
  const std::shared_ptr<Part> part_;
  const std::shared_ptr<Pass> pass_;
  const rpc::Promise<void> result_;
  std::mutex mutex_;
  size_t left_ = 0;
  bool own_ended_ = false, told_ = false;
  std::exception_ptr error_;
};

struct Started {
  std::shared_ptr<Backward> backward;
  std::shared_ptr<Pass> pass;
  rpc::Future<std::vector<int>> marks;
};

Started start(ContextId id, const TensorList& losses, const BackwardOptions& options, const rpc::To::Where& where) {
  auto registry = Registry::current(kBackwardOperation);
  auto part = registry->get(id, kBackwardOperation);
  check<ValueError>(!losses.empty(), kBackwardOperation, "there is no loss to begin with");
  check<ValueError>(options.timeout.count() >= 0, kBackwardOperation, "the timeout is {} ms", options.timeout.count());
  auto agent = registry->agent();
  auto timeout = options.timeout.count() > 0 ? options.timeout : agent->timeout();
  PassHead head{registry->next_number(), registry->rank(), options.retain_graph, timeout};
  auto pass = begin_pass(part, head, agent);
  auto scope = current_scope();
  Started s{std::make_shared<Backward>(registry, part, pass), pass, {}};
  try {
    s.marks = pass->start(losses, options.gradients, scope && scope->part == part ? scope->path : Path(), where);
  } catch (...) {  // losses that cannot be: nothing has happened
    pass->abort(std::current_exception());
    throw;
  }
  return s;
}

std::shared_ptr<Part> part_here(ContextId id) {
  return Registry::current(kBackwardOperation)->get(id, kBackwardOperation);
}

}  // namespace

rpc::Future<std::vector<int>> mark_sends(ContextId id, const PassHead& head, const std::vector<std::string>& keys) {
  auto registry = Registry::current(kBackwardOperation);
  return begin_pass(registry->get(id, kBackwardOperation), head, registry->agent())->mark(keys);
}

rpc::Future<> run_pass(ContextId id, uint64_t number) {
  auto pass = part_here(id)->find_pass(number);
  check<GradError>(pass != nullptr, kBackwardOperation, "this worker has no part in the pass");
  pass->begin();
  return pass->done();
}

void take_gradients(ContextId id, uint64_t number, const std::string& key, const TensorList& gradients) {
  auto part = Registry::current(kBackwardOperation)->find(id);
  auto pass = part ? part->find_pass(number) : nullptr;
  if (!pass) return;  // it has failed, and who sends this will hear so
  try {
    pass->deliver(key, gradients);
  } catch (...) {
    pass->abort(std::current_exception());
  }
}

void join_context(ContextId id) {
  auto registry = Registry::current(kBackwardOperation);
  int rank = rpc::caller().rank;
  if (!registry->joined(id, rank)) (void)rpc::async<&release_context>(rank, id, registry->oldest(), std::string());
}

void release_context(ContextId id, uint64_t oldest, const std::string& why) {
  check<ValueError>(rpc::caller().rank == owner_of(id), "dist_autograd", "rank {} released a context of rank {}",
                    rpc::caller().rank, owner_of(id));
  Registry::current("dist_autograd")->release(id, oldest, why);
}

void fail_context(ContextId id, const std::string& why) {
  Registry::current("dist_autograd")->release_everywhere(id, std::make_exception_ptr(Error(why, kBackwardOperation)));
}

}  // namespace detail

// ---- Context

Context::Context() {
  auto part = detail::Registry::current("dist_autograd::Context")->make();
  scope_ = std::make_shared<detail::Scope>(part, detail::Path());
  outer_ = std::exchange(context().distributed_autograd, scope_);
}

Context::~Context() {
  if (context().distributed_autograd == scope_) context().distributed_autograd = outer_;
  // Where the session has ended before, so have its contexts.
  auto agent = rpc::detail::Agent::find();
  auto registry =
      agent ? std::static_pointer_cast<detail::Registry>(agent->companion([] { return nullptr; })) : nullptr;
  if (!registry) return;
  registry->release_everywhere(id(), nullptr);
  registry->forget(id());
}

ContextId Context::id() const { return scope_->part->id; }

ContextId current() {
  auto scope = detail::current_scope();
  check<ValueError>(scope != nullptr, "dist_autograd::current",
                    "this thread works in no context: make one, or call from within one");
  return scope->part->id;
}

// ---- Backward

void backward(ContextId context, const TensorList& losses, const BackwardOptions& options, std::source_location where) {
  detail::Started s = detail::start(context, losses, options, where);
  std::vector<int> ranks;
  try {
    ranks = s.marks.wait();
  } catch (...) {
    s.backward->fail_early(std::current_exception());
    throw;
  }
  s.backward->run(ranks);
  s.pass->proceed();
  // The others are waited for by calls of their own, which say who is late.
  auto result = s.backward->result();
  if (!result.wait_for(s.pass->head().timeout + std::chrono::seconds(2)))
    s.backward->fail(
        std::make_exception_ptr(TimeoutError(fmt::format("dist_autograd::backward: the pass took longer than {:.3g} s",
                                                         std::chrono::duration<double>(s.pass->head().timeout).count()),
                                             detail::kBackwardOperation)));
  result.wait();
}

rpc::Future<> backward_async(ContextId context, const TensorList& losses, const BackwardOptions& options,
                             std::source_location where) {
  detail::Started s = detail::start(context, losses, options, where);
  s.marks.core()->on_done_elsewhere([s, core = s.marks.core()] {
    if (core->error()) return s.backward->fail_early(core->error());
    s.backward->run(*core->value);
    s.pass->proceed();
  });
  return s.backward->result();
}

// ---- Gradients

GradientMap get_gradients(ContextId context) {
  return detail::Registry::current("get_gradients")->get(context, "get_gradients")->sink.all();
}
GradientSink& sink(ContextId context) {
  return detail::Registry::current("dist_autograd::sink")->get(context, "dist_autograd::sink")->sink;
}
Statistics statistics() { return detail::Registry::current("dist_autograd::statistics")->statistics(); }

}  // namespace tutti::dist_autograd
