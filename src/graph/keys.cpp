// What tells calls apart.
#include "graph/keys.h"

#include "base/check.h"

namespace tutti::detail {

void append_key(std::string& key, const void* bytes, size_t count) {
  key.append(static_cast<const char*>(static_cast<const void*>(&count)), sizeof count);
  key.append(static_cast<const char*>(bytes), count);
}

namespace {

template <class T>
void append(std::string& key, const T& value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void append_shape(std::string& key, const Shape& s) {
  append(key, static_cast<uint32_t>(s.size()));
  key.append(reinterpret_cast<const char*>(s.data()), s.size() * sizeof(int64_t));
}

}  // namespace

bool readable(const TensorImpl* t) {
  if (!t->storage || t->device.is_meta()) return true;
  return t->numel == 0 ||
         static_cast<size_t>(t->offset + span_elements(t->sizes, t->strides)) * size_of(t->dtype) <= t->storage->bytes;
}

// All that is current and that a trace depends on.
void append_context(std::string& key) {
  const Context& c = context();
  append(key, c.modes & ~uint32_t{kTraceMode});
  append(key, c.rank);
  append(key, c.world_size);
  append(key, c.device.kind);
  append(key, c.device.index);
  append(key, c.default_dtype);
  append(key, c.autocast_dtype);
  append(key, c.sink);
  append(key, c.world.get());
}

// The first dim of the first argument that has one.
int64_t batch_of(const Invocation& call) {
  for (const Tensor& x : call.tensors)
    if (x.defined() && !x.is_number() && x.dim() > 0) return x.size(0);
  return -1;
}

// With a `batch` (-1: none), rows of that number are any number of rows.
void append_tensor(std::string& key, const Tensor& x, int64_t batch) {
  if (!x.defined()) {
    key += 'u';
    return;
  }
  const TensorImpl* t = impl(x);
  append(key, t->dtype);
  append(key, t->layout);
  append(key, t->device.kind);
  append(key, t->device.index);
  bool facts[] = {x.requires_grad(), x.is_leaf(), t->number, t->inference, readable(t), t->base.defined()};
  append(key, facts);
  bool rows = batch >= 0 && t->layout == Layout::strided && !t->sizes.empty() && t->sizes[0] == batch &&
              t->strides == contiguous_strides(t->sizes);
  if (rows) {
    key += 'n';
    append_shape(key, Shape(std::span(t->sizes.begin() + 1, t->sizes.end())));
    return;
  }
  append_shape(key, t->sizes);
  append_shape(key, t->strides);
  if (t->number) key.append(reinterpret_cast<const char*>(t->data()), size_of(t->dtype));
}

// Which arguments are the same, or share memory: with each other, or with what is watched. While tracing, an argument
// that shares memory with a watched tensor cannot be told from it.
void append_sharing(std::string& key, const TensorList& arguments, const TensorList& watched) {
  auto compare = [&](size_t i, const Tensor& x, size_t k, const Tensor& y) {
    if (x.defined() && x.is_same(y))
      append(key, std::pair(i, k));
    else if (x.shares_storage(y))
      append(key, std::tuple(i, k, x.storage_offset() - y.storage_offset()));
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    for (size_t k = 0; k < i; ++k) compare(i, arguments[i], k, arguments[k]);
    for (size_t k = 0; k < watched.size(); ++k) compare(i, arguments[i], arguments.size() + k, watched[k]);
  }
}

std::vector<std::string> facts_of(const Invocation& call) {
  std::vector<std::string> facts;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const Tensor& x = call.tensors[i];
    facts.push_back(fmt::format("argument {}: {}{}{}", i, x.defined() ? describe(x) : "undefined",
                                x.defined() && x.layout() == Layout::strided && !x.is_contiguous()
                                    ? fmt::format(" strides {}", x.strides())
                                    : "",
                                x.defined() && x.requires_grad() ? ", requires a gradient" : ""));
  }
  facts.push_back(fmt::format("modes: gradients {}, autocast {}, inference {}", grad_enabled() ? "on" : "off",
                              context().modes & kAutocastMode ? "on" : "off",
                              context().modes & kInferenceMode ? "on" : "off"));
  return facts;
}

}  // namespace tutti::detail
