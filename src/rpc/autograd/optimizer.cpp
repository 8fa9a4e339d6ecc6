#include "tutti/rpc/optimizer.h"

#include "base/check.h"
#include "rpc/autograd/part.h"

namespace tutti::dist_autograd {

std::vector<rpc::RemoteRef<Tensor>> references(const TensorList& parameters) {
  std::vector<rpc::RemoteRef<Tensor>> result;
  for (const Tensor& p : parameters) result.push_back(rpc::share(std::make_shared<Tensor>(p)));
  return result;
}

namespace detail {

std::map<int, References> by_owner(const References& parameters) {
  check<ValueError>(!parameters.empty(), "DistributedOptimizer", "there are no parameters");
  std::map<int, References> result;
  for (const auto& p : parameters) result[p.owner().rank].push_back(p);
  return result;
}

TensorList local_values(const References& parameters) {
  TensorList result;
  for (const auto& p : parameters) result.push_back(p.local_value());
  return result;
}

void OptimizerPart::step(ContextId context) {
  auto registry = Registry::current("DistributedOptimizer");
  auto part = registry->find(context);
  if (!part) return;  // the context never came here: there are no gradients
  std::lock_guard lock(registry->optimizing);
  SinkGuard guard(part->sink);
  optimizer().step();
}

void OptimizerPart::set_lr(double lr) {
  auto registry = Registry::current("DistributedOptimizer");
  std::lock_guard lock(registry->optimizing);
  optimizer().set_lr(lr);
}

}  // namespace detail
}  // namespace tutti::dist_autograd
