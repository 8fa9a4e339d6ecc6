#include "rpc/lease.h"

#include <utility>

#include "base/check.h"

namespace tutti::rpc::detail {

// ---- The owner's side

bool LeaseOwner::is_made(const RefId& id) const {
  auto it = made_.find(id.maker);
  return it != made_.end() && it->second.has(id.number);
}

void LeaseOwner::add(const RefId& id, int worker, int amount) {
  auto& counts = leases_[id];
  int& count = counts[worker];
  count += amount;
  if (count == 0) counts.erase(worker);
  if (!counts.empty() || !is_made(id)) return;
  leases_.erase(id);
  free_.push_back(id);
}

void LeaseOwner::made(const RefId& id) {
  Made& made = made_[id.maker];
  made.early.insert(id.number);
  while (made.early.erase(made.next) > 0) ++made.next;
  if (dead_.count(id.maker) == 0)
    add(id, id.maker, 1);
  else if (leases_.count(id) == 0)
    free_.push_back(id);
}

LeaseOwner::Taken LeaseOwner::take(const RefId& id, int worker) {
  bool gone = is_made(id) || dead_.count(id.maker) > 0;
  if (leases_.count(id) == 0 && gone) return Taken::gone;
  if (dead_.count(worker) == 0) add(id, worker, 1);
  return Taken::yes;
}

void LeaseOwner::give_back(const RefId& id, int worker) {
  // What is unknown is either not made yet, and its maker has lost interest, or was given up when its maker died.
  bool given_up = leases_.count(id) == 0 && (is_made(id) || dead_.count(id.maker) > 0);
  if (dead_.count(worker) == 0 && !given_up) add(id, worker, -1);
}

void LeaseOwner::died(int worker) {
  dead_.insert(worker);
  for (auto it = leases_.begin(); it != leases_.end();) {
    it->second.erase(worker);
    // What it was to make will never be made, whoever waits for it.
    bool never = it->first.maker == worker && !is_made(it->first);
    if (!it->second.empty() && !never) {
      ++it;
      continue;
    }
    if (never || is_made(it->first)) {
      free_.push_back(it->first);
      it = leases_.erase(it);
    } else {
      ++it;
    }
  }
}

std::vector<RefId> LeaseOwner::take_free() { return std::exchange(free_, {}); }

std::vector<int> LeaseOwner::holders(const RefId& id) const {
  std::vector<int> workers;
  if (auto it = leases_.find(id); it != leases_.end())
    for (auto [worker, count] : it->second) workers.push_back(worker);
  return workers;
}

std::vector<RefId> LeaseOwner::all() const {
  std::vector<RefId> ids;
  for (auto& [id, counts] : leases_) ids.push_back(id);
  return ids;
}

// ---- The holder's side

RefId LeaseHolder::make(int owner) {
  RefId id{me_, owner, next_number_[owner]++};
  Held& held = held_[id];
  held.handles = 1;
  held.confirmed = true;
  return id;
}

void LeaseHolder::accept(int forker, const RefId& id, uint64_t fork) {
  if (dead_.count(forker) == 0) messages_.push_back({LeaseMessage::accept, forker, id, fork});
}

void LeaseHolder::receive(const RefId& id, int forker, uint64_t fork) {
  auto [it, fresh] = held_.try_emplace(id);
  Held& held = it->second;
  ++held.handles;
  if (fresh) {
    held.gone = dead_.count(id.owner) > 0;
    held.confirmed = held.gone;
    if (!held.gone) messages_.push_back({LeaseMessage::take, id.owner, id, 0});
  }
  if (held.confirmed)
    accept(forker, id, fork);
  else
    held.to_accept.emplace_back(forker, fork);
}

void LeaseHolder::drop(const RefId& id) {
  auto it = held_.find(id);
  TUTTI_ASSERT(it != held_.end() && it->second.handles > 0);
  --it->second.handles;
  settle(it);
}

uint64_t LeaseHolder::fork(const RefId& id, int to) {
  auto it = held_.find(id);
  TUTTI_ASSERT(it != held_.end() && it->second.handles > 0);
  uint64_t number = next_fork_++;
  if (dead_.count(to) > 0) return number;
  ++it->second.forks;
  forks_[number] = {id, to};
  return number;
}

void LeaseHolder::confirmed(const RefId& id, bool gone) {
  auto it = held_.find(id);
  if (it == held_.end()) return;
  it->second.confirmed = true;
  it->second.gone = gone;
  for (auto [forker, fork] : std::exchange(it->second.to_accept, {})) accept(forker, id, fork);
  settle(it);
}

void LeaseHolder::accepted(uint64_t fork) {
  auto it = forks_.find(fork);
  if (it == forks_.end()) return;  // of a worker that was thought to be dead
  auto held = held_.find(it->second.id);
  forks_.erase(it);
  TUTTI_ASSERT(held != held_.end() && held->second.forks > 0);
  --held->second.forks;
  settle(held);
}

void LeaseHolder::died(int worker) {
  dead_.insert(worker);
  for (auto it = forks_.begin(); it != forks_.end();) {
    if (it->second.to != worker) {
      ++it;
      continue;
    }
    auto held = held_.find(it->second.id);
    it = forks_.erase(it);
    --held->second.forks;
    settle(held);
  }
  std::vector<RefId> theirs;
  for (auto& [id, held] : held_)
    if (id.owner == worker) theirs.push_back(id);
  for (const RefId& id : theirs) confirmed(id, true);
}

void LeaseHolder::settle(std::map<RefId, Held>::iterator it) {
  const Held& held = it->second;
  if (held.handles > 0 || held.forks > 0 || !held.confirmed) return;
  if (!held.gone) messages_.push_back({LeaseMessage::give_back, it->first.owner, it->first, 0});
  held_.erase(it);
}

std::vector<LeaseMessage> LeaseHolder::take_messages() { return std::exchange(messages_, {}); }

}  // namespace tutti::rpc::detail
