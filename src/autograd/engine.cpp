#include "autograd/engine.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "autograd/meta.h"
#include "base/check.h"
#include "base/spin.h"
#include "base/workers.h"
#include "tutti/ops.h"
#include "tutti/random.h"
#include "tutti/trace.h"

namespace tutti {
namespace {

int device_key(Device d) { return static_cast<int>(d.kind) << 16 | d.index; }

size_t hash_node(const Node* node) {
  auto h = reinterpret_cast<uintptr_t>(node) >> 6;
  return h * 0x9E3779B97F4A7C15ull >> 20;
}

constexpr int kMaxDepth = 40;
thread_local int depth = 0;  // backward passes that this thread is inside of

struct DepthGuard {
  DepthGuard() { ++depth; }
  ~DepthGuard() { --depth; }
};

// The outermost of those passes, also in the threads that work for it.
thread_local GraphTask* current_pass = nullptr;

struct PassGuard {
  explicit PassGuard(GraphTask* pass) : saved(std::exchange(current_pass, pass)) {}
  ~PassGuard() { current_pass = saved; }
  PassGuard(const PassGuard&) = delete;
  PassGuard& operator=(const PassGuard&) = delete;
  GraphTask* saved;
};

// Gradients of one output that came along several edges add up; the buffer may be reused if nobody else has it.
void add_gradient(Tensor& sum, Tensor gradient, bool create_graph) {
  if (!sum.defined()) {
    sum = std::move(gradient);
    return;
  }
  bool mine = !create_graph && !sum.is_sparse() && !gradient.is_sparse() &&
              impl(sum)->references.load(std::memory_order_relaxed) == 1 &&
              impl(sum)->storage->references.load(std::memory_order_relaxed) == 1 && sum.dtype() == gradient.dtype() &&
              !overlaps_itself(sum.sizes(), sum.strides());
  if (mine)
    sum.add_(gradient);
  else
    sum = sum + gradient;
}

// What hooks made of the gradients, which must still fit where they go.
void take_changed(const char* what, GradientBuffer& gradients, const Gradients& changed) {
  check<ValueError>(changed.size() == gradients.size(), what, "the hook left {} gradients where there were {}",
                    changed.size(), gradients.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (changed[i].defined() && gradients[i].defined()) check_replacement(what, changed[i], gradients[i]);
    gradients[i] = changed[i];
  }
}

bool has_nan(const Tensor& g) {
  if (!g.defined() || g.device().is_meta()) return false;
  ModeGuard untraced(0, kTraceMode);  // reading a value here is no part of what is computed
  return isnan(g.is_sparse() ? g.values() : g).any().item<bool>();
}
const char* origin_of(const Node& node) {
  return node.origin ? node.origin->c_str() : "  (made outside of anomaly mode)\n";
}
void check_given(const Node& node, const GradientBuffer& gradients, const char* why) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!has_nan(gradients[i])) continue;
    if (auto* leaf = dynamic_cast<const AccumulateNode*>(&node))
      fail<GradError>("backward", "the gradients that come to the leaf {} {}", leaf->leaf(), why);
    fail<GradError>("backward", "the gradients that come to output {} of '{}' {}. Its forward was called at:\n{}", i,
                    node.name(), why, origin_of(node));
  }
}
void check_made(const Node& node, const GradientBuffer& gradients) {
  for (size_t i = 0; i < gradients.size(); ++i)
    if (has_nan(gradients[i]))
      fail<GradError>("backward", "'{}' gave NaN as the gradient of its input {}. Its forward was called at:\n{}",
                      node.name(), i, origin_of(node));
}

}  // namespace

void GraphTask::add_root(const Edge& edge, Tensor gradient) {
  if (edge.node) roots_.emplace_back(edge, std::move(gradient));
}
void GraphTask::capture(const Edge& edge) { captures_.push_back({edge.node, edge.output, {}, {}}); }
void GraphTask::expect(const Ref<Node>& node, uint32_t group) { expected_.emplace_back(node, group); }

uint32_t GraphTask::find(const Node* node) const {
  size_t mask = table_.size() - 1;
  for (size_t i = hash_node(node) & mask; table_[i]; i = (i + 1) & mask)
    if (pending_[table_[i] - 1].node.get() == node) return table_[i] - 1;
  return UINT32_MAX;
}

void GraphTask::grow_table() {
  table_.assign(std::max<size_t>(64, table_.size() * 2), 0);
  size_t mask = table_.size() - 1;
  for (uint32_t k = 0; k < pending_.size(); ++k) {
    size_t i = hash_node(pending_[k].node.get()) & mask;
    while (table_[i]) i = (i + 1) & mask;
    table_[i] = k + 1;
  }
}

uint32_t GraphTask::find_or_add(Node* node) {
  if ((pending_.size() + 1) * 2 > table_.size()) grow_table();
  size_t mask = table_.size() - 1;
  size_t i = hash_node(node) & mask;
  for (; table_[i]; i = (i + 1) & mask)
    if (pending_[table_[i] - 1].node.get() == node) return table_[i] - 1;
  pending_.emplace_back().node = Ref<Node>(node);
  table_[i] = static_cast<uint32_t>(pending_.size());
  return static_cast<uint32_t>(pending_.size() - 1);
}

// Visits nodes from `next` on, and those that they lead to.
void GraphTask::count_edges(uint32_t& next, uint32_t group) {
  for (; next < pending_.size(); ++next) {
    pending_[next].group = group;
    Node* node = pending_[next].node.get();
    for (auto& edge : node->edges)
      if (edge.node) ++pending_[find_or_add(edge.node.get())].dependencies;
  }
}

// Visits all nodes that the roots can reach and counts the edges into each. A node belongs to the first group that
// reaches it.
void GraphTask::prepare() {
  grow_table();
  uint32_t next = 0;
  for (auto& [edge, gradient] : roots_) ++pending_[find_or_add(edge.node.get())].dependencies;
  count_edges(next, 0);
  for (auto& [node, group] : expected_) {
    ++pending_[find_or_add(node.get())].dependencies;
    count_edges(next, group);
  }
  for (auto& c : captures_)
    if (c.node) pending_[find_or_add(c.node.get())].captured = true;
  if (!captures_.empty()) find_needed();
  outstanding_ = 0;
  for (auto& p : pending_) outstanding_ += p.dependencies > 0;
}

// Only nodes from which a captured place can be reached have to run. Edges lead to lower numbers, so going up the
// numbers sees every node after those it leads to.
void GraphTask::find_needed() {
  if (!options_.captures_only) {
    for (auto& p : pending_) p.needed = !p.captured;
    return;
  }
  std::vector<uint32_t> order(pending_.size());
  for (uint32_t k = 0; k < order.size(); ++k) order[k] = k;
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return pending_[a].node->sequence < pending_[b].node->sequence; });
  for (uint32_t k : order) {
    Pending& p = pending_[k];
    p.needed = false;
    for (auto& edge : p.node->edges) {
      if (!edge.node) continue;
      const Pending& next = pending_[find(edge.node.get())];
      p.needed = p.needed || next.needed || next.captured;
    }
  }
}

void GraphTask::push(uint32_t index) {
  Node* node = pending_[index].node.get();
  Queue& queue = only_ ? *only_ : queues_[device_key(node->device)];
  // Leaves come first: whoever waits for a gradient gets it as soon as it is known, even if the leaf's node is an old
  // one that another graph has kept alive.
  uint64_t first = node->edges.empty() ? uint64_t{1} << 63 : 0;
  queue.heap.push_back({node->sequence | first, index});
  std::push_heap(queue.heap.begin(), queue.heap.end());
  if (threaded_) queue.call();
}

void GraphTask::arrive(uint32_t index, uint32_t output, Tensor gradient, const Source& from) {
  Pending& p = pending_[index];
  if (apart(p)) [[unlikely]] {
    p.arrivals.push_back({from, output, std::move(gradient)});
  } else if (gradient.defined()) {
    p.any = true;
    if (threaded_) {
      p.arrivals.push_back({from, output, std::move(gradient)});
    } else {
      if (p.gradients.empty()) p.gradients.resize(p.node->outputs);
      add_gradient(p.gradients[output], std::move(gradient), options_.create_graph);
    }
  }
  TUTTI_ASSERT(p.dependencies > 0);
  if (--p.dependencies == 0) push(index);
}

// Adds up what several workers brought, in an order that does not depend on who came first.
void GraphTask::settle(Pending& p) {
  std::sort(p.arrivals.begin(), p.arrivals.end(), [](auto& a, auto& b) { return a.from < b.from; });
  p.gradients.resize(p.node->outputs);
  for (auto& a : p.arrivals) add_gradient(p.gradients[a.output], std::move(a.gradient), options_.create_graph);
  p.arrivals.clear();
}

void GraphTask::keep_apart(Pending& p) {
  if (threaded_) std::sort(p.arrivals.begin(), p.arrivals.end(), [](auto& a, auto& b) { return a.from < b.from; });
  for (auto& a : p.arrivals)
    for (auto& c : captures_)
      if (c.node == p.node && c.output == a.output) c.arrived.push_back(a.gradient);
}

void run_node(Node& node, GradientBuffer& outputs, GradientBuffer& inputs, const NodeRun& how) {
  bool hooks = node.has_hooks() && !how.ends;
  const bool anomalies = context().modes & kAnomalyMode;
  if (anomalies) [[unlikely]]
    check_given(node, outputs, "are NaN together (infinities of both signs?), or were given so");
  if (!how.ends) node.before(outputs);
  if (hooks) {
    Gradients list(outputs.begin(), outputs.end());
    node.hooks().before.each([&](auto& hook) { hook(list); });
    take_changed("register_pre_hook", outputs, list);
    node.hooks().retain.each([&](auto& hook) { hook(list); });
  }
  if (anomalies) [[unlikely]]
    check_given(node, outputs, "are NaN after a hook has changed them");
  if (how.seen) how.seen(outputs);
  if (!how.needed) return;
  Gradients seen;
  if (node.has_hooks()) seen.assign(outputs.begin(), outputs.end());
  // Whoever traces takes tensors of one memory for parts of one thing, which gradients in a bucket are not.
  if (Homes* homes = homes_of_pass(); homes && homes->any() && !tracing()) [[unlikely]]
    homes->run(node, outputs, inputs);
  else
    node.run(outputs, inputs);
  if (node.has_hooks()) {
    Gradients list(inputs.begin(), inputs.end());
    node.hooks().after.each([&](auto& hook) { hook(list, seen); });
    take_changed("register_post_hook", inputs, list);
  }
  if (anomalies) [[unlikely]]
    check_made(node, inputs);
}

void GraphTask::evaluate(uint32_t index, std::unique_lock<std::mutex>* lock) {
  Pending& p = pending_[index];
  Node* node = p.node.get();  // pending_ keeps it until the pass ends
  bool any = p.any, needed = p.needed, captured = p.captured;
  uint32_t group = p.group;
  if (apart(p)) keep_apart(p);
  if (lock) lock->unlock();
  if (threaded_ && any) settle(p);
  GradientBuffer outputs = std::move(p.gradients);
  GradientBuffer inputs(node->edges.size());
  if (any) {
    std::optional<Visit> visit;
    if (needed) visit.emplace(*node, !options_.keep_graph);
    if (visit && visit->alone()) node->free_soon(true);
    NodeRun how{.needed = needed, .ends = captured && !options_.captures_only};
    if (captured)
      how.seen = [&](const GradientBuffer& gradients) {
        for (auto& c : captures_)
          if (c.node.get() == node) c.gradient = gradients[c.output];
      };
    Tracer* tracer = tracing();
    if (!tracer || how.ends || !needed ||
        !tracer->node(*node, outputs.span(), inputs.span(), [&] { run_node(*node, outputs, inputs, how); }))
      run_node(*node, outputs, inputs, how);
    if (visit) visit->free_saved();
  } else {
    node->no_gradient();
  }
  outputs.clear();
  if (lock) lock->lock();
  for (uint32_t i = 0; i < node->edges.size(); ++i) {
    const Edge& edge = node->edges[i];
    if (edge.node) arrive(find(edge.node.get()), edge.output, std::move(inputs[i]), {group, node->sequence, index, i});
  }
  --outstanding_;
}

void GraphTask::run_here() {
  while (!only_->heap.empty()) {
    std::pop_heap(only_->heap.begin(), only_->heap.end());
    Ready next = only_->heap.back();
    only_->heap.pop_back();
    evaluate(next.index, nullptr);
  }
}

void GraphTask::work(Queue& queue, bool spin) {
  std::unique_lock lock(mutex_);
  auto due = [&] { return error_ || outstanding_ == 0 || !queue.heap.empty(); };
  while (true) {
    if (spin && !due() && Workers::instance().may_spin()) {
      uint32_t seen = queue.calls.load(std::memory_order_relaxed);
      lock.unlock();
      look_for_a_while([&] { return queue.calls.load(std::memory_order_relaxed) != seen; });
      lock.lock();
    }
    queue.wake.wait(lock, due);
    if (error_ || outstanding_ == 0) break;
    std::pop_heap(queue.heap.begin(), queue.heap.end());
    Ready next = queue.heap.back();
    queue.heap.pop_back();
    try {
      evaluate(next.index, &lock);
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      if (!error_) error_ = std::current_exception();
    }
    if (error_ || outstanding_ == 0)
      for (auto& [key, other] : queues_) other.call();
  }
}

void GraphTask::run_workers() {
  generator();  // made before the context is copied, so that all of them draw from one
  Context mine = context();
  std::function<void()> here;
  Jobs jobs;
  const bool spin = serves_itself(mine);  // Note [Waits between devices]
  try {
    for (auto& [key, queue] : queues_) {
      Device device(static_cast<DeviceKind>(key >> 16), key & 0xffff);
      auto serve = [this, mine, device, spin, pass = current_pass, &queue = queue]() mutable {
        PassGuard inside(pass);
        mine.device = device;
        if (mine.threads > 0) mine.threads = std::max(1, std::min(mine.threads, cores_of(device)));
        ContextGuard guard(mine);
        work(queue, spin);
      };
      if (device == mine.device && spin)
        here = std::move(serve);
      else
        jobs.start(device, std::move(serve));
    }
    if (here) serve_here(mine.device, here);
  } catch (...) {  // no more threads to be had: those that were wait for what will not come
    cancel(std::current_exception());
    throw;
  }
  jobs.wait(spin);
}

void GraphTask::deliver(const Edge& edge, Tensor gradient) {
  std::lock_guard lock(mutex_);
  if (error_) return;
  if (!prepared_) {
    early_.emplace_back(edge, std::move(gradient));
    return;
  }
  uint32_t index = find(edge.node.get());
  arrive(index, edge.output, std::move(gradient), {pending_[index].group, UINT64_MAX, 0, 0});
}

void GraphTask::cancel(std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  for (auto& [key, queue] : queues_) queue.call();
}

bool after_backward(std::function<void(bool)> f, uint64_t order) {
  GraphTask* pass = current_pass;
  if (!pass || !pass->accumulates()) return false;
  std::lock_guard lock(pass->mutex_);
  pass->callbacks_.emplace(order, std::move(f));
  return true;
}

Homes* homes_of_pass() { return current_pass ? &current_pass->homes_ : nullptr; }

void GraphTask::run_callbacks(bool well) {
  while (true) {  // one may ask for another
    std::function<void(bool)> next;
    {
      std::lock_guard lock(mutex_);
      if (callbacks_.empty()) return;
      next = std::move(callbacks_.begin()->second);
      callbacks_.erase(callbacks_.begin());
    }
    next(well);
  }
}

template <class F>
void GraphTask::run_whole(const F& f) {
  // One of grad() has no end that anybody could ask for: in it, one that accumulates is the outermost.
  if (current_pass && (current_pass->accumulates() || !accumulates())) return f();
  PassGuard outermost(this);
  try {
    f();
    if (callbacks_.empty()) return;
    ModeGuard mode(options_.create_graph ? uint32_t{kGradMode} : 0, options_.create_graph ? kInferenceMode : kGradMode);
    run_callbacks(true);
  } catch (...) {
    run_callbacks(false);
    throw;
  }
}

void GraphTask::run() {
  run_whole([&] { run_nodes(); });
}
void GraphTask::run_instead(const std::function<void()>& f) { run_whole(f); }

// What is there already arrives.
void GraphTask::begin() {
  prepared_ = true;
  uint32_t root = 0;
  for (auto* list : {&roots_, &early_})
    for (auto& [edge, gradient] : *list) {
      uint32_t index = find(edge.node.get());
      arrive(index, edge.output, std::move(gradient), {pending_[index].group, UINT64_MAX, 0, root++});
    }
}

void GraphTask::open() {
  std::lock_guard lock(mutex_);
  prepare();
  threaded_ = true;  // gradients come in any order
  only_ = &queues_[0];
  begin();
}

bool GraphTask::proceed() {
  PassGuard outermost(this);
  DepthGuard nested;
  ModeGuard mode(options_.create_graph ? uint32_t{kGradMode} : 0, options_.create_graph ? kInferenceMode : kGradMode);
  try {
    std::unique_lock lock(mutex_);
    while (!error_ && !only_->heap.empty()) {
      std::pop_heap(only_->heap.begin(), only_->heap.end());
      Ready next = only_->heap.back();
      only_->heap.pop_back();
      DeviceGuard there(pending_[next.index].node->device);
      evaluate(next.index, &lock);
    }
    if (error_) std::rethrow_exception(error_);
    if (outstanding_ > 0) return false;
    lock.unlock();
    run_callbacks(true);
    return true;
  } catch (...) {
    cancel(std::current_exception());
    run_callbacks(false);
    throw;
  }
}

void GraphTask::run_nodes() {
  // Passes started from within hooks nest; beyond a depth the stack is somebody else's.
  if (depth >= kMaxDepth) {
    std::exception_ptr error;
    generator();
    Context mine = context();
    Jobs job;
    job.start(mine.device, [&, pass = current_pass] {
      PassGuard inside(pass);
      ContextGuard guard(mine);
      try {
        run_nodes();
      } catch (...) {
        error = std::current_exception();
      }
    });
    job.wait();
    if (error) std::rethrow_exception(error);
    return;
  }
  DepthGuard nested;
  ModeGuard mode(options_.create_graph ? uint32_t{kGradMode} : 0, options_.create_graph ? kInferenceMode : kGradMode);
  {
    std::unique_lock lock(mutex_);
    prepare();
    for (auto& p : pending_) queues_[device_key(p.node->device)];
    threaded_ = queues_.size() > 1 || !expected_.empty();
    if (!threaded_ && !queues_.empty()) only_ = &queues_.begin()->second;
    begin();
  }
  if (queues_.empty()) return;
  if (threaded_)
    run_workers();
  else
    run_here();
  if (error_) std::rethrow_exception(error_);
}

}  // namespace tutti
