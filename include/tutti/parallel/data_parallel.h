// One process, many devices: a module runs on parts of a batch, each on a device of its own, at the same time.
//
//   set_cpu_devices(2);                              // cpu:0 and cpu:1, each with half of the cores
//   parallel::DataParallel net(Net{});
//   Tensor loss = cross_entropy(net(x), y);          // x is cut in two; the outputs are put together again
//   loss.backward();                                 // gradients of both parts arrive in net.module's parameters
//
// Arguments and results are tensor trees (tree.h): tensors are cut and put together along a dim, zero-dimensional ones
// and what is no tensor go to every device as they are. Gradients of any order pass through all of it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tutti/context.h"
#include "tutti/nn/any_module.h"
#include "tutti/nn/module.h"
#include "tutti/tree.h"

namespace tutti::parallel {

using Devices = std::vector<Device>;

namespace detail {
/// A place in a tree: tensors are compared by their presence, the rest by what it says.
struct TreeLeaf {
  std::string path, text;
};
std::vector<TensorList> scatter_tensors(const TensorList& tensors, const Devices& devices, int64_t dim);
TensorList gather_tensors(const std::vector<TensorList>& parts, Device device, int64_t dim);
void check_alike(const std::vector<std::vector<TreeLeaf>>& trees);
void check_counts(size_t modules, size_t inputs, size_t devices);
/// Runs body(k) on devices[k] for all k at once, in the caller's context; throws the first error, saying whose it is.
void run_on(const Devices& devices, const std::function<void(size_t)>& body);
/// Tensors of replicas on their devices, kept from one run to the next: what has not changed is not made again. They
/// belong to one module; a copy of that begins with none.
class ReplicaTensors {
 public:
  ReplicaTensors();
  ReplicaTensors(const ReplicaTensors&) : ReplicaTensors() {}
  ReplicaTensors& operator=(const ReplicaTensors&) { return *this; }
  ~ReplicaTensors();
  struct State;
  /// While one lives, the tensors are its owner's. Whoever comes meanwhile (from another thread) gets none.
  class Use {
   public:
    explicit Use(ReplicaTensors* tensors);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    State* state = nullptr;
  };

 private:
  std::unique_ptr<State> state_;
};
/// Makes copies of a module replicas: their tensors become those of their devices. The first keeps the module's
/// buffers.
void make_replicas(const std::vector<nn::ModuleBase*>& copies, const Devices& devices, ReplicaTensors::State* kept);
/// All devices if none are named; they must exist and be of one kind, and all that the module has on the first of them.
Devices check_devices(const nn::ModuleBase& module, Devices devices);
bool is_lazy(const nn::ModuleBase& module);

inline nn::ModuleBase& base_of(nn::ModuleBase& module) { return module; }
inline nn::ModuleBase& base_of(nn::AnyModule& module) { return module.module(); }

template <class T>
void list_leaves(const T& value, const std::string& path, std::vector<TreeLeaf>& list) {
  if constexpr (tree::Composite<T>) {
    tree::for_each_child(
        value, [&](const tree::Key& key, const auto& child) { list_leaves(child, path + "." + key.text(), list); });
  } else if constexpr (tree::IsTensor<T>) {
    list.push_back({path, value.defined() ? "a tensor" : "no tensor"});
  } else if constexpr (requires { tutti::detail::print_field(value); }) {
    list.push_back({path, tutti::detail::print_field(value)});
  } else {
    list.push_back({path, ""});
  }
}
}  // namespace detail

/// Cuts the tensors of a tree along a dim, evenly, into parts for the devices; fewer if there is too little for all
/// (and one if there is nothing to cut). Devices that share memory with a tensor get views of it.
template <class T>
std::vector<T> scatter(const T& inputs, const Devices& devices, int64_t dim = 0) {
  std::vector<T> parts;
  for (const TensorList& tensors : detail::scatter_tensors(tree::tensors(inputs), devices, dim)) {
    parts.push_back(inputs);
    tree::assign_tensors(parts.back(), tensors);
  }
  return parts;
}

/// Puts trees together whose tensors lie on several devices, along a dim. Zero-dimensional tensors become one of one
/// dim; what is no tensor must be the same in all.
template <class T>
T gather(const std::vector<T>& outputs, Device device, int64_t dim = 0) {
  std::vector<TensorList> tensors;
  std::vector<std::vector<detail::TreeLeaf>> leaves(outputs.size());
  for (size_t k = 0; k < outputs.size(); ++k) detail::list_leaves(outputs[k], "", leaves[k]);
  detail::check_alike(leaves);
  for (const T& output : outputs) tensors.push_back(tree::tensors(output));
  T result = outputs[0];
  tree::assign_tensors(result, detail::gather_tensors(tensors, device, dim));
  return result;
}

namespace detail {
template <class M>
std::vector<M> replicas_of(const M& module, const Devices& devices, ReplicaTensors::State* kept) {
  std::vector<M> replicas(devices.size(), module);
  std::vector<nn::ModuleBase*> bases;
  for (M& replica : replicas) bases.push_back(&base_of(replica));
  make_replicas(bases, devices, kept);
  return replicas;
}
}  // namespace detail

/// Copies of a module, one for each device. Their parameters are the module's: gradients arrive there. Buffers of the
/// first are the module's too (running means go on); the others have copies.
template <class M>
std::vector<M> replicate(const M& module, const Devices& devices) {
  return detail::replicas_of(module, devices, nullptr);
}

/// Runs modules[k] with inputs[k] on devices[k], all at the same time. They see the caller's modes (grad, autocast,
/// ...) and draw random numbers of their own, which depend on the caller's generator and on k alone.
template <class M, class... Args>
auto parallel_apply(std::vector<M>& modules, std::vector<std::tuple<Args...>>& inputs, const Devices& devices) {
  detail::check_counts(modules.size(), inputs.size(), devices.size());
  auto run = [&](size_t k) { return std::apply([&](Args&... args) { return modules[k](args...); }, inputs[k]); };
  using Result = decltype(run(0));
  std::vector<std::optional<Result>> results(inputs.size());
  detail::run_on(devices, [&](size_t k) { results[k] = run(k); });
  std::vector<Result> list;
  for (auto& result : results) list.push_back(std::move(*result));
  return list;
}

struct DataParallelOptions {
  Devices devices = {};                      // default: all of the module's kind. The module lives on the first
  std::optional<Device> output_device = {};  // where results are put together; default: the first
  int64_t dim = 0;                           // along which batches are cut
};

namespace detail {
/// The outputs of the parts, each where it was made. A lazy module gets its parameters by its first run: that one is
/// not divided.
template <class M, class... Args>
auto run_apart(M& module, Devices devices, int64_t dim, const std::tuple<Args...>& arguments,
               ReplicaTensors* tensors = nullptr) {
  if (is_lazy(base_of(module))) devices.resize(1);
  std::vector<std::tuple<Args...>> inputs = scatter(arguments, devices, dim);
  devices.resize(inputs.size());
  if (devices.size() == 1) {
    DeviceGuard guard(devices[0]);
    return std::vector{std::apply([&](Args&... args) { return module(args...); }, inputs[0])};
  }
  ReplicaTensors::Use kept(tensors);
  std::vector<M> replicas = replicas_of(module, devices, kept.state);
  return parallel_apply(replicas, inputs, devices);
}
}  // namespace detail

/// Runs a module on parts of its arguments' tensors, on several devices, and puts the outputs together.
template <class M, class... Args>
auto data_parallel(M& module, const DataParallelOptions& options, const Args&... args) {
  Devices devices = detail::check_devices(detail::base_of(module), options.devices);
  auto outputs = detail::run_apart(module, devices, options.dim, std::tuple<Args...>(args...));
  return gather(outputs, options.output_device.value_or(devices[0]), options.dim);
}

/// A module that runs another like that. What its replicas have on their devices stays there from one run to the next:
/// only what has changed since is copied, and parameters never are where devices share memory.
template <class M>
struct DataParallel : nn::Module<DataParallel<M>> {
  using Wrapped = M;
  M module;
  TUTTI_FIELDS(module)
  static constexpr bool other_members = true;

  explicit DataParallel(M module, DataParallelOptions options = {})
      : module(std::move(module)), options(std::move(options)) {
    this->options.devices = detail::check_devices(detail::base_of(this->module), this->options.devices);
  }
  template <class... Args>
  auto forward(const Args&... args) {
    auto outputs = apart(args...);
    return gather(outputs, options.output_device.value_or(options.devices[0]), options.dim);
  }
  /// The outputs of the parts, left where they were made: for losses that are taken there.
  template <class... Args>
  auto apart(const Args&... args) {
    Devices devices = detail::check_devices(detail::base_of(module), options.devices);
    return detail::run_apart(module, devices, options.dim, std::tuple<Args...>(args...), &kept_);
  }

  DataParallelOptions options;

 private:
  detail::ReplicaTensors kept_;
};

}  // namespace tutti::parallel
