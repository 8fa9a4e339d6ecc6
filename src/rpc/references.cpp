#include "rpc/references.h"

#include <utility>

#include "base/check.h"
#include "base/names.h"
#include "comm/launch/errors.h"
#include "rpc/agent.h"

namespace tutti::rpc::detail {

RefHandle::~RefHandle() {
  if (auto agent = agent_.lock()) agent->references().drop(id);
}

std::shared_ptr<Agent> RefHandle::agent() const {
  auto agent = agent_.lock();
  check<ValueError>(agent && !agent->is_shut_down(), "RemoteRef",
                    "the session of this reference, made at {}, is over: references live no longer than that", made_at);
  return agent;
}

std::shared_ptr<References::Object> References::object(const RefId& id) {
  auto& entry = objects_[id];
  if (!entry) entry = std::make_shared<Object>();
  return entry;
}

References::Outcome References::settle() {
  Outcome outcome;
  outcome.messages = holder_.take_messages();
  for (const RefId& id : owner_.take_free()) {
    auto it = objects_.find(id);
    if (it == objects_.end()) continue;
    outcome.freed.push_back(std::move(it->second));
    objects_.erase(it);
  }
  return outcome;
}

// Without the lock: objects that go may hold references themselves.
void References::carry_out(Outcome outcome) {
  for (const LeaseMessage& m : outcome.messages) {
    if (m.to == me_)
      take(me_, m);
    else
      agent_.send_lease(m);
  }
  for (auto& object : outcome.freed)
    object->ready->try_fail(std::make_exception_ptr(
        RankFailure("rpc: the object was never made, or is no more: the worker that was to make it is lost", "rpc")));
}

std::shared_ptr<RefHandle> References::make(int owner, const std::string& type, std::string made_at) {
  std::lock_guard lock(mutex_);
  RefId id = holder_.make(owner);
  return std::make_shared<RefHandle>(agent_.weak_from_this(), id, type, std::move(made_at));
}

void References::leave(Message& message, int to) {
  std::vector<std::shared_ptr<RefHandle>> until_here;
  std::lock_guard lock(mutex_);
  for (RefRecord& r : message.references) {
    if (r.fork != kMaking) r.fork = holder_.fork(r.id, to);
    until_here.push_back(std::move(r.handle));
  }
}

std::optional<RefRecord> References::arrive(Message& message) {
  std::optional<RefRecord> making;
  if (message.references.empty()) return making;
  auto exists = [&](int worker) { return worker >= 0 && worker < agent_.size(); };
  for (const RefRecord& r : message.references)
    check<ValueError>(exists(r.id.maker) && exists(r.id.owner), "rpc",
                      "a message has a reference to an object of worker {}, made by worker {}", r.id.owner, r.id.maker);
  Outcome outcome;
  {
    std::lock_guard lock(mutex_);
    for (RefRecord& r : message.references) {
      if (r.fork == kMaking) continue;
      holder_.receive(r.id, message.from, r.fork);
      r.handle = std::make_shared<RefHandle>(agent_.weak_from_this(), r.id, r.type, r.made_at);
    }
    outcome = settle();
  }
  carry_out(std::move(outcome));
  if (message.references[0].fork == kMaking) {
    making = std::move(message.references[0]);
    message.references.erase(message.references.begin());
    check<ValueError>(making->id.owner == me_ && making->id.maker == message.from, "rpc",
                      "a message of worker {} is to make an object of worker {} for worker {}", message.from,
                      making->id.owner, making->id.maker);
  }
  return making;
}

void References::drop(const RefId& id) {
  Outcome outcome;
  {
    std::lock_guard lock(mutex_);
    holder_.drop(id);
    outcome = settle();
  }
  carry_out(std::move(outcome));
}

void References::take(int from, const LeaseMessage& m) {
  Outcome outcome;
  {
    std::lock_guard lock(mutex_);
    switch (m.kind) {
      case LeaseMessage::take: {
        bool gone = owner_.take(m.id, from) == LeaseOwner::Taken::gone;
        outcome.messages.push_back({gone ? LeaseMessage::gone : LeaseMessage::confirm, from, m.id, 0});
        break;
      }
      case LeaseMessage::confirm:
      case LeaseMessage::gone:
        holder_.confirmed(m.id, m.kind == LeaseMessage::gone);
        break;
      case LeaseMessage::accept:
        holder_.accepted(m.fork);
        break;
      case LeaseMessage::give_back:
        owner_.give_back(m.id, from);
        break;
    }
    Outcome more = settle();
    outcome.messages.insert(outcome.messages.end(), more.messages.begin(), more.messages.end());
    outcome.freed = std::move(more.freed);
  }
  carry_out(std::move(outcome));
}

void References::died(int worker) {
  Outcome outcome;
  {
    std::lock_guard lock(mutex_);
    owner_.died(worker);
    holder_.died(worker);
    outcome = settle();
  }
  carry_out(std::move(outcome));
}

// ---- Objects

void References::put(const RefRecord& making, std::shared_ptr<void> value, const std::type_info* type,
                     std::exception_ptr error) {
  Outcome outcome;
  std::shared_ptr<Object> mine;
  {
    std::lock_guard lock(mutex_);
    mine = object(making.id);
    mine->value = std::move(value);
    mine->type = type;
    mine->type_name = making.type;
    mine->made_at = making.made_at;
    owner_.made(making.id);
    outcome = settle();
  }
  if (error)
    mine->ready->try_fail(error);
  else if (mine->ready->claim())
    mine->ready->finish();
  carry_out(std::move(outcome));
}

std::shared_ptr<void> References::get(const RefId& id, const std::type_info* type) {
  check<ValueError>(id.owner == me_, "rpc", "an object of worker '{}' was looked for at worker '{}'",
                    agent_.worker(id.owner).name, agent_.worker(me_).name);
  std::shared_ptr<Object> mine;
  {
    std::lock_guard lock(mutex_);
    auto it = objects_.find(id);
    check<ValueError>(it != objects_.end() || !owner_.is_made(id), "rpc", "the object is no more");
    mine = object(id);
  }
  mine->ready->wait();
  check<ValueError>(!type || *mine->type == *type, "rpc", "a reference to a {} was used as one to a {}",
                    mine->type_name, type ? short_name(*type) : "");
  return mine->value;
}

std::vector<Leak> References::leaks() const {
  std::lock_guard lock(mutex_);
  std::vector<Leak> leaks;
  for (const RefId& id : owner_.all()) {
    auto it = objects_.find(id);
    Leak leak;
    if (it != objects_.end()) leak.type = it->second->type_name, leak.made_at = it->second->made_at;
    leak.made_at += fmt::format(", by {}", agent_.worker(id.maker).name);
    for (int holder : owner_.holders(id)) leak.held_by.push_back(agent_.worker(holder));
    leaks.push_back(std::move(leak));
  }
  return leaks;
}

void References::clear() {
  std::map<RefId, std::shared_ptr<Object>> objects;
  std::lock_guard lock(mutex_);
  objects.swap(objects_);
}

size_t References::objects() const {
  std::lock_guard lock(mutex_);
  return objects_.size();
}
size_t References::held() const {
  std::lock_guard lock(mutex_);
  return holder_.size();
}

}  // namespace tutti::rpc::detail
