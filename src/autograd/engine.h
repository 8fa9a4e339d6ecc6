// GraphTask: one backward pass. Started with roots, fed with gradients from outside as they arrive, told where to stop,
// and awaited. Local backward, grad(), distributed backward and compiled backward are callers of it.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "autograd/homes.h"
#include "autograd/node.h"
#include "tutti/context.h"

namespace tutti {

struct GraphTaskOptions {
  bool keep_graph = false;    // nodes keep what they saved
  bool create_graph = false;  // record the backward pass itself
  bool captures_only = true;  // with captures: run only what leads to them; else run all, but nothing beyond them
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

  /// One more gradient for `node` will come by deliver(), from another thread; run() waits for it. Before run().
  void expect(const Ref<Node>& node);
  void deliver(const Edge& edge, Tensor gradient);
  /// Ends the pass: run() throws this error.
  void cancel(std::exception_ptr error);

  /// Runs all of it: in this thread if one device takes part, else with a worker for each. Rethrows the first error.
  void run();
  /// Whether gradients that reach leaves are accumulated there, as grad() does not.
  bool accumulates() const { return captures_.empty() || !options_.captures_only; }

 private:
  struct Pending {
    Ref<Node> node;
    uint32_t dependencies = 0;  // edges into the node that have not yet brought their gradient
    bool needed = true;
    bool any = false;  // a gradient has arrived
    bool captured = false;
    GradientBuffer gradients;
    // With several workers gradients arrive in any order; they are added in the order of the nodes that sent them.
    struct Arrival {
      uint64_t sequence;
      uint32_t edge, output;
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
  };
  struct Capture {
    Ref<Node> node;
    uint32_t output;
    Tensor gradient;
  };

  friend bool after_backward(std::function<void(bool)> f);
  friend Homes* homes_of_pass();
  void run_nodes();
  void run_callbacks(bool well);
  uint32_t find_or_add(Node* node);
  uint32_t find(const Node* node) const;
  void grow_table();
  void prepare();
  void find_needed();
  void push(uint32_t index);
  void arrive(uint32_t index, uint32_t output, Tensor gradient, uint64_t sequence, uint32_t edge);
  void settle(Pending& pending);
  void evaluate(uint32_t index, std::unique_lock<std::mutex>* lock);
  void run_here();
  void run_workers();
  void work(Queue& queue);

  GraphTaskOptions options_;
  std::vector<Pending> pending_;
  std::vector<uint32_t> table_;  // open addressing: index + 1 into pending_
  std::vector<std::pair<Edge, Tensor>> roots_;
  std::vector<Capture> captures_;
  std::vector<Ref<Node>> expected_;
  std::vector<std::pair<Edge, Tensor>> early_;  // delivered before run()
  bool prepared_ = false;
  uint64_t outstanding_ = 0;  // nodes that have yet to be evaluated
  bool threaded_ = false;
  std::mutex mutex_;
  std::map<int, Queue> queues_;  // by device
  Queue* only_ = nullptr;
  std::exception_ptr error_;
  std::vector<std::function<void(bool)>> callbacks_;  // of the outermost task: see after_backward()
  Homes homes_;                                       // of the outermost task too
};

/// From within a hook or node: calls f when the backward pass that this thread works for has run, before it returns.
/// The pass is the outermost: one that a node starts itself (checkpointing) is part of it. f is told whether it went
/// well; if so, what f throws is thrown by the pass. False, and nothing will be called: there is no pass, or it is one
/// of grad(), which accumulates nothing.
bool after_backward(std::function<void(bool well)> f);

/// Runs backward from these roots, accumulating leaves as usual, but gradients that reach `inputs` are returned instead
/// and go no further.
TensorList backward_until(const TensorList& roots, const TensorList& gradients, const TensorList& inputs,
                          bool create_graph);

}  // namespace tutti
