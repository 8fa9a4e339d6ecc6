#include "comm/store/board.h"

#include <charconv>

#include "base/check.h"

namespace tutti::store {
namespace {

Reply error(std::string text) { return {Status::error, 0, {std::move(text)}}; }

bool starts_with(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

template <class Map>
int64_t erase_prefix(Map& map, const std::string& prefix) {
  int64_t count = 0;
  for (auto it = map.lower_bound(prefix); it != map.end() && starts_with(it->first, prefix); ++count)
    it = map.erase(it);
  return count;
}

}  // namespace

const std::string* Board::first_missing(const Request& request) const {
  if (request.op == Op::pop) return queues_.count(request.keys[0]) ? nullptr : &request.keys[0];
  if (request.op != Op::get && request.op != Op::wait) return nullptr;
  for (auto& key : request.keys)
    if (!values_.count(key)) return &key;
  return nullptr;
}

bool Board::takes_effect(const Request& request) const {
  if (!request.changes() || first_missing(request)) return false;
  auto it = values_.find(request.keys.empty() ? std::string() : request.keys[0]);
  if (request.op == Op::erase) return it != values_.end();
  if (request.op != Op::compare_and_set) return true;
  return (it == values_.end() ? std::string_view() : it->second) == request.values[0];
}

std::optional<Reply> Board::apply(const Request& request) {
  if (first_missing(request)) {
    if (request.waits) return std::nullopt;
    return Reply{Status::absent};
  }
  Reply reply = carry_out(request);
  if (reply.status != Status::ok) return reply;
  switch (request.op) {
    case Op::set:
      for (auto& key : request.keys) value_came(key);
      break;
    case Op::add:
    case Op::append:
    case Op::compare_and_set:
      value_came(request.keys[0]);
      break;
    case Op::push:
      item_came(request.keys[0]);
      break;
    default:
      break;
  }
  return reply;
}

Reply Board::carry_out(const Request& request) {
  static const std::string none;
  const std::string& key = request.keys.empty() ? none : request.keys[0];
  switch (request.op) {
    case Op::set:
      for (size_t i = 0; i < request.keys.size(); ++i) values_[request.keys[i]] = request.values[i];
      return {};
    case Op::get:
      return get(request);
    case Op::wait:
      return {};
    case Op::add:
      return add(request);
    case Op::compare_and_set:
      return compare_and_set(request);
    case Op::append:
      return append(request);
    case Op::push:
      queues_[key].push_back(request.values[0]);
      return {};
    case Op::pop:
      return pop(request);
    case Op::queue_size: {
      auto it = queues_.find(key);
      return {Status::ok, it == queues_.end() ? 0 : static_cast<int64_t>(it->second.size())};
    }
    case Op::erase:
      return {Status::ok, static_cast<int64_t>(values_.erase(key))};
    case Op::clear:
      return clear(key);
    case Op::count: {
      if (key.empty()) return {Status::ok, static_cast<int64_t>(values_.size())};
      int64_t count = 0;
      for (auto it = values_.lower_bound(key); it != values_.end() && starts_with(it->first, key); ++it) ++count;
      return {Status::ok, count};
    }
    case Op::list:
      return list(key);
    case Op::will:
      break;  // of a connection, not of the table
  }
  return error("unknown operation");
}

Reply Board::get(const Request& request) const {
  Reply reply;
  size_t size = encoded_size(reply);
  for (auto& key : request.keys) {
    const std::string& value = values_.find(key)->second;
    size += 4 + value.size();
    // Not only a bound of the wire: one small request must not make a server fill its memory.
    if (size > Store::kMaxBytes) return error(fmt::format("the values have more than {} bytes", Store::kMaxBytes));
    reply.values.push_back(value);
  }
  return reply;
}

Reply Board::add(const Request& request) {
  const std::string& key = request.keys[0];
  int64_t now = 0;
  auto it = values_.find(key);
  if (it != values_.end()) {
    const std::string& text = it->second;
    auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), now);
    if (failure != std::errc() || end != text.data() + text.size())
      return error(fmt::format("the value of \"{}\" is not a number", key));
  }
  if (__builtin_add_overflow(now, request.number, &now)) return error(fmt::format("\"{}\" would overflow", key));
  values_[key] = std::to_string(now);
  return {Status::ok, now};
}

Reply Board::compare_and_set(const Request& request) {
  auto it = values_.find(request.keys[0]);
  if ((it == values_.end() ? std::string_view() : it->second) == request.values[0])
    it = values_.insert_or_assign(request.keys[0], request.values[1]).first;
  Reply reply;
  reply.values.push_back(it == values_.end() ? std::string() : it->second);
  return reply;
}

Reply Board::append(const Request& request) {
  auto it = values_.find(request.keys[0]);
  if (it == values_.end())
    values_.emplace(request.keys[0], request.values[0]);
  else if (it->second.size() + request.values[0].size() > Store::kMaxValue)
    return error(fmt::format("the value of \"{}\" would have {} bytes, where {} can be", request.keys[0],
                             it->second.size() + request.values[0].size(), Store::kMaxValue));
  else
    it->second += request.values[0];
  return {};
}

Reply Board::pop(const Request& request) {
  auto it = queues_.find(request.keys[0]);
  Reply reply;
  reply.values.push_back(std::move(it->second.front()));
  it->second.pop_front();
  if (it->second.empty()) queues_.erase(it);
  return reply;
}

Reply Board::clear(const std::string& prefix) {
  return {Status::ok, erase_prefix(values_, prefix) + erase_prefix(queues_, prefix)};
}

Reply Board::list(const std::string& prefix) const {
  Reply reply;
  size_t size = encoded_size(reply);
  for (auto it = values_.lower_bound(prefix); it != values_.end() && starts_with(it->first, prefix); ++it) {
    size += 4 + it->first.size();
    if (size > Store::kMaxBytes) return error(fmt::format("the keys have more than {} bytes", Store::kMaxBytes));
    reply.values.push_back(it->first);
  }
  return reply;
}

void Board::watch(Pending& pending) {
  const std::string* missing = first_missing(pending.request_);
  TUTTI_ASSERT(missing && !pending.list_);
  pending.key_ = *missing;
  auto& list = (pending.request_.op == Op::pop ? queue_waiters_ : value_waiters_)[*missing];
  pending.place_ = list.insert(list.end(), &pending);
  pending.list_ = &list;
}

void Board::forget(Pending& pending) {
  if (!pending.list_) return;
  pending.list_->erase(pending.place_);
  auto& waiters = pending.request_.op == Op::pop ? queue_waiters_ : value_waiters_;
  if (pending.list_->empty()) waiters.erase(pending.key_);
  pending.list_ = nullptr;
}

Reply Board::ended(const Request& request) const {
  Reply reply{Status::ended};
  if (request.op != Op::pop && request.op != Op::get && request.op != Op::wait) return reply;
  for (auto& key : request.keys)
    if (request.op == Op::pop ? !queues_.count(key) : !values_.count(key)) reply.values.push_back(key);
  return reply;
}

// Everyone in this key's line goes: to an answer, or on to the next key that it lacks.
void Board::value_came(const std::string& key) {
  auto it = value_waiters_.find(key);
  if (it == value_waiters_.end() || !values_.count(key)) return;
  std::list<Pending*> line = std::move(it->second);
  value_waiters_.erase(it);
  for (Pending* pending : line) {
    pending->list_ = nullptr;
    if (first_missing(pending->request_))
      watch(*pending);
    else
      pending->finish(carry_out(pending->request_));
  }
}

void Board::item_came(const std::string& queue) {
  auto it = queue_waiters_.find(queue);
  if (it == queue_waiters_.end()) return;
  Pending* pending = it->second.front();
  forget(*pending);
  pending->finish(pop(pending->request_));
}

}  // namespace tutti::store
