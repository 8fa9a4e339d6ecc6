// The reducer while backward runs: what it knows of the module, hooks, and what they do. See Note [A pass of the
// reducer].
#include "parallel/reducer.h"

#include <algorithm>
#include <numeric>

#include "autograd/engine.h"
#include "autograd/meta.h"
#include "base/check.h"
#include "comm/group/call.h"
#include "nn/visit.h"
#include "parallel/memory.h"
#include "parallel/sync_batch_norm.h"
#include "tutti/ops.h"

namespace tutti::parallel {
namespace {

constexpr const char* kBroken = "it cannot go on after a backward pass that failed ({}): make a new one";
// Transports keep a few collectives at a time. More would block backward until other ranks come, who may just then
// wait for this rank in a collective of their own (of a SyncBatchNorm, say).
constexpr size_t kMaxInFlight = 8;

// All tensors of a module, those that are shared as often as they are met. It makes no names: it runs in every forward.
class TensorVisitor final : public nn::detail::FieldVisitor {
 public:
  void parameter(const std::string&, nn::Parameter& p) override {
    if (p.defined() && p.requires_grad()) parameters.push_back(p);
  }
  void buffer(const std::string&, nn::Buffer& b) override {
    if (b.defined()) buffers.push_back(b);
  }
  void module(const std::string&, nn::ModuleBase& m) override { m.visit_fields(*this); }
  TensorList parameters, buffers;
};
TensorVisitor visit(nn::ModuleBase& module) {
  TensorVisitor visitor;
  visitor.module("", module);
  return visitor;
}

// Two would take gradients from each other.
void refuse_nested(const nn::ModuleBase& module) {
  nn::detail::walk(module, nn::detail::nothing, nn::detail::nothing, [](const std::string& path, nn::ModuleBase& m) {
    check<ValueError>(dynamic_cast<DdpBase*>(&m) == nullptr, kDdpName,
                      "the module has one in it already{}{}: wrap that one's module instead, or only what is beside it",
                      path.empty() ? "" : ", ", path);
  });
}

const char* name_of(BufferPolicy policy) {
  return policy == BufferPolicy::broadcast ? "broadcast" : policy == BufferPolicy::average ? "average" : "none";
}

// Wrappers are made by all ranks of their group together, so the order of any two is the same on all that have both.
uint64_t next_wrapper_number() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

// The numbers of all wrappers that a parameter has.
struct Owners {
  std::mutex mutex;
  std::unordered_multimap<const TensorImpl*, uint64_t> numbers;
};
Owners& owners() {
  static auto* all = new Owners;  // wrappers may live as long as the process
  return *all;
}
bool has_newer(const Tensor& parameter, uint64_t number) {
  std::lock_guard lock(owners().mutex);
  auto [begin, end] = owners().numbers.equal_range(parameter.impl());
  return std::any_of(begin, end, [&](const auto& owner) { return owner.second > number; });
}

}  // namespace

std::shared_ptr<Reducer> Reducer::make(nn::ModuleBase& module, const DdpOptions& options) {
  auto reducer = std::make_shared<Reducer>(module, options);
  // Hooks and joins know the reducer while it lives, and do not keep it alive.
  for (size_t i = 0; i < reducer->entries_.size(); ++i)
    reducer->hooks_.push_back(
        reducer->entries_[i].parameter.register_post_accumulate_hook(TakesGradient{[weak = std::weak_ptr(reducer), i] {
          if (auto self = weak.lock()) self->accumulated(i);
        }}));
  {
    std::lock_guard lock(owners().mutex);
    for (const Entry& e : reducer->entries_) owners().numbers.emplace(e.parameter.impl(), reducer->number_);
  }
  reducer->join_->shadow = [weak = std::weak_ptr(reducer)](int64_t mode) {
    if (auto self = weak.lock()) self->shadow(mode);
  };
  reducer->join_->fail = [weak = std::weak_ptr(reducer)](const std::string& why) {
    auto self = weak.lock();
    if (!self) return;
    std::lock_guard lock(self->mutex_);
    if (self->broken_.empty()) self->broken_ = why;
  };
  reducer->join_->finish = [weak = std::weak_ptr(reducer)](int last) {
    auto self = weak.lock();
    if (!self) return;
    TensorList all;
    for (const Entry& e : self->entries_) all.push_back(e.parameter);
    for (const NamedBuffer& b : self->buffers_)
      if (b.policy != BufferPolicy::none) all.push_back(b.tensor);
    comm::PurposeGuard purpose("the end of join(): all ranks get the parameters of the last");
    self->broadcast_all(all, last);
  };
  return reducer;
}

Reducer::Reducer(nn::ModuleBase& module, const DdpOptions& options)
    : options_(options), number_(next_wrapper_number()), group_(options.group.defined() ? options.group : world()) {
  check<ValueError>(options.bucket_bytes > 0, kDdpName, "bucket_bytes is {}: it must be positive",
                    options.bucket_bytes);
  check<ValueError>(options.checksum_every >= 0, kDdpName, "checksum_every is {}: a number of steps, or 0 for never",
                    options.checksum_every);
  check<ValueError>(options.root >= 0 && options.root < group_.size(), kDdpName, "root {} is not in a group of {}",
                    options.root, group_.size());
  check<ValueError>(group_.rank() >= 0, kDdpName, "this rank is not a member of the group: {}", to_string(group_));
  refuse_nested(module);
  std::vector<int> everyone(static_cast<size_t>(group_.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  channel_ = group_.subgroup(everyone);
  comm::PurposeGuard purpose("making a DistributedDataParallel, which all ranks of its group do together");
  adopt(module);
}

Reducer::~Reducer() {
  for (HookHandle& hook : hooks_) hook.remove();
  std::lock_guard lock(owners().mutex);
  for (const Entry& e : entries_) {
    auto [begin, end] = owners().numbers.equal_range(e.parameter.impl());
    auto mine = std::find_if(begin, end, [&](const auto& owner) { return owner.second == number_; });
    if (mine != end) owners().numbers.erase(mine);
  }
}

void Reducer::adopt(nn::ModuleBase& module) {
  NamedTensors parameters = module.named_parameters(), buffers = module.named_buffers();
  Facts facts{{"root", std::to_string(options_.root)},
              {"bucket_bytes", std::to_string(options_.bucket_bytes)},
              {"average by samples", options_.average == Average::samples ? "yes" : "no"},
              {"static_graph", options_.static_graph ? "yes" : "no"},
              {"checksum_every", std::to_string(options_.checksum_every)},
              {"hook", options_.hook ? "yes" : "no"}};
  for (auto& list : {facts_of("parameter", parameters), facts_of("buffer", buffers)})
    facts.insert(facts.end(), list.begin(), list.end());
  for (auto& [name, tensor] : buffers) {
    auto own = options_.buffer_policy.find(name);
    buffers_.push_back({name, tensor, own == options_.buffer_policy.end() ? options_.buffers : own->second});
    facts.emplace_back("policy of buffer " + name, name_of(buffers_.back().policy));
  }
  for (const auto& [name, policy] : options_.buffer_policy)
    check<ValueError>(std::any_of(buffers.begin(), buffers.end(), [&](auto& b) { return b.first == name; }), kDdpName,
                      "buffer_policy names {}, but the module has no such buffer", name);
  check_agree(kDdpName, facts, collective());

  TensorList all;
  for (auto& [name, tensor] : parameters) {
    all.push_back(tensor);
    if (!tensor.requires_grad()) continue;
    index_[tensor.impl()] = entries_.size();
    Entry& e = entries_.emplace_back();
    e.name = name;
    e.parameter = tensor;
  }
  for (const NamedBuffer& b : buffers_) all.push_back(b.tensor);
  for (const Tensor& met : visit(module).buffers) {
    auto same = std::find_if(buffers_.begin(), buffers_.end(), [&](auto& b) { return b.tensor.is_same(met); });
    buffer_visits_.push_back(static_cast<size_t>(same - buffers_.begin()));
  }
  broadcast_all(all, options_.root);
  sparse_.assign(entries_.size(), false);
}

ReduceOptions Reducer::average() const {
  ReduceOptions o{.op = Reduce::average, .group = channel_, .timeout = options_.timeout, .place = options_.place};
  const JoinSession* session = join_->session;
  if (options_.average == Average::samples)
    o.weight = pass_.joined ? 0 : earlier_samples_ + pass_.samples;
  else if (session)
    o.weight = pass_.joined && !session->count_joined() ? 0 : 1;
  return o;
}
CollectiveOptions Reducer::collective() const {
  return {.group = channel_, .timeout = options_.timeout, .place = options_.place};
}
void Reducer::broadcast_all(const TensorList& tensors, int root) const {
  NoGrad guard;
  for (const TensorList& list : by_kind(tensors))
    broadcast(list, {.root = root, .group = channel_, .timeout = options_.timeout, .place = options_.place});
}

void Reducer::check_module(nn::ModuleBase& module) {
  check<Error>(broken_.empty(), kDdpName, kBroken, broken_);
  for (const Tensor& p : visit(module).parameters) {
    auto known = index_.find(p.impl());
    if (known == index_.end()) unknown_parameter(module, p);
    const Entry& e = entries_[known->second];
    check<ValueError>(!e.slot.defined() ||
                          (e.slot.dtype() == p.dtype() && e.slot.sizes() == p.sizes() && e.slot.device() == p.device()),
                      kDdpName, "the parameter {} was {} and is {} now: convert the module before it is wrapped",
                      e.name, e.slot, p);
  }
  if (options_.average != Average::samples) return;
  weigh_statistics(module, number_, [weak = weak_from_this()] {
    auto self = weak.lock();
    return self ? self->weight_of_pass() : std::nullopt;
  });
}

void Reducer::unknown_parameter(const nn::ModuleBase& module, const Tensor& p) const {
  std::string name;
  nn::detail::walk(
      module,
      [&](const std::string& path, nn::Parameter& found) {
        if (found.defined() && found.is_same(p)) name = path;
      },
      nn::detail::nothing, nn::detail::nothing);
  fail<ValueError>(kDdpName,
                   "the parameter {} ({}) is not one of those it was made with: after replacing or copying "
                   "parameters, or asking for gradients of more of them, make a new {}",
                   name, p, kDdpName);
}

void Reducer::find_buffers(nn::ModuleBase& module) {
  TensorList met = visit(module).buffers;
  check<ValueError>(met.size() == buffer_visits_.size(), kDdpName,
                    "the module had {} buffers and has {} now: give it all before it is wrapped", buffer_visits_.size(),
                    met.size());
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < met.size(); ++i) buffers_.at(buffer_visits_[i]).tensor = met[i];
}

void Reducer::watch(const TensorList& outputs) {
  for (const Tensor& y : outputs)
    if (y.defined() && y.requires_grad() && !y.is_leaf())
      y.register_hook([weak = weak_from_this()](const Tensor&) {
        if (auto self = weak.lock()) {
          std::lock_guard lock(self->mutex_);
          self->begin_pass();
        } else {
          check<Error>(!after_backward([](bool) {}), kDdpName,
                       "backward runs through the output of one that is gone, and nobody would average gradients: "
                       "keep it until backward has run");
        }
        return Tensor();
      });
}

void Reducer::set_samples(double count) {
  check<ValueError>(options_.average == Average::samples, "set_samples",
                    "gradients are averaged by ranks: this is for {{.average = Average::samples}}");
  check<ValueError>(count == 0 || (count >= 1e-18 && count <= 1e18), "set_samples", "a batch cannot have {} samples",
                    count);  // as weights of all_reduce
  std::lock_guard lock(mutex_);
  next_samples_ = count;
}
std::optional<double> Reducer::weight_of_pass() const {
  std::lock_guard lock(mutex_);
  if (!pass_.active) return {};
  check<ValueError>(pass_.syncing && earlier_samples_ == 0, kDdpName,
                    "batch norms over all ranks, averages by samples and no_sync() do not go together: how much this "
                    "rank's part counts is not known before the last one. Average by ranks, and scale the losses");
  return pass_.samples;
}
void Reducer::add_no_sync(int change) {
  std::lock_guard lock(mutex_);
  no_sync_ += change;
}
UnusedParameters Reducer::unused() const {
  std::lock_guard lock(mutex_);
  return unused_;
}
CommunicationTime Reducer::communication_time() const {
  std::lock_guard lock(mutex_);
  return time_;
}
std::vector<std::vector<std::string>> Reducer::bucket_names() const {
  std::lock_guard lock(mutex_);
  std::vector<std::vector<std::string>> names;
  for (const Bucket& b : buckets_) {
    names.emplace_back();
    for (size_t i : b.members) names.back().push_back(entries_[i].name);
  }
  return names;
}
void Reducer::check_equal() {
  comm::PurposeGuard purpose("check_equal() of a DistributedDataParallel");
  NamedTensors list;
  for (const Entry& e : entries_) list.emplace_back(e.name, e.parameter);
  check_equal_bits(kDdpName, list, collective());
}

// ---- A pass

bool Reducer::begin_pass(const Entry* come) {
  if (pass_.active) return true;
  if (!broken_.empty()) {
    refuse_broken(come);
    return false;
  }
  if (!after_backward([self = shared_from_this()](bool well) { self->end_pass(well); }, number_)) return false;
  forget_cleared();
  pass_ = {};
  pass_.active = true;
  pass_.syncing = no_sync_ == 0;
  pass_.with_graph = grad_enabled();
  check<ValueError>(!pass_.syncing || options_.average != Average::samples || next_samples_, kDdpName,
                    "gradients are averaged by samples: call set_samples() before backward");
  pass_.samples = std::exchange(next_samples_, {}).value_or(0);
  if (pass_.syncing) begin_sync(false);
  if (pass_.syncing && !pass_.observing && !pass_.with_graph) offer_homes();
  return true;
}

// Nobody would average what comes, unless a newer one works on these parameters by now.
void Reducer::refuse_broken(const Entry* come) const {
  if (!after_backward([](bool) {})) return;  // it is for grad(), and goes to no parameter
  auto replaced = [&](const Entry& e) { return has_newer(e.parameter, number_); };
  check<Error>(come ? replaced(*come) : std::all_of(entries_.begin(), entries_.end(), replaced), kDdpName, kBroken,
               broken_);
}

// What was left without averaging may have been thrown away since, by zero_grad(), and its samples with it.
void Reducer::forget_cleared() {
  bool any = false;
  for (Entry& e : entries_) any = (e.dirty = e.dirty && gradient_sink().gradient(e.parameter).defined()) || any;
  if (!any) earlier_samples_ = 0;
}

// Gradients that come once may be made in the bucket, which waits for them. See Note [Gradients born in place].
void Reducer::offer_homes() {
  if (context().sink) return;  // it keeps gradients as they come, not until the next pass
  for (const Entry& e : entries_)
    if (e.bucket >= 0 && e.expected == 1 &&
        e.parameter.numel() * static_cast<int64_t>(e.parameter.element_size()) >= kWorthAHome &&
        !e.parameter.grad().defined())
      offer_home(e.parameter, e.slot);
}

// What every rank does first, those that have joined too.
void Reducer::begin_sync(bool joined) {
  pass_.joined = joined;
  pass_.observing = order_.empty() && !entries_.empty();
  next_ = 0;
  for (Bucket& b : buckets_) {
    b.left = false;
    b.missing = 0;
    for (size_t i : b.members) b.missing += entries_[i].expected > 0;
  }
  if (!joined && !pass_.observing && !pass_.with_graph) leave_ready();
}

void Reducer::accumulated(size_t index) {
  std::lock_guard lock(mutex_);
  Entry& e = entries_[index];
  bool active = begin_pass(&e);
  e.dirty = true;
  if (!active || !pass_.syncing) return;
  ++e.count;
  if (pass_.observing && e.count == 1) pass_.order.push_back(index);
  if (pass_.observing || pass_.with_graph) return;
  take(e);
  if (e.count != e.expected || e.bucket < 0) return;
  Bucket& b = buckets_[static_cast<size_t>(e.bucket)];
  if (b.left) return;
  --b.missing;
  leave_ready();
}

// Moves what has just been accumulated to where it belongs.
void Reducer::take(Entry& e) {
  GradientSink& sink = gradient_sink();
  Tensor g = sink.gradient(e.parameter);
  check<ValueError>(g.defined(), kDdpName,
                    "the gradient of {} is gone as soon as it came: another {} has the same parameters", e.name,
                    kDdpName);
  sink.set_gradient(e.parameter, {});
  Bucket* b = e.bucket < 0 ? nullptr : &buckets_[static_cast<size_t>(e.bucket)];
  if (g.is_sparse()) {
    e.sparse = e.sparse.defined() ? e.sparse + g : g;
  } else if (!b || b->left) {
    e.late = e.late.defined() ? e.late + g : g;
  } else {
    if (e.filled)
      e.slot.add_(g);
    else if (!same_place(g, e.slot))
      e.slot.copy_(g);
    e.filled = true;
  }
}

// The same for a parameter that nothing came for: what it has counts, if others use it.
void Reducer::take_rest(Entry& e) {
  if (e.filled || e.sparse.defined() || e.late.defined()) return;
  if (!pass_.joined) e.before = gradient_sink().gradient(e.parameter);
  if (!e.before.defined()) return;
  gradient_sink().set_gradient(e.parameter, {});
  if (e.before.is_sparse())
    e.sparse = e.before;
  else if (e.bucket < 0)
    e.late = e.before;
  else
    e.filled = true;
}

size_t Reducer::in_flight() const {
  size_t count = 0;
  for (size_t k = 0; k < next_; ++k) {
    const Communication& sent = buckets_[k].sent;
    count += sent.work.defined() ? !sent.work.done() : sent.finish != nullptr;  // who knows what that waits for
  }
  return count;
}

void Reducer::leave_ready() {
  while (next_ < buckets_.size() && buckets_[next_].missing == 0 && in_flight() < kMaxInFlight)
    leave(buckets_[next_++]);
}

void Reducer::leave(Bucket& b) {
  for (size_t i : b.members) {
    Entry& e = entries_[i];
    if (e.filled) continue;
    take_rest(e);
    if (!e.filled)
      e.slot.zero_();
    else if (!same_place(e.before, e.slot))
      e.slot.copy_(e.before);
    if (e.dirty)
      e.before.reset();  // it will not be put back, and need not wait for that in memory
    else if (e.before.defined() && same_place(e.before, e.slot))
      e.kept = e.before.clone();
  }
  b.left = true;
  send(b);
}

// A hook that assigns another tensor to the bucket's would leave the gradients as they were: each rank its own.
void Reducer::check_given(const Bucket& b) {
  bool same = b.content.gradients.size() + 1 == b.given.size() && b.content.buffer.is_same(b.given.back());
  for (size_t i = 0; same && i < b.content.gradients.size(); ++i) same = b.content.gradients[i].is_same(b.given[i]);
  check<ValueError>(
      same, kDdpName,
      "the hook put another tensor in the place of bucket.buffer or of one of bucket.gradients: it has to "
      "write into them, for example by copy_() or mul_()");
}

void Reducer::send(Bucket& b) {
  comm::PurposeGuard purpose(b.purpose);
  b.content.average = average();
  b.began = Clock::now();
  if (options_.hook) {
    b.given = b.content.gradients;
    b.given.push_back(b.content.buffer);
    b.sent = options_.hook(b.content);
    check_given(b);
  } else {
    b.sent = all_reduce_async(b.content.buffer, b.content.average);
  }
  if (!b.sent.work.defined()) return;
  b.ended = std::make_shared<std::atomic<Clock::rep>>();
  b.sent.work.then([ended = b.ended] { *ended = Clock::now().time_since_epoch().count(); });
}

}  // namespace tutti::parallel
