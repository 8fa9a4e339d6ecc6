#include "autograd/operator_node.h"

#include "autograd/meta.h"
#include "base/check.h"
#include "tutti/ops.h"

namespace tutti {

class OperatorGradient final : public GradientCall {
 public:
  OperatorGradient(OperatorNode& node, GradientBuffer& outputs, GradientBuffer& inputs)
      : node_(node), outputs_(outputs), inputs_(inputs) {}
  const Operator& op() const override { return *node_.op_; }
  size_t inputs() const override { return node_.infos_.size(); }
  Tensor input(size_t i) override {
    TUTTI_ASSERT(saves(node_.op_->saves_inputs, i));
    return node_.saved_[i].unpack(node_);
  }
  Tensor output(size_t i) override {
    TUTTI_ASSERT(saves(node_.op_->saves_outputs, i));
    return node_.saved_outputs_[i].unpack(node_);
  }
  const Shape& input_sizes(size_t i) const override { return node_.infos_[i].sizes; }
  DType input_dtype(size_t i) const override { return node_.infos_[i].dtype; }
  Device input_device(size_t i) const override { return node_.infos_[i].device; }
  const Tensor& grad(size_t i) const override { return outputs_[i]; }
  bool needs(size_t i) const override { return i < node_.infos_.size() && node_.infos_[i].needed; }
  Attributes attributes() const override { return node_.attributes_; }
  void set(size_t i, Tensor gradient) override {
    if (!needs(i) || !gradient.defined()) return;
    const InputInfo& info = node_.infos_[i];
    // Broadcasting and promotion are undone here, once for all operators.
    if (!(gradient.sizes() == info.sizes))
      gradient = sum_to(gradient.is_sparse() ? to_dense(gradient) : gradient, info.sizes);
    if (gradient.dtype() != info.dtype) gradient = cast(gradient, info.dtype);
    inputs_[i] = std::move(gradient);
  }

 private:
  OperatorNode& node_;
  GradientBuffer& outputs_;
  GradientBuffer& inputs_;
};

OperatorNode::~OperatorNode() {
  if (!attributes_.data) return;
  attributes_.type->destroy(const_cast<void*>(attributes_.data));
  memory::release(const_cast<void*>(attributes_.data), attributes_.type->size);
}

void OperatorNode::run(GradientBuffer& outputs, GradientBuffer& inputs) {
  if (!op_->sparse)
    for (auto& g : outputs)
      if (g.defined() && g.is_sparse()) g = to_dense(g);
  OperatorGradient gradient(*this, outputs, inputs);
  op_->gradient(gradient);
}

void OperatorNode::free_saved() {
  for (auto& s : saved_) s.reset();
  for (auto& s : saved_outputs_) s.reset();
}

bool OperatorNode::signature(std::string& key, TensorList& kept) const {
  auto append = [&](const auto& v) { key.append(reinterpret_cast<const char*>(&v), sizeof v); };
  append(op_);
  append(attributes_.type);
  if (attributes_.data) key += attributes_.type->print(attributes_.data);
  for (const InputInfo& info : infos_) {
    append(info.dtype);
    append(info.needed);
    append(info.device.index);
    key += to_string(info.sizes);
  }
  for (const auto* list : {saved_.data(), saved_outputs_.data()}) {
    size_t count = list == saved_.data() ? saved_.size() : saved_outputs_.size();
    for (size_t i = 0; i < count; ++i) kept.push_back(list[i].unpack(*this));
  }
  return true;
}

void OperatorNode::replace_saved(const Tensor& from, const Tensor& to) {
  for (auto& s : saved_) s.replace(from, to);
}

void OperatorNode::set_inputs(std::span<const Tensor* const> inputs, std::span<Tensor> copies) {
  edges.reserve(inputs.size());
  infos_.reserve(inputs.size());
  keeps = op_->saves_inputs || op_->saves_outputs;
  if (op_->saves_inputs) saved_.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& x = *inputs[i];
    const TensorImpl* t = x.defined() ? impl(x) : nullptr;
    bool needed = t && requires_grad(t);
    if (needed)
      edges.emplace_back(gradient_edge(x));
    else
      edges.emplace_back();
    if (t)
      infos_.emplace_back(t->sizes, t->dtype, t->device, t->layout, needed);
    else
      infos_.emplace_back();
    if (!op_->saves_inputs) continue;
    if (!t || !saves(op_->saves_inputs, i))
      saved_.emplace_back();
    else if (i < copies.size() && copies[i].defined())
      saved_.emplace_back(SavedTensor::of_copy(std::move(copies[i]), edges[i], needed));
    else
      saved_.emplace_back(x, false);
  }
}

void OperatorNode::set_attributes(Attributes given) {
  if (!given.data) return;
  void* copy = memory::allocate(given.type->size);
  given.type->copy(copy, given.data);
  attributes_ = {copy, given.type};
}

void OperatorNode::save_outputs(std::span<Tensor> outputs) {
  if (!op_->saves_outputs) return;
  saved_outputs_.resize(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i)
    if (saves(op_->saves_outputs, i)) saved_outputs_[i] = SavedTensor(outputs[i], true);
}

}  // namespace tutti
