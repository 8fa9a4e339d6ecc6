// Runs a graph node after node, and lets go of values after their last use. What backends share.
#pragma once

#include "graph/backend.h"

namespace tutti::graph {

class Runner : public Executable {
 public:
  explicit Runner(std::shared_ptr<const Graph> graph);
  TensorList run(TensorList inputs, const Host* host) const override;

 protected:
  const Graph& graph() const { return *graph_; }
  /// Runs some nodes from k on in another way; how many. Values are by their ids.
  virtual size_t run_fused(TensorList& values, size_t k) const;

 private:
  struct Run;

  void step(Run& r, size_t k) const;
  int64_t offset_of(const Run& r, ValueId of, const Type& t) const;
  void call_operator(Run& r, const Node& n, size_t k) const;
  void call_host(Run& r, const Node& n, size_t k) const;
  void effect(Run& r, const Node& n, size_t k) const;

  std::shared_ptr<const Graph> graph_;
  std::vector<std::vector<ValueId>> last_uses_;  // by node: values that nobody uses after it
};

}  // namespace tutti::graph
