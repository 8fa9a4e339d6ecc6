// The table behind every store, and who waits for what in it. Not guarded: its owner is.
#pragma once

#include <deque>
#include <list>
#include <map>
#include <optional>

#include "comm/store/request.h"

namespace tutti::store {

class Board {
 public:
  /// A request that waits. The board answers it once, from within the call that brought what it waits for.
  class Pending {
   public:
    explicit Pending(const Request& request) : request_(request) {}
    virtual ~Pending() = default;
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;
    /// Must not touch the board or other requests that wait.
    virtual void finish(Reply reply) = 0;

   private:
    friend class Board;
    const Request& request_;
    std::list<Pending*>* list_ = nullptr;  // null: does not wait
    std::list<Pending*>::iterator place_;
    std::string key_;  // that it waits for first, and whose list it is in
  };

  /// Carries out a well-formed request (see defect()) and answers those that waited for what it brought. Nothing if
  /// the request has to wait.
  std::optional<Reply> apply(const Request& request);
  /// Whether something is missing that the request needs.
  bool lacks(const Request& request) const { return first_missing(request) != nullptr; }
  /// Whether apply() would change something now.
  bool takes_effect(const Request& request) const;
  /// Puts a request that has to wait in the line.
  void watch(Pending& pending);
  /// Takes it out again, if it is there.
  void forget(Pending& pending);
  /// Status::ended with the keys that the request lacks.
  Reply ended(const Request& request) const;

 private:
  using Waiters = std::map<std::string, std::list<Pending*>, std::less<>>;

  const std::string* first_missing(const Request& request) const;
  Reply carry_out(const Request& request);
  Reply get(const Request& request) const;
  Reply add(const Request& request);
  Reply compare_and_set(const Request& request);
  Reply append(const Request& request);
  Reply pop(const Request& request);
  Reply clear(const std::string& prefix);
  Reply list(const std::string& prefix) const;
  void value_came(const std::string& key);
  void item_came(const std::string& queue);

  std::map<std::string, std::string, std::less<>> values_;
  std::map<std::string, std::deque<std::string>, std::less<>> queues_;
  Waiters value_waiters_, queue_waiters_;
};

}  // namespace tutti::store
