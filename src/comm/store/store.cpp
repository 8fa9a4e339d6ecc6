// What all stores share: requests are made, and their answers understood, here and nowhere else.
#include "tutti/comm/store.h"

#include <atomic>

#include "base/check.h"
#include "comm/store/request.h"
#include "comm/store/waiting.h"

namespace tutti {

using store::Op;
using store::Reply;
using store::Request;
using store::Status;
using store::Waiting;

struct Store::State {
  std::atomic<int64_t> timeout;  // in nanoseconds
  std::stop_source cancel;
  std::stop_token cancelled = cancel.get_token();
};

Store::Store(std::chrono::nanoseconds timeout) : state_(new State{timeout.count(), {}}) {}
Store::~Store() = default;

std::chrono::nanoseconds Store::timeout() const { return std::chrono::nanoseconds(state_->timeout.load()); }
void Store::set_timeout(std::chrono::nanoseconds timeout) { state_->timeout = timeout.count(); }
void Store::cancel() { state_->cancel.request_stop(); }

namespace {

std::string quoted(const std::vector<std::string>& keys) {
  constexpr size_t most = 8;
  std::string text;
  for (size_t i = 0; i < std::min(keys.size(), most); ++i) text += fmt::format("{}\"{}\"", i ? ", " : "", keys[i]);
  if (keys.size() > most) text += fmt::format(" and {} more", keys.size() - most);
  return text;
}

double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

[[noreturn]] void throw_ended(const char* operation, const Request& request, const Reply& reply, bool stopped,
                              std::chrono::nanoseconds timeout, const std::string& name) {
  std::string missing = quoted(reply.values);
  if (stopped && missing.empty()) fail<CancelledError>(operation, "{} was cancelled", name);
  if (stopped) fail<CancelledError>(operation, "cancelled while waiting for {} in {}", missing, name);
  if (missing.empty()) fail<TimeoutError>(operation, "{} did not answer in {:.3g} s", name, seconds(timeout));
  if (request.op == Op::pop)
    fail<TimeoutError>(operation, "nothing came to the queue {} of {} in {:.3g} s", missing, name, seconds(timeout));
  fail<TimeoutError>(operation, "{} of {} keys did not come to {} in {:.3g} s: {}", reply.values.size(),
                     request.keys.size(), name, seconds(timeout), missing);
}

}  // namespace

Reply Store::run(const char* operation, const Request& request, const Wait& wait) {
  if (std::string text = defect(request); !text.empty()) fail<ValueError>(operation, "{}", text);
  auto timeout = wait.timeout.value_or(this->timeout());
  Waiting outer{store::deadline_after(timeout), &wait.stop};
  Waiting waiting{outer.deadline, &state_->cancelled, &outer};
  // Cancelled handles do nothing more, also where there is nothing to wait for.
  Reply reply = waiting.stopped() ? Reply{Status::ended} : call(request, waiting);
  if (reply.status == Status::error) fail<StoreError>(operation, "{}: {}", name(), reply.values.at(0));
  if (reply.status == Status::ended) {
    // Ended before its time by none of our tokens: by that of a store that this one is a view of.
    bool stopped = waiting.stopped() || store::Clock::now() < waiting.deadline;
    throw_ended(operation, request, reply, stopped, timeout, name());
  }
  return reply;
}

namespace {

Request one(Op op, std::string_view key) { return {.op = op, .keys = {std::string(key)}}; }

Request one(Op op, std::string_view key, std::string_view value) {
  return {.op = op, .keys = {std::string(key)}, .values = {std::string(value)}};
}

// A reply comes from another process; what it must hold is checked before it is used.
std::string only_value(const char* operation, Reply&& reply) {
  check<StoreError>(reply.values.size() == 1, operation, "an answer with {} values instead of 1", reply.values.size());
  return std::move(reply.values[0]);
}

}  // namespace

void Store::set(std::string_view key, std::string_view value, const Wait& wait) {
  run("store.set", one(Op::set, key, value), wait);
}

std::string Store::get(std::string_view key, const Wait& wait) {
  return only_value("store.get", run("store.get", one(Op::get, key), wait));
}

std::optional<std::string> Store::try_get(std::string_view key, const Wait& wait) {
  Request request = one(Op::get, key);
  request.waits = false;
  Reply reply = run("store.try_get", request, wait);
  if (reply.status == Status::absent) return std::nullopt;
  return only_value("store.try_get", std::move(reply));
}

void Store::wait(const Keys& keys, const Wait& wait) { run("store.wait", {.op = Op::wait, .keys = keys}, wait); }

bool Store::has(const Keys& keys, const Wait& wait) {
  return run("store.has", {.op = Op::wait, .waits = false, .keys = keys}, wait).status == Status::ok;
}

int64_t Store::add(std::string_view key, int64_t amount, const Wait& wait) {
  Request request = one(Op::add, key);
  request.number = amount;
  return run("store.add", request, wait).number;
}

std::string Store::compare_and_set(std::string_view key, std::string_view expected, std::string_view desired,
                                   const Wait& wait) {
  Request request = one(Op::compare_and_set, key, expected);
  request.values.emplace_back(desired);
  return only_value("store.compare_and_set", run("store.compare_and_set", request, wait));
}

void Store::append(std::string_view key, std::string_view value, const Wait& wait) {
  run("store.append", one(Op::append, key, value), wait);
}

Store::Values Store::multi_get(const Keys& keys, const Wait& wait) {
  Reply reply = run("store.multi_get", {.op = Op::get, .keys = keys}, wait);
  check<StoreError>(reply.values.size() == keys.size(), "store.multi_get", "an answer with {} values instead of {}",
                    reply.values.size(), keys.size());
  return std::move(reply.values);
}

void Store::multi_set(const std::vector<std::pair<std::string, std::string>>& entries, const Wait& wait) {
  Request request{.op = Op::set};
  for (auto& [key, value] : entries) {
    request.keys.push_back(key);
    request.values.push_back(value);
  }
  run("store.multi_set", request, wait);
}

void Store::push(std::string_view queue, std::string_view value, const Wait& wait) {
  run("store.push", one(Op::push, queue, value), wait);
}

std::string Store::pop(std::string_view queue, const Wait& wait) {
  return only_value("store.pop", run("store.pop", one(Op::pop, queue), wait));
}

std::optional<std::string> Store::try_pop(std::string_view queue, const Wait& wait) {
  Request request = one(Op::pop, queue);
  request.waits = false;
  Reply reply = run("store.try_pop", request, wait);
  if (reply.status == Status::absent) return std::nullopt;
  return only_value("store.try_pop", std::move(reply));
}

int64_t Store::queue_size(std::string_view queue, const Wait& wait) {
  return run("store.queue_size", one(Op::queue_size, queue), wait).number;
}

bool Store::erase(std::string_view key, const Wait& wait) {
  return run("store.erase", one(Op::erase, key), wait).number != 0;
}

int64_t Store::clear(std::string_view prefix, const Wait& wait) {
  return run("store.clear", one(Op::clear, prefix), wait).number;
}

int64_t Store::count(const Wait& wait) { return run("store.count", one(Op::count, ""), wait).number; }

Store::Keys Store::list(std::string_view prefix, const Wait& wait) {
  return run("store.list", one(Op::list, prefix), wait).values;
}

// ---- PrefixStore

PrefixStore::PrefixStore(std::string prefix, StorePtr store)
    : Store(store ? store->timeout() : std::chrono::nanoseconds()),
      prefix_(std::move(prefix)),
      store_(std::move(store)) {
  check<ValueError>(store_ != nullptr, "PrefixStore", "no store to make the view \"{}\" of", prefix_);
}

PrefixStore::~PrefixStore() = default;

std::string PrefixStore::name() const { return store_->name(); }

Reply PrefixStore::call(const Request& request, const Waiting& waiting) {
  Request inner = request;
  for (auto& key : inner.keys) key.insert(0, prefix_);
  if (std::string text = defect(inner); !text.empty()) fail<ValueError>("store", "{} (prefix \"{}\")", text, prefix_);
  Waiting chain{waiting.deadline, &store_->state_->cancelled, &waiting};
  Reply reply = chain.stopped() ? Reply{Status::ended} : store_->call(inner, chain);
  if (request.op == Op::list && reply.status == Status::ok)
    for (auto& key : reply.values) key.erase(0, prefix_.size());
  return reply;
}

}  // namespace tutti
