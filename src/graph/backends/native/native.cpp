#include "graph/backends/native/native.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "graph/backends/runner.h"
#include "graph/passes/passes.h"
#include "tensor/impl.h"
#include "tutti/trace.h"

namespace tutti::graph::native {
namespace {

// A group as code, and where it is in the graph.
struct Fused {
  size_t first = 0, count = 0;  // nodes
  Recipe recipe = {};
  std::vector<int64_t> spans = {};  // of inputs: elements that they reach
  Loop loop;
  Entry entry = nullptr;
};

// What the pointwise nodes of a group compute; none if they are not worth code or have too many operands.
std::optional<Recipe> recipe_of(const Graph& graph, const FusionGroup& group, Isa isa) {
  Recipe r;
  std::vector<bool> inside(graph.values.size());
  auto add = [](std::vector<ValueId>& list, ValueId v) {
    if (std::find(list.begin(), list.end(), v) == list.end()) list.push_back(v);
  };
  for (int32_t k : group.nodes) {
    const Node& n = graph.nodes[at(k)];
    if (n.op->reduction) {  // reads what the loop leaves in memory
      for (ValueId v : n.inputs)
        if (v != kNone && inside[at(v)]) add(r.outputs, v);
      continue;
    }
    auto formula = formula_of(graph, n);
    if (!formula) return {};
    for (ValueId v : formula->inputs)
      if (!inside[at(v)]) add(r.inputs, v);
    inside[at(n.outputs[0])] = true;
    r.steps.push_back({std::move(*formula), n.outputs[0]});
  }
  for (ValueId v : group.outputs)
    if (inside[at(v)]) add(r.outputs, v);
  bool half = false;
  for (const auto* list : {&r.inputs, &r.outputs})
    for (ValueId v : *list) half = half || graph.type(v).dtype == DType::f16;
  for (const auto& s : r.steps) half = half || graph.type(s.value).dtype == DType::f16;
  if (half && isa == Isa::base) return {};  // there is no instruction for it
  if (r.steps.size() < 2 || r.outputs.empty() || r.inputs.size() + r.outputs.size() > kMaxOperands) return {};
  return r;
}

Loop loop_of(const Graph& graph, const FusionGroup& group, const Recipe& r) {
  std::vector<Type> types;
  for (ValueId v : r.inputs) types.push_back(graph.type(v));
  for (ValueId v : r.outputs) types.push_back(graph.type(v));
  return Loop(group.sizes, std::move(types), r.outputs.size(), r.steps.size());
}

class Native final : public Runner {
 public:
  explicit Native(std::shared_ptr<const Graph> graph) : Runner(std::move(graph)), at_(this->graph().nodes.size(), -1) {
    Isa isa = best_isa();
    for (const FusionGroup& group : this->graph().groups) {
      auto recipe = recipe_of(this->graph(), group, isa);
      if (!recipe) continue;
      Fused f{.first = at(group.nodes.front()),
              .count = recipe->steps.size(),
              .loop = loop_of(this->graph(), group, *recipe)};
      kernels_.push_back(write_kernel(this->graph(), *recipe, f.loop, isa));
      f.recipe = std::move(*recipe);
      for (ValueId v : f.recipe.inputs)
        f.spans.push_back(span_elements(this->graph().type(v).sizes, this->graph().type(v).strides));
      at_[f.first] = static_cast<int32_t>(fused_.size());
      fused_.push_back(std::move(f));
    }
    if (kernels_.empty()) return;
    check<ValueError>(unavailable().empty(), "compile", "the backend 'native' is not available here:{}", unavailable());
    std::vector<Entry> entries = find_entries(kernels_);
    for (size_t i = 0; i < entries.size(); ++i) fused_[i].entry = entries[i];
  }

  std::string code(bool assembly) const override {
    if (kernels_.empty()) return {};
    if (assembly) return assembly_of(kernels_);
    std::string text;
    std::map<std::string, std::string> groups;
    for (size_t i = 0; i < kernels_.size(); ++i) {
      std::string& list = groups[kernels_[i].name];
      list += fmt::format("{}{}", list.empty() ? "" : ", ", graph().nodes[fused_[i].first].group);
    }
    for (const Kernel& k : kernels_)
      if (auto it = groups.find(k.name); it != groups.end()) {
        text += fmt::format("; group {}\n{}\n", it->second, k.text);
        groups.erase(it);
      }
    return text;
  }

 protected:
  size_t run_fused(TensorList& values, size_t k) const override {
    if (at_[k] < 0 || tracing()) return 0;  // whoever traces wants to hear of operators
    const Fused& f = fused_[static_cast<size_t>(at_[k])];
    std::byte* data[kMaxOperands];
    size_t next = 0;
    for (ValueId v : f.recipe.inputs) {
      const TensorImpl* t = impl(values[at(v)]);
      const Type& type = graph().type(v);
      // Operators say what is wrong, where something is.
      if (t->dtype != type.dtype || !(t->sizes == type.sizes) || !(t->strides == type.strides) ||
          static_cast<size_t>(t->offset + f.spans[next]) * size_of(t->dtype) > t->storage->bytes)
        return 0;
      data[next++] = t->data();
    }
    bool inference = context().modes & kInferenceMode;
    for (ValueId v : f.recipe.outputs) {
      const Type& type = graph().type(v);
      Tensor out = make_tensor(type.sizes, type.strides, type.dtype, type.device);
      impl(out)->inference = inference;
      data[next++] = impl(out)->data();
      values[at(v)] = std::move(out);
    }
    f.loop.run(f.entry, data);
    return f.count;
  }

 private:
  std::vector<Fused> fused_;
  std::vector<Kernel> kernels_;
  std::vector<int32_t> at_;  // by node: what is fused from there on, or -1
};

}  // namespace

std::unique_ptr<Executable> NativeBackend::compile(std::shared_ptr<const Graph> graph) const {
  return std::make_unique<Native>(std::move(graph));
}

}  // namespace tutti::graph::native
