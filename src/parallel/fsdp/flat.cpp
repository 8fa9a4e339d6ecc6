// A unit's buffer: how it is cut, gathered and freed, and how gradients go through it.
#include <algorithm>

#include "autograd/homes.h"
#include "base/check.h"
#include "parallel/fsdp/unit.h"
#include "parallel/memory.h"
#include "tutti/ops.h"

namespace tutti::parallel {
namespace {

int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

}  // namespace

ShardFlat::ShardFlat(std::vector<ShardMember> members, const Group& group, const MixedPrecision& mixed)
    : members_(std::move(members)), rank_(group.rank()) {
  NoGrad guard;
  const Tensor first = members_.at(0).shard.detach();
  Options options{.dtype = first.dtype(), .device = first.device()};
  int64_t step = std::max<int64_t>(1, kAlign / static_cast<int64_t>(first.element_size()));
  for (ShardMember& m : members_) {
    m.offset = total_;
    m.count = m.shard.numel();
    m.sizes = m.shard.sizes();
    total_ = round_up(total_ + m.count, step);
  }
  total_ = round_up(total_, step * group.size());
  per_rank_ = total_ / group.size();
  shard_ = zeros({per_rank_}, options);
  bool mixes = is_floating(first.dtype());
  options.dtype = mixes ? mixed.parameters.value_or(first.dtype()) : first.dtype();
  reduced_as_ = mixes ? mixed.gradients.value_or(*options.dtype) : first.dtype();
  whole_ = empty({total_}, options);
  version_ = whole_.version();
  for (ShardMember& m : members_) {
    Tensor value = m.shard.detach();
    if (!lies_dense(value)) value = value.contiguous();
    m.strides = value.strides();
    m.whole = as_strided(whole_, m.sizes, m.strides, m.offset).detach().requires_grad_(m.shard.requires_grad());
    std::tie(m.begin, m.end) = range(m, rank_);
    Tensor part = shard_.narrow(0, m.end > m.begin ? m.offset + m.begin - rank_ * per_rank_ : 0, m.end - m.begin);
    part.copy_(as_strided(value, {m.count}, {1}, value.storage_offset()).narrow(0, m.begin, m.end - m.begin));
    m.shard.set_grad({});
    m.shard.set_data(part);
  }
  free_whole();
}

std::pair<int64_t, int64_t> ShardFlat::range(const ShardMember& m, int rank) const {
  int64_t first = rank * per_rank_ - m.offset;
  int64_t begin = std::clamp<int64_t>(first, 0, m.count);
  return {begin, std::clamp<int64_t>(first + per_rank_, begin, m.count)};
}

void ShardFlat::check_shards() const {
  for (const ShardMember& m : members_)
    check<ValueError>(m.shard.shares_storage(shard_) && m.shard.numel() == m.end - m.begin, kShardName,
                      "the parameter {} is {} in other memory now: convert and move modules before they are sharded",
                      m.name, m.shard);
}
bool ShardFlat::trainable() const {
  return std::any_of(members_.begin(), members_.end(), [](const ShardMember& m) { return m.whole.requires_grad(); });
}

// ---- Parameters

void ShardFlat::move_shards(const GroupMemoryOptions& memory) {
  // What is cast before it is sent is sent from elsewhere.
  if (shard_.dtype() != whole_.dtype() || !(shard_.device() == Device())) return;
  NoGrad guard;
  check_shards();
  GroupMemoryOptions wanted = memory;
  wanted.dtype = shard_.dtype();
  Tensor moved = group_empty({per_rank_}, wanted);
  moved.copy_(shard_);
  moved.set_version(shard_.version());  // graphs that were made before know it
  for (ShardMember& m : members_) m.shard.set_data(moved.narrow(0, m.shard.storage_offset(), m.shard.numel()));
  shard_ = moved;
}

void ShardFlat::start_gather(const CollectiveOptions& options) {
  NoGrad guard;
  PreserveVersion preserve;  // what is saved may be asked for its version meanwhile
  check_shards();
  whole_.resize_storage(static_cast<size_t>(total_) * whole_.element_size());
  sent_ = shard_.dtype() == whole_.dtype() ? shard_ : shard_.to(whole_.dtype());
  gathering_ = all_gather_async(whole_, sent_, options);
}

void ShardFlat::finish_gather() {
  gathering_.wait();
  whole_.set_version(version_);
  gathering_ = {};
  sent_.reset();
  for (ShardMember& m : members_)
    if (m.whole.requires_grad() != m.shard.requires_grad()) m.whole.requires_grad_(m.shard.requires_grad());
}

// ---- Gradients

int64_t ShardFlat::gradient_bytes() const { return total_ * static_cast<int64_t>(size_of(reduced_as_)); }

void ShardFlat::make_gradients(GradientPool* pool) {
  NoGrad guard;
  gradients_.reset();
  lease_.reset();
  if (pool) std::tie(gradients_, lease_) = pool->take(total_, reduced_as_);
  if (!gradients_.defined()) gradients_ = empty({total_}, gradient_options());
  for (ShardMember& m : members_) m.slot = as_strided(gradients_, m.sizes, m.strides, m.offset).detach();
}

void ShardFlat::offer_homes(GradientPool* pool) {
  if (!trainable()) return;
  if (!gradients_.defined()) make_gradients(shard_.device() == Device() ? pool : nullptr);
  if (context().sink) return;  // it keeps gradients as they come, not until the next pass
  for (ShardMember& m : members_) {
    bool fits = m.whole.requires_grad() && m.whole.dtype() == reduced_as_ &&
                m.count * static_cast<int64_t>(m.whole.element_size()) >= kWorthAHome;
    if (!fits || m.filled || m.offered) continue;
    m.offered = true;
    offer_home(m.whole, m.slot);
  }
}

void ShardFlat::take(ShardMember& m, const Tensor& gradient) {
  NoGrad guard;
  if (!gradients_.defined()) make_gradients();
  Tensor g = gradient.is_sparse() ? gradient.to_dense() : gradient;
  if (m.filled)
    m.slot.add_(g);
  else if (!same_place(g, m.slot))
    m.slot.copy_(g);
  m.filled = m.dirty = true;
}

// Zeros where nothing came. What autograd may still write to is left to it: what it has begun there may come later.
void ShardFlat::clear_rest() {
  bool lent = std::any_of(members_.begin(), members_.end(), [](auto& m) { return m.offered && !m.filled; });
  if (lent) {
    TensorList came;
    GradientPool::Lease lent_out = lease_;
    for (const ShardMember& m : members_) came.push_back(m.filled ? m.slot : Tensor());
    make_gradients();
    for (size_t i = 0; i < came.size(); ++i)
      if (came[i].defined()) members_[i].slot.copy_(came[i]);
    if (lent_out) lent_.push_back(lent_out);
  }
  int64_t at = 0;
  for (const ShardMember& m : members_) {
    gradients_.narrow(0, at, m.offset - at).zero_();
    at = m.offset + m.count;
    if (!m.filled) gradients_.narrow(0, m.offset, m.count).zero_();
  }
  gradients_.narrow(0, at, total_ - at).zero_();
}

void ShardFlat::start_reduce(const ReduceOptions& options) {
  if (!trainable()) return;
  NoGrad guard;
  if (!gradients_.defined()) make_gradients();
  clear_rest();
  Tensor part = empty({per_rank_}, gradient_options());
  Work work = reduce_scatter_async(part, gradients_, options);
  reductions_.push_back({std::move(gradients_), part, work, std::move(lease_)});
  forget();
}

void ShardFlat::forget() {
  gradients_.reset();
  lease_.reset();
  for (ShardMember& m : members_) {
    m.slot.reset();
    m.filled = m.offered = false;
  }
}

bool ShardFlat::any_filled() const {
  return std::any_of(members_.begin(), members_.end(), [](const ShardMember& m) { return m.filled; });
}

void ShardFlat::abandon() {
  for (Reduction& r : reductions_) try {
      r.work.wait();
    } catch (const std::exception&) {  // what failed first is known already
    }
  reductions_.clear();
  averages_.reset();
  lent_.clear();
  forget();
  for (ShardMember& m : members_) m.dirty = m.used = false;
}

void ShardFlat::forget_cleared() {
  for (ShardMember& m : members_)
    if (m.dirty && !gradient_sink().gradient(m.shard).defined()) m.dirty = m.filled = false;
  if (!any_filled()) forget();
}

void ShardFlat::keep() {
  if (!any_filled()) return forget();
  for (ShardMember& m : members_) {
    m.offered = false;
    if (m.dirty && !gradient_sink().gradient(m.shard).defined())
      gradient_sink().set_gradient(m.shard, zeros_like(m.shard.detach()));
  }
}

void ShardFlat::finish_reduce(const std::optional<ReduceOptions>& replicas) {
  NoGrad guard;
  for (Reduction& r : reductions_) {
    r.work.wait();
    if (!r.lease) r.whole.resize_storage(0);  // the pass still knows it as the home of gradients
    r.lease.reset();
    if (replicas) all_reduce(r.part, *replicas);
    if (averages_.defined())
      averages_.add_(r.part);
    else
      averages_ = std::move(r.part);
  }
  reductions_.clear();
}

void ShardFlat::hand_out() {
  NoGrad guard;
  GradientSink& sink = gradient_sink();
  Tensor averages = std::exchange(averages_, {});
  lent_.clear();
  if (averages.defined() && averages.dtype() != shard_.dtype()) averages = averages.to(shard_.dtype());
  for (ShardMember& m : members_) {
    if (!std::exchange(m.used, false)) continue;
    m.dirty = false;
    if (!averages.defined()) continue;
    Tensor part = averages.narrow(0, m.end > m.begin ? m.offset + m.begin - rank_ * per_rank_ : 0, m.end - m.begin);
    Tensor before = sink.gradient(m.shard);
    sink.set_gradient(m.shard, before.defined() ? before.add_(part) : part.detach());
  }
}

}  // namespace tutti::parallel
