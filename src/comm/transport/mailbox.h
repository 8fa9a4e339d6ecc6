// Messages between threads of a process: a receive that comes before its message waits in the receiver's box, and so
// does a message that comes before its receive. Whoever comes second copies.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/group/call.h"
#include "comm/group/work.h"

namespace tutti::comm {

class Mailboxes {
 public:
  explicit Mailboxes(const std::vector<int>& ranks) : ranks_(ranks), boxes_(ranks.size()) {}
  /// `work` is completed when the memory of the call is free again: for small messages at once.
  void send(int from, int to, int64_t tag, Call call, const std::shared_ptr<WorkState>& work);
  /// `from` -1: from any.
  void receive(int to, int from, int64_t tag, Call call, const std::shared_ptr<WorkState>& work);

  struct Waiting {
    int box, from;  // the receiver, and the sender (-1: any)
    int64_t tag;
    bool sends;
    Call call;
    std::vector<char> copy = {};                // of a small message
    std::shared_ptr<WorkState> work = nullptr;  // none: its sender went on
  };
  /// Takes back a message or a receive that nobody has begun to move; none: it has ended, or is about to.
  std::optional<Waiting> withdraw(const WorkState& work);
  /// Takes back all.
  std::vector<Waiting> withdraw_all();

 private:
  struct Box {
    std::mutex mutex;
    std::list<Waiting> messages, receives;  // in the order in which they came
  };
  void move(Waiting& message, Waiting& receive);
  const std::vector<int> ranks_;
  std::vector<Box> boxes_;
};

}  // namespace tutti::comm
