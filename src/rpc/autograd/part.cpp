#include "rpc/autograd/part.h"

#include "base/check.h"
#include "comm/launch/launch.h"
#include "rpc/autograd/hooks.h"
#include "rpc/autograd/pass.h"

namespace tutti::dist_autograd::detail {
namespace {

std::exception_ptr error_of(const std::string& why) {
  return std::make_exception_ptr(CancelledError("dist_autograd: the context is over: " + why, "dist_autograd"));
}

}  // namespace

// ---- Part

void Part::keep(const std::string& key, Ref<SendNode> node) {
  std::lock_guard lock(mutex_);
  if (!released_) sends_.emplace(key, std::move(node));
}

Ref<SendNode> Part::send(const std::string& key) const {
  std::lock_guard lock(mutex_);
  auto it = sends_.find(key);
  check<ValueError>(it != sends_.end(), "dist_autograd::backward",
                    "a gradient is to come for a message that this worker did not send");
  return it->second;
}

void Part::involve(int rank) {
  std::lock_guard lock(mutex_);
  involved_.insert(rank);
}
std::set<int> Part::involved() const {
  std::lock_guard lock(mutex_);
  return involved_;
}
size_t Part::sends() const {
  std::lock_guard lock(mutex_);
  return sends_.size();
}

std::shared_ptr<Pass> begin_pass(const std::shared_ptr<Part>& part, const PassHead& head,
                                 const std::shared_ptr<rpc::detail::Agent>& agent) {
  std::lock_guard lock(part->mutex_);
  check<ValueError>(!part->released_, "dist_autograd::backward", "the context is over");
  auto& pass = part->pass_;
  if (pass && pass->head().number == head.number) return pass;
  check<ValueError>(!pass || pass->ended(), "dist_autograd::backward",
                    "another backward pass, begun by rank {}, is under way in this context: wait for its end, or make "
                    "a context for each",
                    pass ? pass->head().initiator : -1);
  return pass = std::make_shared<Pass>(part, head, agent);
}

std::shared_ptr<Pass> Part::find_pass(uint64_t number) const {
  std::lock_guard lock(mutex_);
  return pass_ && pass_->head().number == number ? pass_ : nullptr;
}
std::shared_ptr<Pass> Part::active_pass() const {
  std::lock_guard lock(mutex_);
  return pass_ && !pass_->ended() ? pass_ : nullptr;
}

void Part::release(const std::exception_ptr& error) {
  std::unordered_map<std::string, Ref<SendNode>> sends;  // freed after the lock
  std::shared_ptr<Pass> pass;
  {
    std::lock_guard lock(mutex_);
    released_ = true;
    sends.swap(sends_);
    pass.swap(pass_);
  }
  if (pass) pass->abort(error);
  sink.clear();
}

std::shared_ptr<Scope> current_scope() { return std::static_pointer_cast<Scope>(context().distributed_autograd); }

// ---- Registry

Registry::Registry(const std::shared_ptr<rpc::detail::Agent>& agent, int rank, tutti::Context context)
    : agent_(agent), rank_(rank), context_(std::move(context)) {}

Registry::~Registry() {
  for (auto& [id, part] : parts_) part->release(error_of("the session has ended"));
}

std::shared_ptr<Registry> Registry::current(const char* operation) {
  auto agent = rpc::detail::Agent::current(operation);
  auto registry = std::static_pointer_cast<Registry>(agent->companion([] { return nullptr; }));
  check<ValueError>(registry != nullptr, operation, "the session of this rank is over");
  return registry;
}

std::shared_ptr<Part> Registry::make() {
  ContextId id{next_number()};
  auto part = std::make_shared<Part>(id, true);
  std::lock_guard lock(mutex_);
  parts_.emplace(id.number, part);
  own_.insert(id.number);
  return part;
}

std::shared_ptr<Part> Registry::adopt(ContextId id, int from) {
  int owner = owner_of(id);
  auto agent = this->agent();
  if (!agent) return nullptr;
  int number = agent->number_of(rpc::To(owner));  // throws where there is no such worker
  std::shared_ptr<Part> part;
  {
    std::lock_guard lock(mutex_);
    auto it = parts_.find(id.number);
    if (it != parts_.end()) return it->second;
    const Ended& ended = ended_[owner];
    if (owner == rank_ || id.number < ended.below || ended.ids.count(id.number)) return nullptr;
    part = std::make_shared<Part>(id, false);
    parts_.emplace(id.number, part);
  }
  if (agent->is_lost(number)) {
    lost(owner, "");
    return nullptr;
  }
  if (from != owner) rpc::async<&join_context>(owner, id);
  return part;
}

std::shared_ptr<Part> Registry::find(ContextId id) const {
  std::lock_guard lock(mutex_);
  auto it = parts_.find(id.number);
  return it == parts_.end() ? nullptr : it->second;
}

std::shared_ptr<Part> Registry::get(ContextId id, const char* operation) const {
  std::lock_guard lock(mutex_);
  auto it = parts_.find(id.number);
  if (it != parts_.end()) return it->second;
  auto failed = failed_.find(id.number);
  check<GradError>(failed == failed_.end(), operation, "the context was freed when its backward pass failed: {}",
                   failed == failed_.end() ? "" : failed->second);
  fail<ValueError>(operation,
                   "worker rank {} knows nothing of this context (made by rank {}): it is over, or no call that was "
                   "made in it has come here",
                   rank_, owner_of(id));
}

uint64_t Registry::oldest() const {
  std::lock_guard lock(mutex_);
  return own_.empty() ? (static_cast<uint64_t>(rank_) << 48 | (last_.load() + 1)) : *own_.begin();
}

void Registry::release_everywhere(ContextId id, const std::exception_ptr& error) {
  std::shared_ptr<Part> part;
  std::string why = error ? comm::text_of(error) : "its owner let it go";
  {
    std::lock_guard lock(mutex_);
    auto it = parts_.find(id.number);
    if (it == parts_.end()) return;
    part = it->second;
    parts_.erase(it);
    own_.erase(id.number);
    if (error) failed_.emplace(id.number, why);
  }
  part->release(error ? error : error_of(why));
  uint64_t oldest = this->oldest();
  ContextGuard guard(context_);
  for (int rank : part->involved()) try {
      if (rank != rank_) (void)ask<&release_context>(rank, id, oldest, why);
    } catch (const Error&) {  // the session is over, and so is all that it had
    }
}

void Registry::release(ContextId id, uint64_t oldest, const std::string& why) {
  std::shared_ptr<Part> part;
  {
    std::lock_guard lock(mutex_);
    Ended& ended = ended_[owner_of(id)];
    ended.below = std::max(ended.below, oldest);
    ended.ids.erase(ended.ids.begin(), ended.ids.lower_bound(ended.below));
    if (id.number >= ended.below) ended.ids.insert(id.number);
    auto it = parts_.find(id.number);
    if (it == parts_.end()) return;
    part = it->second;
    parts_.erase(it);
  }
  part->release(error_of(why));
}

void Registry::forget(ContextId id) {
  std::lock_guard lock(mutex_);
  failed_.erase(id.number);
}

bool Registry::joined(ContextId id, int rank) {
  auto part = find(id);
  if (!part) return false;
  part->involve(rank);
  return !part->released();  // if it was released meanwhile, perhaps before it knew of this rank
}

void Registry::lost(int rank, const std::string& why) {
  std::vector<std::shared_ptr<Part>> orphans, others;
  {
    std::lock_guard lock(mutex_);
    for (auto it = parts_.begin(); it != parts_.end();) {
      bool orphan = owner_of(it->second->id) == rank;
      (orphan ? orphans : others).push_back(it->second);
      it = orphan ? parts_.erase(it) : std::next(it);
    }
  }
  auto error = std::make_exception_ptr(
      RankFailure(fmt::format("dist_autograd: rank {}, which ran backward, is lost: {}", rank, why), "dist_autograd"));
  for (auto& part : orphans) part->release(error);
  for (auto& part : others)
    if (auto pass = part->active_pass(); pass && pass->head().initiator == rank) pass->abort(error);
}

Statistics Registry::statistics() const {
  std::vector<std::shared_ptr<Part>> parts;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, part] : parts_) parts.push_back(part);
  }
  Statistics s;
  s.contexts = parts.size();
  for (const auto& part : parts) {
    s.sends += part->sends();
    s.gradients += part->sink.size();
    s.passes += part->active_pass() != nullptr;
  }
  return s;
}

void attach(const std::shared_ptr<rpc::detail::Agent>& agent, int rank, const tutti::Context& context) {
  rpc::detail::set_hooks(&message_hooks());
  auto registry = std::make_shared<Registry>(agent, rank, context);
  agent->companion([&] { return registry; });
  agent->on_lost([weak = std::weak_ptr(registry)](int lost, const std::string& why) {
    if (auto alive = weak.lock()) alive->lost(lost, why);
  });
}

}  // namespace tutti::dist_autograd::detail
