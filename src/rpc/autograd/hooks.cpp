#include "rpc/autograd/hooks.h"

#include <cstring>

#include "base/check.h"
#include "io/blob.h"
#include "rpc/autograd/part.h"

namespace tutti::dist_autograd::detail {
namespace {

using rpc::detail::Kind;

constexpr const char* kAutogradOperation = "dist_autograd";

/// What travels: docs/wire-format.md.
struct Extension {
  ContextId context;
  Path path;                    // of the call, or of the call that is answered
  std::vector<uint32_t> which;  // of the message's tensors require gradients

  std::string bytes() const {
    std::string out;
    io::put(out, context.number);
    io::put(out, static_cast<uint32_t>(path.size()));
    out += path;
    for (uint32_t i : which) io::put(out, i);
    return out;
  }
  static Extension read(std::string_view in, const TensorList& tensors) {
    Extension e;
    uint32_t path = 0;
    constexpr size_t kFixed = sizeof(uint64_t) + sizeof(uint32_t);
    check<ValueError>(in.size() >= kFixed, kAutogradOperation, "a message says too little of its context");
    std::memcpy(&e.context.number, in.data(), sizeof(uint64_t));
    std::memcpy(&path, in.data() + sizeof(uint64_t), sizeof path);
    in.remove_prefix(kFixed);
    check<ValueError>(path <= in.size() && path <= 1024 && (in.size() - path) % sizeof(uint32_t) == 0,
                      kAutogradOperation, "a message has a path of {} bytes in {}", path, in.size());
    e.path = in.substr(0, path);
    in.remove_prefix(path);
    e.which.resize(in.size() / sizeof(uint32_t));
    if (!in.empty()) std::memcpy(e.which.data(), in.data(), in.size());
    for (size_t k = 0; k < e.which.size(); ++k) {
      uint32_t i = e.which[k];
      check<ValueError>(i < tensors.size() && (k == 0 || i > e.which[k - 1]) && tensors[i].defined() &&
                            is_differentiable(tensors[i].dtype()),
                        kAutogradOperation,
                        "a message says that tensor {} of its {} requires a gradient, which it cannot", i,
                        tensors.size());
    }
    return e;
  }
};

std::string outgoing(int peer, Kind kind, TensorList& tensors) {
  auto* scope = static_cast<Scope*>(context().distributed_autograd.get());
  if (!scope || !grad_enabled() || scope->part->released()) return {};
  Extension e{scope->part->id, scope->path, {}};
  TensorList sent;
  for (uint32_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].defined() && tensors[i].requires_grad()) {
      e.which.push_back(i);
      sent.push_back(tensors[i]);
    }
  if (kind == Kind::answer && sent.empty()) return {};
  if (kind == Kind::call) {
    e.path = path_below(scope->path, ++scope->calls);
    if (scope->part->mine) scope->part->involve(peer);
  }
  if (!sent.empty())
    scope->part->keep(key_of(e.path, kind == Kind::answer), make_node<SendNode>(std::move(sent), scope->path));
  uint64_t made = last_number(), before = scope->before.load();
  while (before < made && !scope->before.compare_exchange_weak(before, made)) {
  }
  return e.bytes();
}

void incoming(int peer, Kind kind, std::string_view bytes, TensorList& tensors, tutti::Context& context) {
  Extension e = Extension::read(bytes, tensors);
  std::shared_ptr<Scope> scope;
  if (kind == Kind::call) {
    auto part = Registry::current(kAutogradOperation)->adopt(e.context, peer);
    if (!part) return;  // nobody will ask for gradients any more
    scope = std::make_shared<Scope>(part, e.path);
    context.distributed_autograd = scope;
  } else {
    scope = std::static_pointer_cast<Scope>(context.distributed_autograd);
    check<ValueError>(scope && scope->part->id == e.context, kAutogradOperation,
                      "an answer belongs to another context");
    if (scope->part->released()) return;
  }
  if (e.which.empty()) return;
  uint64_t after = kind == Kind::call ? 0 : scope->before.load();
  make_node<ReceiveNode>(e.context, peer, key_of(e.path, kind != Kind::call), after, tensors, e.which);
}

}  // namespace

const rpc::detail::MessageHooks& message_hooks() {
  static constexpr rpc::detail::MessageHooks hooks{&outgoing, &incoming};
  return hooks;
}

}  // namespace tutti::dist_autograd::detail
