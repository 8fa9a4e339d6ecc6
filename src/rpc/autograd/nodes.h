// Where graphs of different workers meet.
//
// Note [Send and receive]
// A message with tensors that require gradients leaves a SendNode behind, kept by the sender's part of the context,
// whose edges lead to where those tensors came from. The tensors that arrive come from a ReceiveNode, which has no
// edges: when a pass has brought all of its gradients, they go back in one message, and are what the SendNode begins
// with. The two have the same key, the same on every run of a program:
//
// Note [Keys]
// Every call made in a context has a path: that of the function that makes it, followed by the number of the call
// there. The bytes of a path compare as the calls follow each other. So do groups of nodes (GraphTask::expect): the
// nodes that one called function made are numbered in their order, by which gradients are added; those of several were
// made by any threads, and are added latest call first, which is what happens where all is one thread's.
#pragma once

#include <mutex>

#include "autograd/node.h"
#include "tutti/rpc/autograd.h"

namespace tutti::dist_autograd::detail {

/// A call's place among all calls of a context.
using Path = std::string;
/// Of the call that is made as number `n` by what has this path.
Path path_below(const Path& path, uint32_t n);
/// What the two nodes of a message know each other by.
std::string key_of(const Path& path, bool answer);

class SendNode final : public Node {
 public:
  /// `maker`: the path of what sends.
  SendNode(TensorList tensors, Path maker);
  std::string name() const override { return "send"; }
  void run(GradientBuffer& outputs, GradientBuffer& inputs) override;
  const Path& maker() const { return maker_; }
  /// Gives what came the shapes of what was sent (see ReceiveNode::send); throws unless it can be its gradients.
  void accept(TensorList& gradients) const;

 private:
  struct Sent {
    Shape sizes;
    DType dtype;
    Device device;
  };
  std::vector<Sent> sent_;
  Path maker_;
};

class ReceiveNode final : public Node {
 public:
  ReceiveNode(ContextId context, int peer, std::string key, uint64_t after, TensorList& tensors,
              const std::vector<uint32_t>& which);
  std::string name() const override { return "receive"; }
  void run(GradientBuffer& outputs, GradientBuffer& inputs) override;
  void no_gradient() override;
  int peer() const { return peer_; }
  const std::string& key() const { return key_; }

 private:
  void send(TensorList gradients) const;
  const ContextId context_;
  const int peer_;  // whose rank in the world it came from
  const std::string key_;
};

/// A context's table of gradients.
class ContextSink final : public GradientSink {
 public:
  void accumulate(const Tensor& leaf, Tensor gradient) override;
  Tensor gradient(const Tensor& leaf) override;
  void set_gradient(const Tensor& leaf, Tensor gradient) override;
  GradientMap all() const;
  size_t size() const;
  void clear();

 private:
  mutable std::mutex mutex_;
  GradientMap gradients_;
};

}  // namespace tutti::dist_autograd::detail
