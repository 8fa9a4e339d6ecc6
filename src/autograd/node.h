// Nodes of the autograd graph. A node turns the gradients of its outputs into gradients of its inputs; edges say where
// those go. Nodes are shared by the tensors they made and by the nodes after them.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/memory.h"
#include "base/ref.h"
#include "base/small_vector.h"
#include "tutti/autograd.h"
#include "tutti/tensor.h"

namespace tutti {

class Node;
struct Storage;
void destroy(Node* node) noexcept;

struct Edge {
  Ref<Node> node;
  uint32_t output = 0;
};

/// Hooks in order of registration; removing and calling may happen in different threads.
template <class Signature>
class HookList {
 public:
  HookHandle add(std::function<Signature> hook) {
    std::lock_guard lock(shared_->mutex);
    uint64_t id = shared_->next++;
    shared_->hooks.emplace_back(id, std::move(hook));
    return HookHandle([weak = std::weak_ptr(shared_), id] {
      std::function<Signature> removed;  // goes after the lock: what it holds may remove others
      if (auto shared = weak.lock()) {
        std::lock_guard lock(shared->mutex);
        auto& hooks = shared->hooks;
        auto found = std::find_if(hooks.begin(), hooks.end(), [&](auto& h) { return h.first == id; });
        if (found == hooks.end()) return;
        removed = std::move(found->second);
        hooks.erase(found);
      }
    });
  }
  template <class F>
  void each(F&& f) const {
    std::vector<std::pair<uint64_t, std::function<Signature>>> copy;
    {
      std::lock_guard lock(shared_->mutex);
      copy = shared_->hooks;
    }
    for (auto& [id, hook] : copy) f(hook);
  }

 private:
  struct Shared {
    std::mutex mutex;
    uint64_t next = 0;
    std::vector<std::pair<uint64_t, std::function<Signature>>> hooks;
  };
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

struct NodeHooks {
  HookList<void(Gradients&)> before;  // node hooks, and per-output tensor hooks, in order
  HookList<void(Gradients&)> retain;  // see retain_grad(): after all that may change the gradients
  HookList<void(Gradients&, const Gradients&)> after;
};

using GradientBuffer = SmallVector<Tensor, 2>;

class Node : public RefCounted, public memory::Pooled {
 public:
  Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  virtual ~Node() { delete hooks_.load(std::memory_order_relaxed); }

  virtual std::string name() const = 0;
  /// Looks at, or changes, the gradients before anything else is done with them.
  virtual void before(GradientBuffer&) {}
  /// From the gradients of the outputs to those of the inputs, `inputs` having one place for each edge.
  virtual void run(GradientBuffer& outputs, GradientBuffer& inputs) = 0;
  /// In place of run(): a pass has come this far and there is no gradient.
  virtual void no_gradient() {}
  /// Lets go of what was saved; the node cannot run again.
  virtual void free_saved() {}
  /// The next run is the last before free_saved(): what is saved may be let go of as it is used. False: it did not come
  /// to that.
  virtual void free_soon(bool /*soon*/) {}
  /// For whoever captures whole passes: what the node is (two of one key do the same with the tensors they keep), and
  /// those tensors, in order. False: only running it tells what it does.
  virtual bool signature(std::string& /*key*/, TensorList& /*kept*/) const { return false; }
  /// Keeps the tensor `to`, another handle on the same memory and history, wherever it kept `from`.
  virtual void replace_saved(const Tensor& /*from*/, const Tensor& /*to*/) {}

  /// Made by whoever asks first, of whatever thread.
  NodeHooks& hooks();
  bool has_hooks() const { return hooks_.load(std::memory_order_acquire) != nullptr; }

  // Note [Sequence numbers]: a node's number is larger than those of all nodes its edges lead to, so that taking ready
  // nodes by the highest number visits the graph backwards, the latest work first.
  uint64_t sequence = 0;
  Device device;
  uint32_t outputs = 1;
  bool keeps = false;               // there is something for free_saved() to let go of
  std::atomic<uint32_t> visits{0};  // see Visit
  SmallVector<Edge, 3> edges;
  std::unique_ptr<std::string> origin;  // in anomaly mode: where it was made

 private:
  std::atomic<NodeHooks*> hooks_{nullptr};
};

// Note [Passes that meet]: a pass that frees what a node has saved has the node to itself while it is there. Others
// that only read may be there together. Who comes to a node that is another's gets the error of one that was freed; but
// passes that hooks or the node itself begin, in the thread that has it, read what is still there.
class Visit {
 public:
  /// `frees`: it is the last visit, if nobody else is there. Of passes that run the node.
  Visit(Node& node, bool frees);
  ~Visit() { leave(0); }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;
  bool alone() const { return state_ == State::alone; }
  /// After the node has run.
  void free_saved();

 private:
  enum class State : uint8_t { outside, reading, alone };
  static constexpr uint32_t kTaken = uint32_t{1} << 30, kFreed = uint32_t{1} << 31;  // taken: with the thread's number
  void leave(uint32_t then);
  Node& node_;
  State state_ = State::outside;
};

template <class T, class... Args>
Ref<T> make_node(Args&&... args) {
  return Ref<T>(new T(std::forward<Args>(args)...));
}
/// Numbers the node after those its edges lead to. Call when the edges are set.
void number_node(Node& node);
/// The last number that this thread has given.
uint64_t last_number();
/// Throws: what the node saved is gone.
[[noreturn]] void freed_already(const Node& node);
/// In anomaly mode, remembers the calling place.
void note_origin(Node& node);

/// A tensor kept for backward, with the version it had.
class SavedTensor {
 public:
  SavedTensor() = default;
  /// `is_output`: an output of the node that saves it; keeping it whole would make a cycle.
  SavedTensor(const Tensor& tensor, bool is_output);
  /// A copy taken because the original is about to be written; it keeps the original's history.
  static SavedTensor of_copy(Tensor copy, Edge history, bool requires_grad);
  /// Throws VersionError if the tensor was changed since, GradError if it was freed.
  Tensor unpack(const Node& saver) const;
  void reset();
  /// Keeps `to` instead, if it keeps `from`.
  void replace(const Tensor& from, const Tensor& to);
  bool empty() const { return !tensor_.defined(); }

 private:
  Tensor tensor_;
  uint32_t data_changes_ = 0;  // set_data() gives a tensor other memory
  uint64_t version_ = 0;
  uint32_t output_ = 0;
  bool is_output_ = false, freed_ = false, detached_ = false;
  Edge history_;
};

/// Throws unless `gradient` has the shape, dtype and device of `like`.
void check_replacement(const char* what, const Tensor& gradient, const Tensor& like);

/// The node of a leaf.
class AccumulateNode final : public Node {
 public:
  explicit AccumulateNode(const Tensor& leaf);
  ~AccumulateNode() override;
  std::string name() const override { return "accumulate"; }
  void before(GradientBuffer& outputs) override;
  void run(GradientBuffer& outputs, GradientBuffer& inputs) override;
  const Tensor& leaf() const { return leaf_; }
  bool signature(std::string& key, TensorList& kept) const override;

 private:
  Tensor leaf_;
};

}  // namespace tutti
