#include "tutti/parallel/data_parallel.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>

#include "base/check.h"
#include "base/workers.h"
#include "comm/launch/errors.h"
#include "nn/visit.h"
#include "tensor/impl.h"
#include "tutti/ops.h"
#include "tutti/random.h"

namespace tutti::parallel::detail {
namespace {

// A tensor as one of this device: itself, a view of it where memory is shared, or a copy.
Tensor moved(const Tensor& x, Device device) {
  if (!x.defined() || x.device() == device) return x;
  bool shares = x.device().is_cpu() && device.is_cpu() && !x.is_sparse();
  return shares ? view_on(x, device) : copy_to(x, device);
}

bool is_cut(const Tensor& x, int64_t dim) { return x.defined() && !x.is_sparse() && x.dim() > dim; }

// How much there is to cut; -1: nothing.
int64_t length_of(const TensorList& tensors, int64_t dim) {
  const Tensor* first = nullptr;
  for (const Tensor& x : tensors) {
    if (x.defined())
      check<ValueError>(!x.is_sparse(), "scatter", "{} is sparse and cannot be cut; give its parts, or to_dense() it",
                        x);
    if (!is_cut(x, dim)) continue;
    if (!first) first = &x;
    check<ShapeError>(x.size(dim) == first->size(dim), "scatter",
                      "tensors that are cut along dim {} must be of the same size there: {} and {}", dim, *first, x);
  }
  return first ? first->size(dim) : -1;
}

}  // namespace

std::vector<TensorList> scatter_tensors(const TensorList& tensors, const Devices& devices, int64_t dim) {
  check<ValueError>(!devices.empty(), "scatter", "there are no devices to scatter to");
  check<ValueError>(dim >= 0, "scatter", "dim {} must not be negative: tensors may have different numbers of dims",
                    dim);
  int64_t length = length_of(tensors, dim), n = static_cast<int64_t>(devices.size());
  int64_t part = std::max<int64_t>(1, (length + n - 1) / n), count = std::max<int64_t>(1, (length + part - 1) / part);
  std::vector<TensorList> parts;
  for (int64_t k = 0; k < count; ++k) {
    TensorList list;
    for (const Tensor& x : tensors) {
      bool cut = is_cut(x, dim) && count > 1;
      Tensor mine = cut ? narrow(x, dim, k * part, std::min(part, length - k * part)) : x;
      list.push_back(moved(mine, devices[static_cast<size_t>(k)]));
    }
    parts.push_back(std::move(list));
  }
  return parts;
}

TensorList gather_tensors(const std::vector<TensorList>& parts, Device device, int64_t dim) {
  TensorList result;
  for (size_t i = 0; i < parts[0].size(); ++i) {
    TensorList list;
    for (const TensorList& part : parts) list.push_back(moved(part[i], device));
    const Tensor& first = list[0];
    if (!first.defined() || (list.size() == 1 && first.dim() > 0))
      result.push_back(first);
    else
      result.push_back(first.dim() == 0 ? stack(list) : cat(list, dim));
  }
  return result;
}

void check_alike(const std::vector<std::vector<TreeLeaf>>& trees) {
  check<ValueError>(!trees.empty(), "gather", "there is nothing to gather");
  auto name = [](const TreeLeaf& leaf) { return leaf.path.empty() ? "the output" : "output" + leaf.path; };
  for (size_t k = 1; k < trees.size(); ++k) {
    const auto &a = trees[0], &b = trees[k];
    for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
      bool both = i < a.size() && i < b.size() && a[i].path == b[i].path;
      check<ValueError>(both, "gather",
                        "outputs of different forms cannot be put together: replica 0 has {} parts, replica {} has {}; "
                        "the first that only one has is {}",
                        a.size(), k, b.size(),
                        name(i < a.size() && (i >= b.size() || a[i].path < b[i].path) ? a[i] : b[i]));
      check<ValueError>(a[i].text == b[i].text, "gather", "{} is {} of replica 0 and {} of replica {}", name(a[i]),
                        a[i].text, b[i].text, k);
    }
  }
}

void check_counts(size_t modules, size_t inputs, size_t devices) {
  check<ValueError>(modules == inputs && inputs == devices, "parallel_apply",
                    "{} modules, {} inputs and {} devices were given: there must be one of each for every part",
                    modules, inputs, devices);
}

void run_on(const Devices& devices, const std::function<void(size_t)>& body) {
  size_t n = devices.size();
  // Which numbers a replica draws must not depend on who is faster.
  Generator::State numbers = generator().reserve(1);
  std::vector<std::exception_ptr> errors(n);
  std::function<void()> here;
  Jobs jobs;
  for (size_t k = 0; k < n; ++k) {
    Context mine = context();
    mine.device = devices[k];
    mine.generator = std::make_shared<Generator>((numbers.seed + k + 1) * 0x9E3779B97F4A7C15u ^ numbers.position);
    auto serve = [&body, &errors, k, mine] {
      ContextGuard guard(mine);
      try {
        body(k);
      } catch (...) {
        errors[k] = std::current_exception();
      }
    };
    if (!here && devices[k] == context().device && serves_itself(context())) {
      here = std::move(serve);
      continue;
    }
    jobs.start(devices[k], std::move(serve));
  }
  if (here) serve_here(context().device, here);
  jobs.wait(here != nullptr);
  for (size_t k = 0; k < n; ++k)
    if (errors[k]) comm::rethrow_with(errors[k], fmt::format("replica {} on {}: ", k, devices[k]));
}

// What a replica has in place of a tensor of the module.
struct Kept {
  Tensor source, here;
  uint64_t source_version = 0, here_version = 0;  // when they were the same
  bool met = false;
};
using KeptTensors = std::unordered_map<const TensorImpl*, Kept>;
struct ReplicaTensors::State {
  std::atomic<bool> busy = false;
  std::vector<KeptTensors> replicas;
};
ReplicaTensors::ReplicaTensors() : state_(std::make_unique<State>()) {}
ReplicaTensors::~ReplicaTensors() = default;
ReplicaTensors::Use::Use(ReplicaTensors* tensors) {
  if (tensors && !tensors->state_->busy.exchange(true)) state = tensors->state_.get();
}
ReplicaTensors::Use::~Use() {
  if (state) state->busy = false;
}

namespace {

// Whether it still stands for x: it sees x's memory, or neither has been written since it was copied. The version of a
// storage counts all writes, by whatever view.
bool is_current(const Kept& kept, const Tensor& x, Device device, bool copies) {
  const Tensor& here = kept.here;
  if (!here.defined() || !(here.device() == device) || here.requires_grad() != x.requires_grad() ||
      here.dtype() != x.dtype() || here.sizes() != x.sizes())
    return false;
  if (!copies && here.shares_storage(x))
    return here.storage_offset() == x.storage_offset() && here.strides() == x.strides();
  return x.version() == kept.source_version && here.version() == kept.here_version;
}

Tensor replica_of(const Tensor& x, Device device, bool copies) {
  if (!copies) return moved(x, device);
  return x.device() == device ? clone(x) : copy_to(x, device);
}

class ReplicaMaker {
 public:
  ReplicaMaker(Device device, KeptTensors& kept) : device_(device), kept_(kept) {}
  // `copies`: a replica may write it, and must not write the module's.
  void replace(Tensor& x, bool copies) {
    if (!x.defined() || (!copies && x.device() == device_)) return;
    Kept& kept = kept_[x.impl()];
    // Others have a graph that does not last, or no version by which to know that they changed.
    bool lasts = !x.is_sparse() && !impl(x)->inference && (x.is_leaf() || !x.requires_grad());
    if (!kept.met && !(lasts && is_current(kept, x, device_, copies))) {
      // They serve runs with gradients and without.
      ModeGuard mode(lasts ? uint32_t{kGradMode} : 0, lasts ? uint32_t{kInferenceMode} : 0);
      Tensor here = replica_of(x, device_, copies);
      kept = {x, here, x.version(), here.version()};
    }
    kept.met = true;  // what is shared stays shared
    x = kept.here;
  }
  // Forgets what was not met: it is no longer of the module.
  void finish() {
    std::erase_if(kept_, [](const auto& entry) { return !entry.second.met; });
    for (auto& [key, kept] : kept_) kept.met = false;
  }

 private:
  Device device_;
  KeptTensors& kept_;
};

}  // namespace

void make_replicas(const std::vector<nn::ModuleBase*>& copies, const Devices& devices, ReplicaTensors::State* kept) {
  ReplicaTensors::State fresh;
  ReplicaTensors::State& state = kept ? *kept : fresh;
  state.replicas.resize(copies.size());
  for (size_t k = 0; k < copies.size(); ++k) {
    ReplicaMaker maker(devices[k], state.replicas[k]);
    nn::detail::walk(
        *copies[k], [&](const std::string&, nn::Parameter& p) { maker.replace(p, false); },
        // A replica may write its buffers: only one writes those of the module.
        [&](const std::string&, nn::Buffer& b) { maker.replace(b, k > 0); },
        [](const std::string&, nn::ModuleBase& m) { m.set_replica(); });
    maker.finish();
  }
}

Devices check_devices(const nn::ModuleBase& module, Devices devices) {
  constexpr auto name = "DataParallel";
  if (devices.empty())
    for (int k = 0; k < cpu_devices(); ++k) devices.emplace_back(DeviceKind::cpu, k);
  for (Device d : devices)
    check<DeviceError>(d.is_cpu() && d.index < cpu_devices(), name,
                       "there is no {}: this program has {} (set_cpu_devices changes that)", d,
                       cpu_devices() == 1 ? "cpu:0" : fmt::format("cpu:0 ... cpu:{}", cpu_devices() - 1));
  auto check_home = [&](const std::string& path, const Tensor& x) {
    if (!x.defined()) return;
    check<DeviceError>(x.device() == devices[0], name,
                       "{} is on {}, but all parameters and buffers must be on the first of the devices, {}: move the "
                       "module there by to(\"{}\")",
                       path, x.device(), devices[0], devices[0]);
  };
  nn::detail::walk(module, check_home, check_home, nn::detail::nothing);
  return devices;
}

bool is_lazy(const nn::ModuleBase& module) {
  bool lazy = false;
  nn::detail::walk(
      module, [&](const std::string&, nn::Parameter& p) { lazy = lazy || (!p.defined() && p.awaited); },
      nn::detail::nothing, nn::detail::nothing);
  return lazy;
}

}  // namespace tutti::parallel::detail
