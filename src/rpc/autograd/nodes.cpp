#include "rpc/autograd/nodes.h"

#include "autograd/engine.h"
#include "autograd/meta.h"
#include "base/check.h"
#include "rpc/autograd/part.h"
#include "rpc/autograd/pass.h"
#include "tutti/ops.h"

namespace tutti::dist_autograd::detail {
namespace {

constexpr size_t kLongPath = 256;  // bytes, of which calls can be nested without end

void put(Path& path, uint32_t n) {
  for (int shift = 24; shift >= 0; shift -= 8) path.push_back(static_cast<char>(n >> shift));
}

uint64_t hash(const Path& path) {
  uint64_t h = 14695981039346656037u;
  for (char c : path) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return h;
}

}  // namespace

Path path_below(const Path& path, uint32_t n) {
  Path below = path;
  if (below.size() >= kLongPath) {  // still the same on every run, and still one of its own
    uint64_t h = hash(path);
    below.resize(16);
    put(below, static_cast<uint32_t>(h >> 32));
    put(below, static_cast<uint32_t>(h));
  }
  put(below, n);
  return below;
}

std::string key_of(const Path& path, bool answer) { return path + (answer ? 'a' : 'c'); }

// ---- Send

SendNode::SendNode(TensorList tensors, Path maker) : maker_(std::move(maker)) {
  outputs = static_cast<uint32_t>(tensors.size());
  device = tensors[0].device();
  for (const Tensor& t : tensors) {
    sent_.push_back({t.sizes(), t.dtype(), t.device()});
    edges.push_back(gradient_edge(t));
  }
  number_node(*this);
}

void SendNode::run(GradientBuffer& outputs, GradientBuffer& inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) inputs[i] = std::move(outputs[i]);
}

void SendNode::accept(TensorList& gradients) const {
  check<ValueError>(gradients.size() == sent_.size(), kBackwardOperation, "{} gradients came for {} tensors",
                    gradients.size(), sent_.size());
  for (size_t i = 0; i < sent_.size(); ++i) {
    Tensor& g = gradients[i];
    const Sent& s = sent_[i];
    if (!g.defined()) continue;
    bool smaller = !g.is_sparse() && g.sizes() != s.sizes && g.dim() == static_cast<int64_t>(s.sizes.size());
    bool fits = smaller || g.sizes() == s.sizes;
    for (int64_t d = 0; smaller && d < g.dim(); ++d) fits = fits && (g.size(d) == 1 || g.size(d) == s.sizes[d]);
    check<ShapeError>(fits && g.dtype() == s.dtype && g.device() == s.device, kBackwardOperation,
                      "{} came as the gradient of a tensor of shape {} and {} on {}", g, s.sizes, s.dtype, s.device);
    if (smaller) g = g.expand(s.sizes);
  }
}

// ---- Receive

ReceiveNode::ReceiveNode(ContextId context, int peer, std::string key, uint64_t after, TensorList& tensors,
                         const std::vector<uint32_t>& which)
    : context_(context), peer_(peer), key_(std::move(key)) {
  sequence = after;
  outputs = static_cast<uint32_t>(which.size());
  device = tensors[which[0]].device();
  for (uint32_t i = 0; i < which.size(); ++i) {
    AutogradMeta& meta = autograd_meta(tensors[which[i]]);
    meta.node = Ref<Node>(this);
    meta.output = i;
  }
}

void ReceiveNode::run(GradientBuffer& outputs, GradientBuffer&) { send({outputs.begin(), outputs.end()}); }
void ReceiveNode::no_gradient() { send(TensorList(outputs)); }

// What is the same all along a dimension, as the gradient of a sum or a mean is, travels once.
void ReceiveNode::send(TensorList gradients) const {
  for (Tensor& g : gradients)
    for (int64_t d = 0; g.defined() && !g.is_sparse() && d < g.dim(); ++d)
      if (g.size(d) > 1 && g.stride(d) == 0) g = g.slice(d, 0, 1);
  auto pass = Pass::current();
  check<GradError>(pass != nullptr && pass->context() == context_, "backward",
                   "the graph leads to rank {}, from which a tensor came in a distributed-autograd context: use "
                   "dist_autograd::backward(context, {{loss}}), inside of that context's life",
                   peer_);
  pass->send_back(*this, std::move(gradients));
}

// ---- Sink

void ContextSink::accumulate(const Tensor& leaf, Tensor gradient) {
  Tensor old = this->gradient(leaf);
  // A new tensor, since who has asked for the old one may still be looking at it.
  Tensor sum = old.defined() ? old + gradient : owned_gradient(leaf, std::move(gradient), false);
  set_gradient(leaf, sum);
}

Tensor ContextSink::gradient(const Tensor& leaf) {
  std::lock_guard lock(mutex_);
  auto it = gradients_.find(leaf);
  return it == gradients_.end() ? Tensor() : it->second;
}

void ContextSink::set_gradient(const Tensor& leaf, Tensor gradient) {
  Tensor old;  // goes after the lock
  std::lock_guard lock(mutex_);
  auto it = gradients_.find(leaf);
  if (it != gradients_.end()) {
    old = std::move(it->second);
    gradients_.erase(it);
  }
  if (gradient.defined()) gradients_.emplace(leaf, std::move(gradient));
}

GradientMap ContextSink::all() const {
  std::lock_guard lock(mutex_);
  return gradients_;
}
size_t ContextSink::size() const {
  std::lock_guard lock(mutex_);
  return gradients_.size();
}
void ContextSink::clear() {
  GradientMap old;
  std::lock_guard lock(mutex_);
  old.swap(gradients_);
}

}  // namespace tutti::dist_autograd::detail
