// Which gradients go together, and the memory that they lie in.
#include <algorithm>
#include <map>

#include "base/check.h"
#include "comm/group/call.h"
#include "parallel/memory.h"
#include "parallel/reducer.h"
#include "tutti/ops.h"

namespace tutti::parallel {

const char* Reducer::purpose_of(const Bucket& b) const {
  const std::string &first = entries_[b.members.front()].name, &last = entries_[b.members.back()].name;
  return comm::lasting(
      fmt::format("*bucket {} of a DistributedDataParallel in backward: gradients of {}{}{}", b.content.index, first,
                  b.members.size() > 1 ? " .. " : "", b.members.size() > 1 ? last : ""),
      "*a bucket of a DistributedDataParallel in backward");
}
const char* Reducer::aside(Entry& e) {
  if (!e.purpose)
    e.purpose = comm::lasting("*a DistributedDataParallel in backward: the gradient of " + e.name,
                              "*a DistributedDataParallel in backward: a gradient by itself");
  return e.purpose;
}

// The leader's order becomes everyone's. What did not come on that rank is taken from the end of the module: that is
// where backward begins.
void Reducer::agree_on_order() {
  std::vector<bool> seen(entries_.size(), false);
  std::vector<int64_t> order;
  auto add = [&](size_t i) {
    if (!seen[i]) order.push_back(static_cast<int64_t>(i));
    seen[i] = true;
  };
  for (size_t i : pass_.order) add(i);
  for (size_t i = entries_.size(); i-- > 0;) add(i);
  Tensor all = tensor(order, {.dtype = DType::i64});
  comm::PurposeGuard purpose("*a DistributedDataParallel in backward: the order of its buckets");
  broadcast(all, {.root = pass_.leader, .group = channel_, .timeout = options_.timeout, .place = options_.place});
  order_.clear();
  for (int64_t i : all.to_vector<int64_t>()) order_.push_back(static_cast<size_t>(i));
}

// By order_, sparse_ and flags_, which all ranks have alike.
void Reducer::make_buckets() {
  buckets_.clear();
  std::map<std::pair<int, int>, Bucket> open;  // by dtype and device
  auto close = [&](Bucket&& bucket) {
    for (size_t i : bucket.members) entries_[i].bucket = static_cast<int>(buckets_.size());
    bucket.content.index = static_cast<int64_t>(buckets_.size());
    bucket.purpose = purpose_of(bucket);
    buckets_.push_back(std::move(bucket));
  };
  for (size_t i : order_) {
    Entry& e = entries_[i];
    e.bucket = -1;
    e.slot.reset();
    if (sparse_[i] || (!changes_ && !(flags_[i] & kUsed))) continue;
    const Tensor& p = e.parameter;
    auto key = std::pair(static_cast<int>(p.dtype()), static_cast<int>(p.device().kind) << 16 | p.device().index);
    Bucket& b = open[key];
    b.members.push_back(i);
    b.offsets.push_back(b.elements);
    auto step = std::max<int64_t>(1, kAlign / static_cast<int64_t>(p.element_size()));
    b.elements += (p.numel() + step - 1) / step * step;
    if (b.elements * static_cast<int64_t>(p.element_size()) < options_.bucket_bytes) continue;
    close(std::move(b));
    open.erase(key);
  }
  std::vector<Bucket> rest;
  for (auto& [key, b] : open) rest.push_back(std::move(b));
  auto place = [&](const Bucket& b) {
    return std::find(order_.begin(), order_.end(), b.members.back()) - order_.begin();
  };
  std::sort(rest.begin(), rest.end(), [&](const Bucket& a, const Bucket& b) { return place(a) < place(b); });
  for (Bucket& b : rest) close(std::move(b));
}

void Reducer::give_memory(Bucket& b) {
  comm::PurposeGuard purpose("*a DistributedDataParallel in backward: memory for its buckets");
  const Tensor& first = entries_[b.members[0]].parameter;
  b.content.buffer = group_zeros(b.elements, {.dtype = first.dtype(), .device = first.device()},
                                 {.group = channel_, .timeout = options_.timeout, .place = options_.place});
  for (size_t k = 0; k < b.members.size(); ++k) {
    Entry& e = entries_[b.members[k]];
    const Tensor& p = e.parameter;
    Tensor part = b.content.buffer.narrow(0, b.offsets[k], p.numel());
    // As gradients are: with the strides of the parameter, if it is dense.
    part = lies_dense(p) ? as_strided(part, p.sizes(), p.strides(), b.offsets[k]) : part.view(p.sizes());
    e.slot = part.detach();
    b.content.gradients.push_back(e.slot);
    b.content.parameters.push_back(p);
  }
}

}  // namespace tutti::parallel
