// Work: a collective on its way.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>

namespace tutti {

namespace comm {
class WorkState;
class Transport;
}  // namespace comm

class Work {
 public:
  Work() = default;
  Work(std::shared_ptr<comm::WorkState> state, std::shared_ptr<comm::Transport> group)
      : state_(std::move(state)), group_(std::move(group)) {}
  bool defined() const { return state_ != nullptr; }
  /// Until it is done; rethrows what went wrong. The thread helps with the work while it waits.
  void wait();
  /// The same, but gives up waiting (not the work) after this time; says whether it is done.
  bool wait_for(std::chrono::nanoseconds time);
  bool done() const;
  /// What went wrong, once it is done; null: nothing.
  std::exception_ptr exception() const;
  /// Ends it with CancelledError, if that is still possible: a collective while some rank has not come to it, a message
  /// or a receive while the other side has not. False: too late, it goes on as if nothing had been said. A message is
  /// taken back and harms nobody. A collective cannot be without this rank: all others get RankFailure, which says who
  /// cancelled what.
  bool cancel();
  /// Of a message that was received: the rank in the group that sent it.
  int source() const;
  /// Calls f when it is done, well or not, on whatever thread finishes it, in the context (rank, group, modes) of who
  /// calls this; at once if it is done already. wait() returns after f. f may begin asynchronous work, but must not
  /// wait for any; what it throws is thrown by wait().
  void then(std::function<void()> f);
  /// (of the library) Sees to it that the work ends though nobody waits for it.
  Work watched() &&;
  /// (of the library) Nothing sees to that any more: it may stay open for as long as its group lives.
  void leave_alone();

 private:
  std::shared_ptr<comm::WorkState> state_;
  std::shared_ptr<comm::Transport> group_;
};

}  // namespace tutti
