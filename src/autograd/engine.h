// GraphTask: one backward pass. Started with roots, fed with gradients from outside as they arrive, told where to stop,
// and awaited. Local backward, grad(), distributed backward and compiled backward are callers of it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "autograd/homes.h"
#include "autograd/node.h"
#include "tutti/context.h"

namespace tutti {

struct GraphTaskOptions {
  bool keep_graph = false;    // nodes keep what they saved
  bool create_graph = false;  // record the backward pass itself
  bool captures_only = true;  // with captures: run only what leads to them; else run all, but nothing beyond them
  bool add_captures = true;   // false, where the pass ends: what comes along each edge is kept apart, see arrived()
};

class GraphTask {
 public:
  explicit GraphTask(GraphTaskOptions options) : options_(options) {}
  GraphTask(const GraphTask&) = delete;
  GraphTask& operator=(const GraphTask&) = delete;

  /// A place where gradients enter.
  void add_root(const Edge& edge, Tensor gradient);
  /// Gradients that reach this edge are kept; see captured() and `captures_only`.
  void capture(const Edge& edge);
  const Tensor& captured(size_t k) const { return captures_[k].gradient; }
  /// What came along each edge to a captured place, in order; undefined tensors where no gradient did.
  const TensorList& arrived(size_t k) const { return captures_[k].arrived; }

  /// One more gradient for `node` will come by deliver(), from another thread; run() waits for it. Before run(). Nodes
  /// that several threads made are not numbered in an order that means anything: each thread's nodes are a group,
  /// numbered upwards from the roots' 0, and gradients that meet are added group by group. Groups come in order here.
  void expect(const Ref<Node>& node, uint32_t group = 0);
  void deliver(const Edge& edge, Tensor gradient);
  /// Ends the pass: run(), or the next proceed(), throws this error.
  void cancel(std::exception_ptr error);

  /// Runs all of it: in this thread if one device takes part, else with a worker for each. Rethrows the first error.
  void run();
  /// Runs `f` in the place of nodes, as all that this pass does: passes that it starts are parts of it, and at its end
  /// those who asked for that (after_backward) are called. For passes that are known beforehand.
  void run_instead(const std::function<void()>& f);
  /// The same for callers that do not wait: after open(), proceed() runs what is ready, in this thread, and says
  /// whether that was all of it. There may be more to do after a deliver(). One thread at a time; not again after an
  /// error.
  void open();
  bool proceed();
  /// Whether gradients that reach leaves are accumulated there, as grad() does not.
  bool accumulates() const { return captures_.empty() || !options_.captures_only; }

 private:
  /// Where a gradient came from. Those of the highest numbers come first, as they do where one thread runs all. Nodes
  /// that several threads have made may have the same number: then the one that the roots reach first.
  struct Source {
    uint32_t group;
    uint64_t sequence;
    uint32_t sender;  // index in pending_
    uint32_t edge;
    friend bool operator<(const Source& a, const Source& b) {
      return std::tie(a.group, b.sequence, a.sender, a.edge) < std::tie(b.group, a.sequence, b.sender, b.edge);
    }
  };
  struct Pending {
    Ref<Node> node;
    uint32_t dependencies = 0;  // edges into the node that have not yet brought their gradient
    bool needed = true;
    bool any = false;  // a gradient has arrived
    bool captured = false;
    uint32_t group = 0;
    GradientBuffer gradients;
    // With several workers gradients arrive in any order; they are added in the order of the nodes that sent them.
    struct Arrival {
      Source from;
      uint32_t output;
      Tensor gradient;
    };
    std::vector<Arrival> arrivals;
  };
  struct Ready {
    uint64_t sequence;
    uint32_t index;
    friend bool operator<(const Ready& a, const Ready& b) { return a.sequence < b.sequence; }
  };
  struct Queue {
    std::vector<Ready> heap;
    std::condition_variable wake;
    std::atomic<uint32_t> calls = 0;  // how often it was woken
    void call() {
      calls.fetch_add(1, std::memory_order_relaxed);
      wake.notify_all();
    }
  };
  struct Capture {
    Ref<Node> node;
    uint32_t output;
    Tensor gradient;
    TensorList arrived = {};
  };

  friend bool after_backward(std::function<void(bool)> f, uint64_t order);
  friend Homes* homes_of_pass();
  template <class F>
  void run_whole(const F& f);
  void run_nodes();
  void run_callbacks(bool well);
  uint32_t find_or_add(Node* node);
  uint32_t find(const Node* node) const;
  void grow_table();
  void prepare();
  void find_needed();
  void push(uint32_t index);
  void begin();
  void count_edges(uint32_t& next, uint32_t group);
  void arrive(uint32_t index, uint32_t output, Tensor gradient, const Source& from);
  void settle(Pending& pending);
  void keep_apart(Pending& pending);
  bool apart(const Pending& p) const { return p.captured && !options_.captures_only && !options_.add_captures; }
  void evaluate(uint32_t index, std::unique_lock<std::mutex>* lock);
  void run_here();
  void run_workers();
  void work(Queue& queue, bool spin);

  GraphTaskOptions options_;
  std::vector<Pending> pending_;
  std::vector<uint32_t> table_;  // open addressing: index + 1 into pending_
  std::vector<std::pair<Edge, Tensor>> roots_;
  std::vector<Capture> captures_;
  std::vector<std::pair<Ref<Node>, uint32_t>> expected_;  // and their groups
  std::vector<std::pair<Edge, Tensor>> early_;            // delivered before run()
  bool prepared_ = false;
  uint64_t outstanding_ = 0;  // nodes that have yet to be evaluated
  bool threaded_ = false;
  std::mutex mutex_;
  std::map<int, Queue> queues_;  // by device
  Queue* only_ = nullptr;
  std::exception_ptr error_;
  std::multimap<uint64_t, std::function<void(bool)>> callbacks_;  // of the outermost task: see after_backward()
  Homes homes_;                                                   // of the outermost task too
};

/// What a pass does with one node: hooks before it, the node, hooks after it. `ends`: a place where a pass within
/// another one ends; what happens there is the outer one's.
struct NodeRun {
  bool needed = true, ends = false;
  std::function<void(const GradientBuffer&)> seen = {};  // called with the gradients when hooks have changed them
};
void run_node(Node& node, GradientBuffer& outputs, GradientBuffer& inputs, const NodeRun& how = {});

/// From within a hook or node: calls f when the backward pass that this thread works for has run, before it returns.
/// The pass is the outermost: one that a node starts itself (checkpointing) is part of it. f is told whether it went
/// well; if so, what f throws is thrown by the pass. False, and nothing will be called: there is no pass, or it is one
/// of grad(), which accumulates nothing. Those of a lower `order` are called before others, whoever asked first.
bool after_backward(std::function<void(bool well)> f, uint64_t order = 0);

/// Roots for backward from `outputs`; undefined gradients, or none at all, stand for 1. Throws what cannot be.
void add_roots(GraphTask& task, const TensorList& outputs, const TensorList& gradients, const char* operation);

/// `gradient` as a sink may keep it for this leaf: as it is if nobody else can see or change it, else a copy. That of a
/// dense leaf has the leaf's strides. `recording`: gradients of gradients are wanted, so that it keeps its history.
Tensor owned_gradient(const Tensor& leaf, Tensor gradient, bool recording);

/// Runs backward from these roots, accumulating leaves as usual, but gradients that reach `inputs` are returned instead
/// and go no further.
TensorList backward_until(const TensorList& roots, const TensorList& gradients, const TensorList& inputs,
                          bool create_graph);

}  // namespace tutti
