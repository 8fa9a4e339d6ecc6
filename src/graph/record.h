// Recorder: writes down what a function does to tensors while it runs.
//
// Note [Tracing is running]
// A function is traced by running it once, for real: operators compute, gradient nodes are attached, hooks are called,
// collectives communicate, and the recorder listens. So the first call of a compiled function gives what eager gives by
// being eager, nothing happens twice, and no second set of tensors has to pretend to be the first.
//
// Note [Who is who]
// A tensor that the recorder meets is known by its handle; else by its storage, under whose values it becomes an alias
// (detach(), what nodes have saved); else it was there before, and is captured. Every tensor that was met is kept until
// the recorder goes, so that no address means two things.
#pragma once

#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "tensor/impl.h"
#include "tutti/graph/ir.h"
#include "tutti/random.h"
#include "tutti/trace.h"

namespace tutti::graph {

/// Makes `a` point to a copy of what it pointed to; the copy's owner.
std::shared_ptr<const void> copy_attributes(Attributes& a);

class Recorder final : public NestedTracer {
 public:
  /// `forward`: of a backward pass; what the forward recorder knows is a saved value here.
  explicit Recorder(std::string name, std::shared_ptr<Recorder> forward = nullptr);

  /// Tensor number `index` of the arguments.
  ValueId argument(const Tensor& x, size_t index);
  /// The value that a tensor is, made an output of the graph.
  ValueId output(const Tensor& x);
  /// The value that is known for this tensor, or kNone.
  ValueId known(const Tensor& x) const;
  const Tensor& tensor(ValueId v) const { return tensors_[static_cast<size_t>(v)]; }
  /// Keeps `to`, another handle on the same memory and history, in the place of the input `from`, which may go then.
  void replace(const Tensor& from, const Tensor& to);
  /// Calls f with each tensor that was met and is no input.
  void for_each_inside(const std::function<void(const Tensor&)>& f) const;

  Graph& graph() { return graph_; }
  /// Leaves made inside: parameters that the function creates, or makes of its inputs.
  struct Leaf {
    ValueId value;
    Tensor tensor;
  };
  const std::vector<Leaf>& leaves() const { return leaves_; }
  /// What was asked of .grad() of inputs: (input value, whether there was one), in order.
  const std::vector<std::pair<ValueId, bool>>& gradients() const { return gradients_; }
  /// Where gradients of an input went when it was first met.
  struct Met {
    ValueId value;
    Tensor tensor;
    bool requires_grad, readable;
  };
  const std::vector<Met>& met() const { return met_; }
  /// What the function looked at beside tensors.
  const std::vector<std::shared_ptr<const Outside>>& outside() const { return outside_; }
  bool drew_random() const { return drew_random_; }
  /// Whether a tensor that was made outside, and has a gradient of its own, was met in the memory of another one.
  bool met_twice() const { return met_twice_; }

  /// Of a whole backward pass: the nodes that are to be called each time, by their number.
  std::unordered_map<const tutti::Node*, int64_t> hosts;
  std::unordered_map<int64_t, std::vector<std::optional<Type>>> gave;  // by the number in `hosts`
  bool node(tutti::Node& node, std::span<Tensor> outputs, std::span<Tensor> inputs,
            const std::function<void()>& run) override;

  bool call(const Operator& op, std::span<const Tensor* const> inputs, Attributes attributes,
            std::span<Tensor> outputs) override;
  void made(const Tensor& t) override;
  void copied(const Tensor& original, const Tensor& copy) override;
  void resized(const Tensor& t, size_t bytes) override;
  void version_read(const Tensor& t, uint64_t version) override;
  void version_set(const Tensor& t, uint64_t version) override;
  void grad_read(const Tensor& leaf, const Tensor& gradient) override;
  void grad_set(const Tensor& leaf, const Tensor& gradient) override;
  void grad_required(const Tensor& leaf, bool required) override;
  void data_set(const Tensor& t, const Tensor& from) override;
  void hooked(const Tensor& t) override;
  void looked_at(const std::shared_ptr<const Outside>& what) override;
  void untraceable(const char* what) override;

  /// Called with each tensor that becomes an input, before anything is done to it.
  std::function<void(const Tensor&)> on_input;

 private:
  struct Memory {
    std::vector<ValueId> values;
    bool unwritten = false;  // made outside of operators, and no operator has written it yet
  };
  enum class Use { read, write, view };

  ValueId resolve(const Tensor& x, Use use);
  ValueId find_saved(const Tensor& x);
  ValueId find_alias(const Tensor& x, Memory& memory);
  ValueId add_input(const Tensor& x, Origin origin, int32_t index);
  ValueId add_constant(const Tensor& x);
  void bind(const Tensor& x, ValueId v);
  void settle(Memory& memory, ValueId v, Use use);
  Node& add_node(Kind kind);
  ValueId object(const Tensor& t) const;
  bool is_leaf(const Tensor& t) const;
  bool is_outside(const Tensor& t) const;
  void add_copy(ValueId from, const Tensor& copy);
  void add_outputs(Node& node, std::span<Tensor> outputs, const std::vector<bool>& given);

  /// Note [Random numbers that are drawn again]
  /// A checkpoint runs its function again in backward, with a generator that stands where the own one stood then. A
  /// graph has no such generator; but what was drawn there the first time is a value, known by where the generator
  /// stood, and is kept instead. (Of dropout that is no mask, but two numbers: see ops/random/dropout.cpp.)
  struct Drawn {
    const Operator* op;
    Generator::State at;
    std::vector<ValueId> values;
  };
  const Drawn* find_drawn(const Operator& op, const Generator::State& at) const;
  /// The outputs are values of the node that drew them first.
  void add_drawn(const Operator& op, const Generator::State& at, std::span<Tensor> outputs);

  Graph graph_;
  std::shared_ptr<Recorder> forward_;
  std::recursive_mutex mutex_;
  TensorList tensors_;  // by value
  TensorList kept_;     // other handles that were met
  std::unordered_map<const TensorImpl*, ValueId> handles_;
  std::unordered_map<const TensorImpl*, ValueId> objects_;  // handles that are inputs: effects are on them
  std::unordered_map<const Storage*, Memory> memories_;
  std::unordered_map<const Storage*, std::vector<std::pair<uint64_t, int32_t>>> versions_;  // read: (number, node)
  std::unordered_set<const TensorImpl*> grads_set_;    // leaves whose .grad was set in this graph
  std::unordered_set<const Storage*> sparse_indices_;  // of sparse tensors that were met
  std::vector<Leaf> leaves_;
  std::vector<std::pair<ValueId, bool>> gradients_;
  std::vector<Met> met_;
  std::vector<Drawn> drawn_;
  std::vector<std::shared_ptr<const Outside>> outside_;
  std::shared_ptr<Generator> generator_;
  bool drew_random_ = false, met_twice_ = false;
  uint64_t first_node_ = 0;  // nodes up to this number were there before
};

}  // namespace tutti::graph
