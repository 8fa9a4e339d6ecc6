#include "tutti/rpc/module.h"

#include "base/check.h"
#include "base/names.h"
#include "tutti/random.h"
#include "tutti/rpc/optimizer.h"

namespace tutti::rpc::detail {

constexpr const char* kModuleOperation = "RemoteModule";

ModulePlace::ModulePlace(std::string_view text, To::Where where) : where(where) {
  size_t slash = text.find('/');
  worker = text.substr(0, slash);
  if (slash != std::string_view::npos) device = text.substr(slash + 1);
  check<ValueError>(!worker.empty() && (slash == std::string_view::npos || !device.empty()), kModuleOperation,
                    "'{}' does not say where: \"worker1\", \"worker1/cpu\" or \"worker1/cuda:0\"", text);
  if (!device.empty()) (void)Device(std::string_view(device));  // throws here, not there
}

HostedBase::HostedBase(const std::string& device) {
  if (!device.empty()) device_ = Device(std::string_view(device));
}

void HostedBase::settle() {
  if (device_) base().to(*device_);
}

std::optional<Device> HostedBase::enter(TensorList& tensors) const {
  std::optional<Device> from;
  if (!device_) return from;
  for (Tensor& t : tensors) {
    if (!t.defined() || t.device() == *device_) continue;
    if (!from) from = t.device();
    t = t.to(*device_);
  }
  return from;
}

void HostedBase::leave(TensorList& tensors, Device device) {
  for (Tensor& t : tensors)
    if (t.defined()) t = t.to(device);
}

nn::StateDict HostedBase::state_dict() {
  nn::StateDict state = base().state_dict();
  for (auto& [name, t] : state) t = t.detach().to(Device());
  return state;
}
void HostedBase::load_state_dict(const nn::StateDict& state) { base().load_state_dict(state); }
std::vector<RemoteRef<Tensor>> HostedBase::parameters() { return dist_autograd::references(base().parameters()); }
void HostedBase::train(bool on) { base().train(on); }

void without_drawing(const std::function<void()>& f) {
  Context mine = context();
  mine.generator = std::make_shared<Generator>();
  ContextGuard guard(std::move(mine));
  f();
}

void cannot_make_here(const std::type_info& type) {
  fail<ValueError>(kModuleOperation,
                   "this handle came from another worker, which does not tell how the {} was made: say it again, "
                   "to_here(arguments...)",
                   short_name(type));
}

}  // namespace tutti::rpc::detail
