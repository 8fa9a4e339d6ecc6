// The node that call() attaches: an operator's descriptor, what it saved, and its attributes.
#pragma once

#include "autograd/node.h"
#include "tutti/operator.h"

namespace tutti {

/// Whether bit i is set; the last bit stands for all that follow.
inline bool saves(uint32_t bits, size_t i) { return bits >> (i < 31 ? i : 31) & 1; }

struct InputInfo {
  Shape sizes;
  DType dtype = DType::f32;
  Device device;
  Layout layout = Layout::strided;
  bool needed = false;
};

class OperatorNode final : public Node {
 public:
  explicit OperatorNode(const Operator& op) : op_(&op) {}
  ~OperatorNode() override;
  std::string name() const override { return op_->name; }
  const Operator& op() const { return *op_; }
  void run(GradientBuffer& outputs, GradientBuffer& inputs) override;
  void free_saved() override;
  bool signature(std::string& key, TensorList& kept) const override;
  void replace_saved(const Tensor& from, const Tensor& to) override;

  /// `copies[k]`, where defined, is saved instead of input k, which is about to be overwritten.
  void set_inputs(std::span<const Tensor* const> inputs, std::span<Tensor> copies);
  void set_attributes(Attributes attributes);
  /// After the outputs exist.
  void save_outputs(std::span<Tensor> outputs);

 private:
  friend class OperatorGradient;
  const Operator* op_;
  Attributes attributes_;
  SmallVector<InputInfo, 2> infos_;
  SmallVector<SavedTensor, 2> saved_;  // inputs
  SmallVector<SavedTensor, 1> saved_outputs_;
};

}  // namespace tutti
