// For fused operators: gradients that can be differentiated again.
#pragma once

#include <functional>

#include "tutti/autograd.h"
#include "tutti/ops.h"

namespace tutti {

/// The gradients of f's outputs by its inputs, for the given gradients of the outputs (undefined: none), with their
/// graph. For the gradient function of a fused operator when gradients of gradients are asked for: f is the same
/// function in public operators. Inputs that are not wanted, or do not matter, give undefined tensors.
inline TensorList differentiate_again(const std::function<TensorList(const TensorList&)>& f, const TensorList& inputs,
                                      const TensorList& gradients) {
  // Views stand for the inputs: differentiating by the inputs themselves would also follow what joins them upstream.
  TensorList views = inputs, wanted, roots, given;
  std::vector<size_t> places;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    views[i] = view(inputs[i], inputs[i].sizes());
    wanted.push_back(views[i]);
    places.push_back(i);
  }
  TensorList outputs = f(views), result(inputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (i >= gradients.size() || !gradients[i].defined() || !outputs[i].requires_grad()) continue;
    roots.push_back(outputs[i]);
    given.push_back(gradients[i]);
  }
  if (roots.empty() || wanted.empty()) return result;
  TensorList found = grad(roots, wanted, {.create_graph = true, .allow_unused = true}, given);
  for (size_t k = 0; k < places.size(); ++k) result[places[k]] = found[k];
  return result;
}

}  // namespace tutti
