// Optimizers: they change parameters by their gradients.
//
//   optim::Adam adam(net.parameters(), {.lr = 1e-3});
//   for (auto& [x, y] : loader) {
//     adam.zero_grad();
//     cross_entropy(net(x), y).backward();
//     adam.step();
//   }
//
// Groups have options of their own:
//   optim::SGD sgd({{net.body.parameters(), {.lr = 0.01}}, {net.head.parameters(), {.lr = 0.1, .momentum = 0.9}}});
//
// Gradients are read from the current gradient sink. Results do not depend on the number of threads.
#pragma once

#include <cmath>

#include "tutti/io/state.h"

namespace tutti::optim {

/// What an optimizer keeps for one parameter. It follows the parameter to another dtype, device or memory format.
struct Slot {
  Tensor parameter;
  int64_t step = 0;
  TensorList state = {};  // by number, see state_names(); undefined where not needed (yet)
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Changes every parameter that has a gradient. Gradients that an optimizer does not take are an error, and then
  /// nothing has been changed in any group.
  void step();
  /// Forgets all gradients.
  void zero_grad();

  size_t group_count() const { return groups_.size(); }
  TensorList parameters(size_t group) const;
  TensorList parameters() const;
  double lr(size_t group = 0) const { return const_cast<Optimizer*>(this)->lr_of(group); }
  /// Of all groups, and of one.
  void set_lr(double lr);
  void set_lr(size_t group, double lr);
  /// The momentum, or the first beta: what some schedules change beside the learning rate. NaN where there is none.
  virtual double momentum(size_t) const { return NAN; }
  /// ValueError where there is none, and for what the constructor would not take.
  virtual void set_momentum(size_t group, double momentum);

  /// Multiplies the rate of a group, for good: a Scheduler of this optimizer multiplies by it from now on too.
  void scale_lr(size_t group, double factor);
  /// The product of all such factors.
  double lr_scale(size_t group = 0) const {
    check_group(group);
    return scales_[group];
  }

  /// Everything needed to go on later: options, and what is kept for each parameter, numbered in order. Its tensors are
  /// the optimizer's own, as they are in a module's state_dict(): the next step changes them. io::clone(adam.state())
  /// stays as it is.
  io::State state() const;
  /// Copies the values in, converted to what the parameters are now. ValueError when it is the state of another
  /// optimizer or of other parameters, or makes no sense; then nothing has been changed.
  void load_state(const io::State& state);

 protected:
  Optimizer() = default;
  Optimizer(const Optimizer&) = default;
  Optimizer& operator=(const Optimizer&) = default;

  void add_slots(const TensorList& parameters);
  /// IndexError if there is no such group.
  void check_group(size_t group) const;
  /// ValueError if there is nothing to change: most often a module whose TUTTI_FIELDS names nothing.
  void check_any_parameters() const;
  /// Throws if a gradient cannot be used; asked of all before any parameter is changed. Here: sparse
  /// ones, and those of parameters that are not on a CPU.
  virtual void check_gradient(size_t group, const Tensor& parameter, const Tensor& gradient);
  /// Changes the parameters of these slots by their gradients, of the same shapes and dtypes.
  virtual void update(size_t group, std::vector<Slot*>& slots, const TensorList& gradients) = 0;
  virtual double& lr_of(size_t group) = 0;
  virtual io::State options_state(size_t group) const = 0;
  /// Throws where load_options would, and ValueError for options that make no sense.
  virtual void check_options(const io::State& state) const = 0;
  virtual void load_options(size_t group, const io::State& state) = 0;
  virtual std::vector<std::string> state_names() const = 0;
  virtual const char* name() const = 0;

 private:
  friend class Scheduler;
  void load_slot(Slot& slot, const io::State& state, const std::string& which) const;
  std::vector<std::vector<Slot>> groups_;
  std::vector<double> scales_;                 // of each group
  std::weak_ptr<const Optimizer*> scheduled_;  // by a Scheduler that lives; a copy's is that of the original
};

template <class Options>
struct ParameterGroup {
  TensorList parameters;
  Options options = {};
};

/// An optimizer whose groups have `Options`: a struct of numbers and flags with TUTTI_FIELDS, one of them lr.
template <class Options>
class OptimizerWith : public Optimizer {
 public:
  /// Throws ValueError for options that make no sense.
  void add_group(const TensorList& parameters, const Options& options);
  Options& options(size_t group = 0);

 protected:
  OptimizerWith(const TensorList& parameters, const Options& options);
  explicit OptimizerWith(const std::vector<ParameterGroup<Options>>& groups);
  /// Sets one of the options, if they still make sense then.
  void change(size_t group, double Options::* option, double value);
  double& lr_of(size_t group) override;
  io::State options_state(size_t group) const override;
  void check_options(const io::State& state) const override;
  void load_options(size_t group, const io::State& state) override;

 private:
  std::vector<Options> options_;
};

// Not inline: those of the library's own optimizers are compiled there (src/optim/rules.cpp), and an inline
// function would be compiled by every file all the same.
template <class Options>
OptimizerWith<Options>::OptimizerWith(const TensorList& parameters, const Options& options) {
  add_group(parameters, options);
  check_any_parameters();
}
template <class Options>
OptimizerWith<Options>::OptimizerWith(const std::vector<ParameterGroup<Options>>& groups) {
  for (const auto& g : groups) add_group(g.parameters, g.options);
  check_any_parameters();
}
template <class Options>
void OptimizerWith<Options>::add_group(const TensorList& parameters, const Options& options) {
  options.check();
  add_slots(parameters);
  options_.push_back(options);
}
template <class Options>
Options& OptimizerWith<Options>::options(size_t group) {
  check_group(group);
  return options_[group];
}
template <class Options>
void OptimizerWith<Options>::change(size_t group, double Options::* option, double value) {
  Options changed = options(group);
  changed.*option = value;
  changed.check();
  options_[group] = changed;
}
template <class Options>
double& OptimizerWith<Options>::lr_of(size_t group) {
  return options(group).lr;
}
template <class Options>
io::State OptimizerWith<Options>::options_state(size_t group) const {
  return io::to_state(options_.at(group));
}
template <class Options>
void OptimizerWith<Options>::check_options(const io::State& state) const {
  io::from_state<Options>(state).check();
}
template <class Options>
void OptimizerWith<Options>::load_options(size_t group, const io::State& state) {
  options_.at(group) = io::from_state<Options>(state);
}

// ---- The optimizers. What each does is what the field means by its name; so are the defaults.

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
  TUTTI_FIELDS(lr, momentum, dampening, weight_decay, nesterov, maximize)
  void check() const;
};
/// Stochastic gradient descent. Sparse gradients are taken where there is neither momentum nor weight decay.
class SGD : public OptimizerWith<SGDOptions> {
 public:
  SGD(const TensorList& parameters, const SGDOptions& options) : OptimizerWith(parameters, options) {}
  explicit SGD(const std::vector<ParameterGroup<SGDOptions>>& groups) : OptimizerWith(groups) {}
  double momentum(size_t group) const override { return const_cast<SGD*>(this)->options(group).momentum; }
  void set_momentum(size_t group, double momentum) override { change(group, &SGDOptions::momentum, momentum); }

 protected:
  void check_gradient(size_t group, const Tensor& parameter, const Tensor& gradient) override;
  void update(size_t group, std::vector<Slot*>& slots, const TensorList& gradients) override;
  std::vector<std::string> state_names() const override { return {"momentum"}; }
  const char* name() const override { return "SGD"; }
};

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
  bool maximize = false;
  TUTTI_FIELDS(lr, beta1, beta2, eps, weight_decay, amsgrad, maximize)
  void check() const;
};
class Adam : public OptimizerWith<AdamOptions> {
 public:
  explicit Adam(const TensorList& parameters, const AdamOptions& options = {}) : OptimizerWith(parameters, options) {}
  explicit Adam(const std::vector<ParameterGroup<AdamOptions>>& groups) : OptimizerWith(groups) {}
  double momentum(size_t group) const override { return const_cast<Adam*>(this)->options(group).beta1; }
  void set_momentum(size_t group, double momentum) override { change(group, &AdamOptions::beta1, momentum); }

 protected:
  void update(size_t group, std::vector<Slot*>& slots, const TensorList& gradients) override;
  std::vector<std::string> state_names() const override { return {"mean", "square", "largest_square"}; }
  const char* name() const override { return "Adam"; }
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  bool amsgrad = false;
  bool maximize = false;
  TUTTI_FIELDS(lr, beta1, beta2, eps, weight_decay, amsgrad, maximize)
  void check() const;
};
/// Adam with decoupled weight decay: it shrinks the weights directly instead of adding to the gradient.
class AdamW : public OptimizerWith<AdamWOptions> {
 public:
  explicit AdamW(const TensorList& parameters, const AdamWOptions& options = {}) : OptimizerWith(parameters, options) {}
  explicit AdamW(const std::vector<ParameterGroup<AdamWOptions>>& groups) : OptimizerWith(groups) {}
  double momentum(size_t group) const override { return const_cast<AdamW*>(this)->options(group).beta1; }
  void set_momentum(size_t group, double momentum) override { change(group, &AdamWOptions::beta1, momentum); }

 protected:
  void update(size_t group, std::vector<Slot*>& slots, const TensorList& gradients) override;
  std::vector<std::string> state_names() const override { return {"mean", "square", "largest_square"}; }
  const char* name() const override { return "AdamW"; }
};

struct SparseAdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  bool maximize = false;
  TUTTI_FIELDS(lr, beta1, beta2, eps, maximize)
  void check() const;
};
/// Adam for sparse gradients: only the rows that have one are touched.
class SparseAdam : public OptimizerWith<SparseAdamOptions> {
 public:
  explicit SparseAdam(const TensorList& parameters, const SparseAdamOptions& options = {})
      : OptimizerWith(parameters, options) {}
  explicit SparseAdam(const std::vector<ParameterGroup<SparseAdamOptions>>& groups) : OptimizerWith(groups) {}

 protected:
  void check_gradient(size_t group, const Tensor& parameter, const Tensor& gradient) override;
  void update(size_t group, std::vector<Slot*>& slots, const TensorList& gradients) override;
  std::vector<std::string> state_names() const override { return {"mean", "square"}; }
  const char* name() const override { return "SparseAdam"; }
};

struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial = 0;  // what the sum of squares begins with
  double eps = 1e-10;
  bool maximize = false;
  TUTTI_FIELDS(lr, lr_decay, weight_decay, initial, eps, maximize)
  void check() const;
};
/// Takes sparse gradients too.
class Adagrad : public OptimizerWith<AdagradOptions> {
 public:
  explicit Adagrad(const TensorList& parameters, const AdagradOptions& options = {})
      : OptimizerWith(parameters, options) {}
  explicit Adagrad(const std::vector<ParameterGroup<AdagradOptions>>& groups) : OptimizerWith(groups) {}

 protected:
  void check_gradient(size_t group, const Tensor& parameter, const Tensor& gradient) override;
  void update(size_t group, std::vector<Slot*>& slots, const TensorList& gradients) override;
  std::vector<std::string> state_names() const override { return {"sum"}; }
  const char* name() const override { return "Adagrad"; }
};

struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
  bool maximize = false;
  TUTTI_FIELDS(lr, alpha, eps, weight_decay, momentum, centered, maximize)
  void check() const;
};
class RMSprop : public OptimizerWith<RMSpropOptions> {
 public:
  explicit RMSprop(const TensorList& parameters, const RMSpropOptions& options = {})
      : OptimizerWith(parameters, options) {}
  explicit RMSprop(const std::vector<ParameterGroup<RMSpropOptions>>& groups) : OptimizerWith(groups) {}
  double momentum(size_t group) const override { return const_cast<RMSprop*>(this)->options(group).momentum; }
  void set_momentum(size_t group, double momentum) override { change(group, &RMSpropOptions::momentum, momentum); }

 protected:
  void update(size_t group, std::vector<Slot*>& slots, const TensorList& gradients) override;
  std::vector<std::string> state_names() const override { return {"square", "momentum", "mean"}; }
  const char* name() const override { return "RMSprop"; }
};

struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9, beta2 = 0.99;
  double weight_decay = 0;
  bool maximize = false;
  TUTTI_FIELDS(lr, beta1, beta2, weight_decay, maximize)
  void check() const;
};
/// Steps of equal size in the direction of a momentum's sign.
class Lion : public OptimizerWith<LionOptions> {
 public:
  explicit Lion(const TensorList& parameters, const LionOptions& options = {}) : OptimizerWith(parameters, options) {}
  explicit Lion(const std::vector<ParameterGroup<LionOptions>>& groups) : OptimizerWith(groups) {}

 protected:
  void update(size_t group, std::vector<Slot*>& slots, const TensorList& gradients) override;
  std::vector<std::string> state_names() const override { return {"momentum"}; }
  const char* name() const override { return "Lion"; }
};

// Compiled once, in src/optim/rules.cpp.
extern template class OptimizerWith<SGDOptions>;
extern template class OptimizerWith<AdamOptions>;
extern template class OptimizerWith<AdamWOptions>;
extern template class OptimizerWith<SparseAdamOptions>;
extern template class OptimizerWith<AdagradOptions>;
extern template class OptimizerWith<RMSpropOptions>;
extern template class OptimizerWith<LionOptions>;

}  // namespace tutti::optim
