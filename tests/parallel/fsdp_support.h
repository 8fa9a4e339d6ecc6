// What tests of fully_shard share.
#pragma once

#include "tests/parallel/support.h"

namespace tutti::test {

inline Tensor loss_of(const Tensor& y, const Tensor& x) { return (y - x.narrow(1, 0, 3)).pow(2).mean(); }

inline void shard(Mlp& net, const parallel::FullyShardOptions& options = {}) {
  parallel::fully_shard(net.first, options);
  parallel::fully_shard(net.second, options);
  parallel::fully_shard(net, options);
}

// What ranks' gradients are together, on rank 0, as if they were a module's own.
inline nn::StateDict full_gradients(const nn::ModuleBase& module) {
  nn::StateDict gradients;
  std::map<std::string, Tensor> values;
  NoGrad guard;
  for (auto& [name, p] : module.named_parameters()) values[name] = p.detach().clone();
  for (auto& [name, p] : module.named_parameters()) p.detach().copy_(p.grad());
  gradients = parallel::full_state_dict(module);
  for (auto& [name, p] : module.named_parameters()) p.detach().copy_(values[name]);
  return gradients;
}
inline void expect_full_gradients(const nn::ModuleBase& found, const nn::ModuleBase& wanted, double tolerance = 1e-12) {
  nn::StateDict gradients = full_gradients(found);
  if (gradients.empty()) return;
  for (auto& [name, p] : wanted.named_parameters()) expect_close(gradients.at(name), p.grad(), name, tolerance);
}
inline void expect_full_values(const nn::ModuleBase& found, const nn::ModuleBase& wanted, double tolerance = 1e-12) {
  nn::StateDict state = parallel::full_state_dict(found);
  for (auto wants = wanted.state_dict(); auto& [name, value] : state)
    expect_close(value, wants.at(name), name, tolerance);
}

}  // namespace tutti::test
