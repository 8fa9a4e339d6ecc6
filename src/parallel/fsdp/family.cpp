// A family while forward and backward run. See Note [A pass of a family].
#include "parallel/fsdp/family.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "autograd/engine.h"
#include "base/check.h"
#include "comm/group/call.h"
#include "tutti/ops.h"
#include "tutti/trace.h"

namespace tutti::parallel {
namespace {

// Families are made by all ranks together, so the order of any two is the same on all. Passes of those who average
// gradients otherwise end before.
uint64_t next_family_number() {
  static std::atomic<uint64_t> last{uint64_t{1} << 62};
  return ++last;
}

bool any_requires_grad(const TensorList& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return t.defined() && t.requires_grad(); });
}

Group same_ranks(const Group& group) {
  std::vector<int> everyone(static_cast<size_t>(group.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  return group.subgroup(everyone);
}

}  // namespace

// ---- Order

void UnitOrder::begin() {
  if (!now_.empty()) last_ = std::move(now_);
  now_.clear();
  at_ = 0;
}

std::vector<ShardUnit*> UnitOrder::next(ShardUnit* unit, int count) {
  now_.push_back(unit);
  auto found = std::find(last_.begin() + static_cast<int64_t>(at_), last_.end(), unit);
  if (found == last_.end()) found = std::find(last_.begin(), last_.end(), unit);
  std::vector<ShardUnit*> ahead;
  if (found == last_.end()) return ahead;
  at_ = static_cast<size_t>(found - last_.begin()) + 1;
  for (size_t i = at_; i < last_.size() && static_cast<int>(ahead.size()) < count; ++i)
    if (last_[i] != unit && !last_[i]->flats.empty() && std::find(ahead.begin(), ahead.end(), last_[i]) == ahead.end())
      ahead.push_back(last_[i]);
  return ahead;
}

void UnitOrder::forget(ShardUnit* unit) {
  std::erase(last_, unit);
  std::erase(now_, unit);
  at_ = std::min(at_, last_.size());
}

// ---- Who belongs to it

ShardFamily::ShardFamily(const FullyShardOptions& options)
    : options_(options), number_(next_family_number()), group_(options.group.defined() ? options.group : world()) {
  check<ValueError>(group_.rank() >= 0, kShardName, "this rank is not a member of the group: {}", to_string(group_));
  check<ValueError>(!options.replicas.defined() || options.replicas.rank() >= 0, kShardName,
                    "this rank is not a member of the replicas: {}",
                    options.replicas.defined() ? to_string(options.replicas) : "");
  check<ValueError>(options.prefetch >= 0, kShardName, "prefetch is {}: a number of units, or 0 for none",
                    options.prefetch);
  for (const auto& dtype : {options.mixed.parameters, options.mixed.gradients})
    check<DTypeError>(!dtype || is_floating(*dtype), kShardName, "parameters and gradients cannot be {}",
                      dtype.value_or(DType::f32));
}

void ShardFamily::begin_alike(const NamedTensors& parameters, const nn::ModuleBase& module,
                              const FullyShardOptions& o) {
  NoGrad guard;
  auto text = [](const std::optional<DType>& dtype) {
    return dtype ? std::string(tutti::name(*dtype)) : "as they are";
  };
  Facts facts{{"ranks of the group", std::to_string(group_.size())},
              {"mixed.parameters", text(o.mixed.parameters)},
              {"mixed.gradients", text(o.mixed.gradients)},
              {"average by samples", o.average == Average::samples ? "yes" : "no"},
              {"reshard_after_forward", o.reshard_after_forward ? "yes" : "no"},
              {"prefetch", std::to_string(o.prefetch)},
              {"buffers", std::to_string(static_cast<int>(o.buffers))}};
  for (auto& fact : facts_of("parameter", parameters)) facts.push_back(fact);
  TensorList all = module.buffers();
  for (const auto& [name, tensor] : parameters) all.push_back(tensor);
  comm::PurposeGuard purpose("fully_shard, which all ranks of its group call together");
  for (const Group& group : {o.replicas, group_}) {
    if (!group.defined()) continue;
    check_agree(kShardName, facts, {.group = group, .timeout = o.timeout, .place = o.place});
    for (const TensorList& list : by_kind(all))
      broadcast(list, {.root = 0, .group = group, .timeout = o.timeout, .place = o.place});
  }
}

void ShardFamily::add(const std::shared_ptr<ShardUnit>& unit) { units_.push_back(unit.get()); }

void ShardFamily::adopt(const std::shared_ptr<ShardUnit>& unit) {
  std::shared_ptr<ShardFamily> other = unit->family;
  if (other.get() == this) return;
  check<ValueError>(other->group_ == group_ && other->options_.replicas == options_.replicas, kShardName,
                    "{}, a unit below this module, is cut over {}, and not over {} as this one is: units of a model "
                    "have the same groups",
                    unit->name, to_string(other->group_), to_string(group_));
  check<ValueError>(other->depth_ == 0 && !other->pass_, kShardName, "{}, a unit below this module, is at work",
                    unit->name);
  for (ShardUnit* u : other->units_) {
    u->family = shared_from_this();
    units_.push_back(u);
  }
  other->units_.clear();
}

void ShardFamily::forget(ShardUnit* unit) {
  std::lock_guard lock(mutex_);
  std::erase(units_, unit);
  std::erase(due_, unit);
  forward_.forget(unit);
  backward_.forget(unit);
  if (reducing_ == unit) reducing_ = nullptr;
}

void ShardFamily::add_no_sync(int change) {
  std::lock_guard lock(mutex_);
  no_sync_ += change;
}

void ShardFamily::set_samples(double count) {
  check<ValueError>(options_.average == Average::samples, "set_samples",
                    "gradients are averaged by ranks: this is for {{.average = Average::samples}}");
  check<ValueError>(count == 0 || (count >= 1e-18 && count <= 1e18), "set_samples", "a batch cannot have {} samples",
                    count);  // as weights of all_reduce
  std::lock_guard lock(mutex_);
  next_samples_ = count;
}

// All ranks come here first in the same forward.
void ShardFamily::open_channels() {
  if (gather_.defined()) return;
  gather_ = same_ranks(group_);
  reduce_ = same_ranks(group_);
  if (options_.replicas.defined()) replicas_ = same_ranks(options_.replicas);
  comm::PurposeGuard purpose("the first forward of fully_shard: memory for its units");
  if (gather_.transport() != "shm") return;  // others have no memory in which nothing needs to be copied
  int64_t largest = 0;
  for (ShardUnit* u : units_)
    for (ShardFlat& flat : u->flats) {
      flat.move_shards({.group = gather_, .timeout = options_.timeout, .place = options_.place});
      largest = std::max(largest, u->outermost ? 0 : flat.gradient_bytes());
    }
  pool_ = std::make_unique<GradientPool>(
      largest, GroupMemoryOptions{.group = reduce_, .timeout = options_.timeout, .place = options_.place});
}

// ---- Forward

void ShardFamily::gather(ShardUnit& unit, UnitOrder& order, bool ahead) {
  unit.start_gather(gathering());
  if (ahead)
    for (ShardUnit* next : order.next(&unit, unit.options.prefetch)) next->start_gather(gathering());
  unit.finish_gather();
}

// What has been gathered ahead reads the shards, which anybody may change from now on.
void ShardFamily::settle() {
  for (ShardUnit* u : units_) u->finish_gather();
}
void ShardFamily::free_all() {
  for (ShardUnit* u : units_) u->free_whole();
}

void ShardFamily::before_forward(ShardUnit& unit, nn::ModuleBase& module, TensorList& inputs) {
  if (Tracer* tracer = tracing())
    tracer->untraceable(
        "a module that fully_shard has cut (call it as it is, and compile pieces inside of its forward)");
  std::lock_guard lock(mutex_);
  if (depth_ == 0) versions_ = std::make_shared<ForwardVersions>();
  if (depth_ == 0 && !pass_) {
    unit.outermost = true;
    open_channels();
    free_all();  // what is still there need not be what the shards are now
    forward_.begin();
  }
  ++depth_;
  ++unit.running;
  unit.used.push_back(0);
  start_due();
  gather(unit, pass_ ? backward_ : forward_, true);
  unit.used.back() = unit.version;
  unit.show(module, true);
  if (!unit.options.mixed.parameters) return;
  for (Tensor& x : inputs)
    if (x.defined() && x.is_floating()) x = x.to(*unit.options.mixed.parameters);
}

std::shared_ptr<const UnitCall> ShardFamily::after_forward(ShardUnit& unit, nn::ModuleBase& module,
                                                           const TensorList& outputs) {
  std::lock_guard lock(mutex_);
  --depth_;
  --unit.running;
  UnitCall call{depth_ == 0 ? std::exchange(versions_, {}) : versions_, unit.used.back()};
  unit.used.pop_back();
  if (unit.running == 0) unit.show(module, false);
  bool recorded = grad_enabled() && any_requires_grad(outputs), outermost = depth_ == 0 && !pass_;
  if (recorded) ++unit.pending;
  bool again = tracing() && !grad_enabled();  // a checkpoint watches what it will run again in backward
  if (recorded || again) call.all->units.emplace_back(unit.weak_from_this(), call.version);
  // Backward begins with the outermost unit and the last one, if it does not run already.
  bool at_once = pass_ || outermost || forward_.is_last(&unit) || !unit.options.reshard_after_forward;
  if (unit.running == 0 && !(recorded && at_once)) unit.free_whole();
  if (outermost) {
    settle();
    buffers_ = module.buffers();
  }
  return recorded ? std::make_shared<const UnitCall>(std::move(call)) : nullptr;
}

void ShardFamily::forward_failed(ShardUnit& unit, nn::ModuleBase& module) {
  std::lock_guard lock(mutex_);
  if (unit.running == 0) return;  // another hook has thrown before ours
  if (--depth_ == 0) versions_.reset();
  --unit.running;
  unit.used.pop_back();
  if (unit.running > 0) return;
  unit.show(module, false);
  unit.free_whole();
  if (depth_ == 0 && !pass_) settle();
}

// While its unit's forward runs, a module inside of it finds whole parameters. While its backward runs they are there
// too, but fields do not hold them: who runs forward again, as checkpoint() does, calls the module itself.
void ShardFamily::before_inner_forward(ShardUnit& unit, nn::ModuleBase& module) {
  std::lock_guard lock(mutex_);
  if (unit.running > 0) return;
  check<ValueError>(pass_ && unit.state == ShardUnit::State::there, kShardName,
                    "this {} is part of the unit {}, whose parameters are whole only while that runs: call that, or "
                    "make a unit of this module",
                    module.type_name(), unit.name);
  unit.show_some(module, true);
}
void ShardFamily::after_inner_forward(ShardUnit& unit, nn::ModuleBase& module) {
  std::lock_guard lock(mutex_);
  if (unit.running == 0) unit.show_some(module, false);
}

// ---- Backward

void ShardFamily::check_unchanged(const ShardUnit& unit, const UnitCall* call) {
  if (!call) return;
  auto check_one = [](const ShardUnit& u, uint64_t version) {
    check<VersionError>(version == u.shard_version(), "backward",
                        "the parameters of {} have been changed since its forward, whose values backward needs: step "
                        "optimizers after backward",
                        u.name);
  };
  check_one(unit, call->version);
  if (pass_ && call->all->checked == passes_) return;
  for (const auto& [weak, version] : call->all->units)
    if (auto u = weak.lock()) check_one(*u, version);
}

bool ShardFamily::begin_pass() {
  if (pass_) return true;
  if (!after_backward([self = shared_from_this()](bool well) { self->end_pass(well); }, number_)) return false;
  check<ValueError>(!grad_enabled(), kShardName,
                    "backward(create_graph) would give averages of gradients that cannot be differentiated: for "
                    "gradients of gradients, use grad() of what is not a parameter, and then backward()");
  pass_ = true;
  ++passes_;
  syncing_ = no_sync_ == 0;
  for (ShardUnit* u : units_)
    for (ShardFlat& flat : u->flats) flat.forget_cleared();
  if (options_.average == Average::samples) count_samples();
  backward_.begin();
  if (!backward_.known()) backward_.guess({forward_.now().rbegin(), forward_.now().rend()});
  return true;
}

void ShardFamily::before_backward(ShardUnit& unit, const UnitCall* call) {
  std::lock_guard lock(mutex_);
  check_unchanged(unit, call);  // first: a pass that has not begun leaves everything as it was
  bool accumulates = begin_pass();
  if (accumulates && call) call->all->checked = passes_;
  start_due();
  gather(unit, backward_, accumulates);
  if (accumulates && unit.pending <= 1)
    for (ShardFlat& flat : unit.flats) flat.offer_homes(unit.outermost ? nullptr : pool_.get());
}

void ShardFamily::after_backward_of(ShardUnit& unit, const TensorList& grad_inputs) {
  std::lock_guard lock(mutex_);
  // Without gradients of inputs this is called when backward has just begun.
  if (std::none_of(grad_inputs.begin(), grad_inputs.end(), [](const Tensor& t) { return t.defined(); })) return;
  // A pass that can be differentiated comes again, and needs the same values.
  if (unit.pending > 0 && !grad_enabled()) --unit.pending;
  unit.free_whole();
  if (pass_ && syncing_ && unit.pending == 0 && std::find(due_.begin(), due_.end(), &unit) == due_.end())
    due_.push_back(&unit);
}

void ShardFamily::before_second(ShardUnit& unit, const UnitCall* call) {
  std::lock_guard lock(mutex_);
  check_unchanged(unit, call);
  if (begin_pass() && call) call->all->checked = passes_;
  start_due();
  gather(unit, backward_, false);
}
void ShardFamily::after_second(ShardUnit& unit) {
  std::lock_guard lock(mutex_);
  unit.free_whole();
}

void ShardFamily::accumulated(ShardUnit& unit, size_t flat, size_t member) {
  std::lock_guard lock(mutex_);
  begin_pass();
  ShardMember& m = unit.flats[flat].members()[member];
  Tensor g = gradient_sink().gradient(m.whole);
  gradient_sink().set_gradient(m.whole, {});
  if (g.defined()) unit.flats[flat].take(m, g);
}

void ShardFamily::start_due() {
  for (ShardUnit* u : std::exchange(due_, {})) reduce(*u);
}

void ShardFamily::count_samples() {
  check<ValueError>(!syncing_ || next_samples_, kShardName,
                    "gradients are averaged by samples: call set_samples() before backward");
  bool kept = std::any_of(units_.begin(), units_.end(), [](const ShardUnit* u) { return u->any_filled(); });
  samples_ = (kept ? earlier_samples_ : 0) + std::exchange(next_samples_, {}).value_or(0);
  earlier_samples_ = syncing_ ? 0 : samples_;
  if (!syncing_ || !replicas_.defined()) return;
  NoGrad guard;
  comm::PurposeGuard purpose("fully_shard in backward: how many samples all ranks have");
  Tensor sum = full({1}, samples_, {.dtype = DType::f64});
  all_reduce(sum, {.group = reduce_, .timeout = options_.timeout, .place = options_.place});
  replica_samples_ = sum.item<double>();
}

ReduceOptions ShardFamily::averaging() const {
  ReduceOptions o{.op = Reduce::average, .group = reduce_, .timeout = options_.timeout, .place = options_.place};
  if (options_.average == Average::samples) o.weight = samples_;
  return o;
}
std::optional<ReduceOptions> ShardFamily::across() const {
  if (!replicas_.defined()) return {};
  ReduceOptions o = averaging();
  o.group = replicas_;
  if (options_.average == Average::samples) o.weight = replica_samples_;
  return o;
}

void ShardFamily::finish_reducing() {
  if (!reducing_) return;
  comm::PurposeGuard purpose(reducing_->averages);
  for (ShardFlat& flat : reducing_->flats) flat.finish_reduce(across());
}

void ShardFamily::reduce(ShardUnit& unit) {
  finish_reducing();
  reducing_ = &unit;
  if (!unit.averages)
    unit.averages = comm::lasting("fully_shard in backward: the gradients of " + unit.name,
                                  "fully_shard in backward: a unit's gradients");
  comm::PurposeGuard purpose(unit.averages);
  for (ShardFlat& flat : unit.flats) flat.start_reduce(averaging());
}

// ---- The end of a pass

void ShardFamily::end_pass(bool well) {
  std::lock_guard lock(mutex_);
  if (!pass_) return;
  auto reset = [&] {
    pass_ = false;
    due_.clear();
    reducing_ = nullptr;
    for (ShardUnit* u : units_) u->pending = 0;
  };
  try {
    if (well && syncing_) finish_pass();
    if (well && !syncing_) finish_without_averages();
    free_all();
  } catch (...) {
    well = false;
    reset();
    for (ShardUnit* u : units_)
      for (ShardFlat& flat : u->flats) flat.abandon();
    throw;
  }
  reset();
  if (!well)
    for (ShardUnit* u : units_)
      for (ShardFlat& flat : u->flats) flat.abandon();
}

void ShardFamily::finish_without_averages() {
  for (ShardUnit* u : units_)
    for (ShardFlat& flat : u->flats) flat.keep();
}

void ShardFamily::finish_pass() {
  start_due();
  std::vector<uint8_t> flags = exchange_flags();
  size_t at = 0;
  for (ShardUnit* u : units_) {
    if (flags[at++]) reduce(*u);
    for (ShardFlat& flat : u->flats)
      for (ShardMember& m : flat.members()) m.used = flags[at++];
  }
  finish_reducing();
  for (ShardUnit* u : units_)
    for (ShardFlat& flat : u->flats) {
      flat.forget();
      flat.hand_out();
    }
  sync_buffers();
}

// Of each unit, whether it has gradients that are not on their way; of each parameter, whether it has had any.
std::vector<uint8_t> ShardFamily::exchange_flags() {
  NoGrad guard;
  std::vector<uint8_t> mine;
  for (const ShardUnit* u : units_) {
    mine.push_back(u->any_filled());
    for (const ShardFlat& flat : u->flats)
      for (const ShardMember& m : flat.members()) mine.push_back(m.dirty);
  }
  comm::PurposeGuard purpose("the end of backward through fully_shard: who used which parameters");
  Tensor flags = tensor(mine, {.dtype = DType::u8});
  for (const Group& group : {reduce_, replicas_})
    if (group.defined())
      all_reduce(flags, {.op = Reduce::bor, .group = group, .timeout = options_.timeout, .place = options_.place});
  return flags.to_vector<uint8_t>();
}

void ShardFamily::sync_buffers() {
  NoGrad guard;
  if (options_.buffers == BufferPolicy::none) return;
  comm::PurposeGuard purpose("the end of backward through fully_shard: buffers of the module");
  TensorList same, averaged;
  for (const Tensor& b : buffers_) {
    bool average = options_.buffers == BufferPolicy::average && (b.is_floating() || b.is_complex());
    (average ? averaged : same).push_back(b);
  }
  for (const Group& group : {replicas_, reduce_})  // the first rank's reach the first of each group, and all from there
    if (group.defined())
      for (const TensorList& list : by_kind(same))
        broadcast(list, {.root = 0, .group = group, .timeout = options_.timeout, .place = options_.place});
  for (const TensorList& list : by_kind(averaged)) {
    all_reduce(list, averaging());
    if (auto more = across()) all_reduce(list, *more);
  }
}

}  // namespace tutti::parallel
