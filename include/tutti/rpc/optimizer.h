// Optimizers of parameters that live on many workers.
//
//   dist_autograd::DistributedOptimizer<optim::Adam> adam(layer.remote_parameters(), {.lr = 1e-3});
//   {
//     dist_autograd::Context context;
//     dist_autograd::backward(context, {loss(layer(x))});
//     adam.step(context);
//   }
#pragma once

#include <map>

#include "tutti/optim/optimizer.h"
#include "tutti/rpc/autograd.h"

namespace tutti::dist_autograd {

/// References to parameters of this worker, for others to have.
std::vector<rpc::RemoteRef<Tensor>> references(const TensorList& parameters);

namespace detail {

template <class Options>
Options options_of(const optim::OptimizerWith<Options>&);
using References = std::vector<rpc::RemoteRef<Tensor>>;

/// By the rank of the owner. ValueError where there is none at all, or an undefined one.
std::map<int, References> by_owner(const References& parameters);
TensorList local_values(const References& parameters);

/// The optimizer of one worker's parameters.
class OptimizerPart {
 public:
  virtual ~OptimizerPart() = default;
  /// With the gradients of a context, one step at a time of all optimizers of the worker.
  void step(ContextId context);
  void set_lr(double lr);

 protected:
  virtual optim::Optimizer& optimizer() = 0;
};
template <class O>
class OptimizerPartOf final : public OptimizerPart {
 public:
  OptimizerPartOf(const References& parameters, const decltype(options_of(std::declval<O&>()))& options)
      : optimizer_(local_values(parameters), options) {}

 private:
  optim::Optimizer& optimizer() override { return optimizer_; }
  O optimizer_;
};

}  // namespace detail

/// One optimizer on each worker that has some of the parameters; what they keep stays there.
template <class O>
class DistributedOptimizer {
 public:
  using Options = decltype(detail::options_of(std::declval<O&>()));
  using Where = rpc::To::Where;
  explicit DistributedOptimizer(const std::vector<rpc::RemoteRef<Tensor>>& parameters, const Options& options = {},
                                Where where = Where::current()) {
    for (const auto& [rank, list] : detail::by_owner(parameters))
      parts_.push_back(rpc::remote<detail::OptimizerPartOf<O>>({rank, {}, where}, list, options));
    for (const auto& part : parts_) part.wait(where);
  }
  /// A step on all workers at the same time, by the gradients that they have in this context.
  void step(ContextId context, Where where = Where::current()) const { step_async(context, where).wait(); }
  rpc::Future<> step_async(ContextId context, Where where = Where::current()) const {
    NoGrad guard;
    std::vector<rpc::Future<>> steps;
    for (const auto& part : parts_) steps.push_back(part.template async<&detail::OptimizerPart::step>(context, where));
    return rpc::all(std::move(steps));
  }
  void set_lr(double lr, Where where = Where::current()) const {
    for (const auto& part : parts_) part.template call<&detail::OptimizerPart::set_lr>(lr, where);
  }

 private:
  std::vector<rpc::RemoteRef<detail::OptimizerPartOf<O>>> parts_;
};

}  // namespace tutti::dist_autograd
