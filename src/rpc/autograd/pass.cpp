#include "rpc/autograd/pass.h"

#include <algorithm>

#include "base/check.h"

namespace tutti::dist_autograd::detail {
namespace {

/// Messages about a pass are no part of any context.
tutti::Context outside(tutti::Context context) {
  context.distributed_autograd = nullptr;
  context.modes = kGradMode;
  return context;
}

rpc::Future<std::vector<int>> ready(std::vector<int> ranks) {
  rpc::Promise<std::vector<int>> promise;
  promise.set(std::move(ranks));
  return promise.future();
}

}  // namespace

Pass::Pass(std::shared_ptr<Part> part, const PassHead& head, const std::shared_ptr<rpc::detail::Agent>& agent)
    : part_(std::move(part)),
      head_(head),
      agent_(agent),
      context_(tutti::context()),
      task_(std::make_shared<GraphTask>(GraphTaskOptions{.keep_graph = head.retain_graph})) {
  context_.sink = &part_->sink;
}

std::shared_ptr<Pass> Pass::current() {
  auto scope = current_scope();
  return scope ? scope->pass.lock() : nullptr;
}

std::chrono::nanoseconds Pass::timeout() const {
  auto agent = agent_.lock();
  return agent && agent->timeout() == head_.timeout ? std::chrono::nanoseconds() : head_.timeout;
}

/// Gradients on their way to a worker of this process.
class Pass::Errand {
 public:
  Errand(std::weak_ptr<Pass> pass, int peer, std::string key, TensorList gradients)
      : pass_(std::move(pass)), peer_(peer), key_(std::move(key)), gradients_(std::move(gradients)) {}
  void run() {
    if (begun_.exchange(true)) return;
    TensorList gradients = std::move(gradients_);
    auto pass = pass_.lock();
    if (!pass || pass->ended()) return;  // who would have got them hears that it has failed
    ContextGuard guard(context_);
    rpc::detail::NoWaitForCredit whoever_runs_this;
    try {
      pass->carry(peer_, key_, gradients, true);
    } catch (...) {
      pass->took(std::current_exception());
    }
  }

 private:
  const std::weak_ptr<Pass> pass_;
  const int peer_;
  const std::string key_;
  TensorList gradients_;
  const tutti::Context context_ = tutti::context();  // of who sends them
  std::atomic<bool> begun_{false};
};

// ---- The first half

// All that can be reached and has not been. Where it came from elsewhere, there is more to see.
void Pass::explore(Node* from, Marks& marks) {
  std::vector<Node*> left = {from};
  visited_.insert(from);
  while (!left.empty()) {
    Node* node = left.back();
    left.pop_back();
    for (auto& edge : node->edges)
      if (edge.node && visited_.insert(edge.node.get()).second) left.push_back(edge.node.get());
    if (!node->edges.empty()) continue;
    auto* received = dynamic_cast<ReceiveNode*>(node);
    if (received && reached_.insert(received).second) marks[received->peer()].push_back(received->key());
  }
}

rpc::Future<std::vector<int>> Pass::tell(const Marks& marks) {
  std::vector<rpc::Future<std::vector<int>>> answers;
  for (const auto& [rank, keys] : marks)
    answers.push_back(ask<&mark_sends>({rank, timeout(), where_}, part_->id, head_, keys));
  if (answers.size() == 1) return answers[0];
  return rpc::all(answers).then([](const std::vector<std::vector<int>>& lists) {
    std::set<int> ranks;
    for (const auto& list : lists) ranks.insert(list.begin(), list.end());
    return std::vector<int>(ranks.begin(), ranks.end());
  });
}

rpc::Future<std::vector<int>> Pass::start(const TensorList& losses, const TensorList& gradients, const Path& path,
                                          const rpc::To::Where& where) {
  Marks marks;
  {
    std::lock_guard lock(mutex_);
    starts_here_ = true;
    path_ = path;
    where_ = where;
    add_roots(*task_, losses, gradients, kBackwardOperation);
    for (const Tensor& loss : losses)
      if (Node* node = loss.grad_node(); node && visited_.insert(node).second) explore(node, marks);
  }
  ContextGuard guard(outside(tutti::context()));
  return marks.empty() ? ready({}) : tell(marks);
}

rpc::Future<std::vector<int>> Pass::mark(const std::vector<std::string>& keys) {
  Marks marks;
  {
    std::lock_guard lock(mutex_);
    check<GradError>(!ended_ && !begun_, kBackwardOperation, "a pass that has begun cannot grow");
    for (const std::string& key : keys) {
      Ref<SendNode> node = part_->send(key);
      if (expected_.emplace(key, node).second) explore(node.get(), marks);
    }
  }
  std::vector<int> mine = {rpc::this_worker().rank};
  if (marks.empty()) return ready(mine);
  return tell(marks).then([mine](std::vector<int> ranks) {
    ranks.insert(ranks.end(), mine.begin(), mine.end());
    return ranks;
  });
}

// ---- The second half

void Pass::begin() {
  std::lock_guard lock(mutex_);
  if (begun_ || ended_) return;
  begun_ = true;
  auto scope = std::make_shared<Scope>(part_, path_below("\xff\xff\xff\xff", static_cast<uint32_t>(head_.number)));
  scope->pass = weak_from_this();
  context_.distributed_autograd = scope;
  visited_.clear();
  // Note [Keys]: groups, latest first, after that of the losses.
  std::vector<std::pair<std::string, SendNode*>> nodes;
  for (auto& [key, node] : expected_) nodes.emplace_back(key, node.get());
  auto first = [&](const SendNode& n) { return starts_here_ && n.maker() == path_; };
  std::sort(nodes.begin(), nodes.end(), [&](const auto& a, const auto& b) {
    return std::tuple(first(*a.second), a.second->maker(), a.first) >
           std::tuple(first(*b.second), b.second->maker(), b.first);
  });
  uint32_t group = 0;
  const Path* maker = nullptr;
  for (auto& [key, node] : nodes) {
    if (!first(*node) && (!maker || *maker != node->maker())) {
      ++group;
      maker = &node->maker();
    }
    for (uint32_t i = 0; i < node->outputs; ++i) task_->expect(Ref<Node>(node), group);
  }
  task_->open();
}

void Pass::proceed() {
  if (wanted_.fetch_add(1) > 0) return;
  uint32_t seen = 0;
  do {
    seen = wanted_.load();
    step();
  } while (wanted_.fetch_sub(seen) != seen);
  run_errands();
}

void Pass::step() {
  std::shared_ptr<GraphTask> task;
  tutti::Context context;
  {
    std::lock_guard lock(mutex_);
    if (ended_ || !begun_) return;
    task = task_;
    context = context_;
  }
  ContextGuard guard(std::move(context));
  try {
    if (!task->proceed()) return;
    {
      std::lock_guard lock(mutex_);
      through_ = true;
      if (on_their_way_ > 0) return;  // took() ends it
    }
    end(nullptr);
  } catch (...) {
    end(std::current_exception());
  }
}

void Pass::deliver(const std::string& key, TensorList gradients) {
  Ref<SendNode> node;
  std::shared_ptr<GraphTask> task;
  begin();
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    auto it = expected_.find(key);
    check<GradError>(it != expected_.end() && arrived_.insert(key).second, kBackwardOperation,
                     "a gradient came that is none of this pass");
    node = it->second;
    task = task_;
  }
  node->accept(gradients);
  for (uint32_t i = 0; i < gradients.size(); ++i) task->deliver({Ref<Node>(node.get()), i}, std::move(gradients[i]));
  proceed();
}

void Pass::send_back(const ReceiveNode& node, TensorList gradients) {
  {
    std::lock_guard lock(mutex_);
    check<GradError>(reached_.erase(&node) == 1, kBackwardOperation,
                     "a backward pass came to a tensor from rank {} that it did not lead to when it began: functions "
                     "that run again in backward (checkpoint) cannot call other workers",
                     node.peer());
    ++on_their_way_;
  }
  ContextGuard guard(outside(tutti::context()));
  auto errand = std::make_shared<Errand>(weak_from_this(), node.peer(), node.key(), gradients);
  auto agent = agent_.lock();
  if (!agent || !agent->post_to(agent->number_of(rpc::To(node.peer())), [errand] { errand->run(); }))
    return carry(node.peer(), node.key(), gradients, false);
  std::lock_guard lock(mutex_);
  if (!ended_) errands_.push_back(std::move(errand));
}

void Pass::carry(int peer, const std::string& key, const TensorList& gradients, bool here) {
  rpc::To to(peer, timeout(), where_);
  auto sent = here ? ask<&take_gradients>(to, part_->id, head_.number, key, gradients)
                   : rpc::async<&take_gradients>(to, part_->id, head_.number, key, gradients);
  sent.core()->on_done([self = weak_from_this(), core = sent.core()] {
    if (auto pass = self.lock()) pass->took(core->error());
  });
}

void Pass::run_errands() {
  while (true) {
    std::shared_ptr<Errand> errand;
    {
      std::lock_guard lock(mutex_);
      if (errands_.empty()) return;
      errand = std::move(errands_.back());
      errands_.pop_back();
    }
    errand->run();
  }
}

void Pass::took(const std::exception_ptr& error) {
  if (error) return abort(error);
  {
    std::lock_guard lock(mutex_);
    if (--on_their_way_ > 0 || !through_) return;
  }
  end(nullptr);
}

void Pass::abort(const std::exception_ptr& error) {
  std::shared_ptr<GraphTask> task;
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    if (begun_ && !through_) task = task_;
  }
  if (!task) return end(error);
  task->cancel(error);
  // By another thread: this one may hold locks, or run nodes of this very pass.
  auto agent = agent_.lock();
  if (!agent || !agent->post([self = shared_from_this()] { self->proceed(); })) proceed();
}

void Pass::end(const std::exception_ptr& error) {
  std::shared_ptr<GraphTask> task;
  std::unordered_map<std::string, Ref<SendNode>> expected;
  std::vector<std::shared_ptr<Errand>> errands;
  tutti::Context context;
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = true;
    task.swap(task_);
    expected.swap(expected_);
    errands.swap(errands_);
    std::swap(context, context_);
    visited_.clear();
    reached_.clear();
  }
  error ? done_.fail(error) : done_.set();
}

}  // namespace tutti::dist_autograd::detail
