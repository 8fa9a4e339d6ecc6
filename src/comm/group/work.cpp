#include "comm/group/work.h"

#include "base/check.h"
#include "comm/group/rank.h"
#include "comm/group/watch.h"
#include "comm/launch/errors.h"
#include "comm/transport/transport.h"
#include "tutti/comm/work.h"
#include "tutti/context.h"

namespace tutti::comm {
namespace {

thread_local int callbacks = 0;  // that this thread is inside of

struct CallbackGuard {
  CallbackGuard() { ++callbacks; }
  ~CallbackGuard() { --callbacks; }
};

}  // namespace

void check_may_wait(const char* operation) {
  check<ValueError>(callbacks == 0, operation,
                    "a function given to then() must not wait: others may need the thread that it runs on. Begin what "
                    "follows with the ..._async form, or wait() outside");
}

WorkState::~WorkState() {
  if (error_ && !observed_.load() && owner) owner->remember_unobserved(error_);
}

void WorkState::complete(std::exception_ptr error) {
  if (claimed_.exchange(true)) return;
  if (finish && !error) {
    try {
      finish();
    } catch (...) {
      error = std::current_exception();
    }
  }
  finish = nullptr;
  if (owner && error) error = owner->met_in(error, record);
  if (owner && record != kNoRecord) owner->call_ended(record, error ? CallStatus::failed : CallStatus::done, noted);
  std::shared_ptr<Transport> held;  // which may be freed with this, when all has been done
  std::vector<std::function<void()>> list;
  {
    std::lock_guard lock(mutex_);
    error_ = std::move(error);
    done_.store(true);
    list.swap(then_);
    held.swap(group_);
  }
  std::exception_ptr thrown;
  for (auto& f : list) try {
      f();
    } catch (...) {
      if (!thrown) thrown = std::current_exception();
    }
  list.clear();
  if (thrown) {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(thrown);
  }
  settled_.store(true);
}

void WorkState::hold(const std::shared_ptr<Transport>& group) {
  std::lock_guard lock(mutex_);
  if (!done_.load()) group_ = group;
}

std::shared_ptr<Transport> WorkState::let_go() {
  std::lock_guard lock(mutex_);
  return std::move(group_);
}

std::exception_ptr WorkState::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

void WorkState::then(std::function<void()> f) {
  // Whoever finishes the work may be of another rank, or of none.
  std::function<void()> as_mine = [f = std::move(f), mine = context()] {
    ContextGuard guard(mine);
    CallbackGuard inside;
    f();
  };
  {
    std::lock_guard lock(mutex_);
    if (!done_.load()) {
      then_.push_back(std::move(as_mine));
      return;
    }
  }
  try {
    as_mine();
  } catch (...) {  // as if it had been in time
    std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
    observed_.store(false);
  }
}

}  // namespace tutti::comm

namespace tutti {
namespace {

void rethrow(comm::WorkState& work) {
  work.observe();
  std::exception_ptr error = work.error();
  if (!error) return;
  if (work.owner) work.owner->leave(error);
  comm::rethrow_copy(error);
}

// A thread of the rank waits for the work: the rank's flight record says since when.
class CountedWaiter {
 public:
  explicit CountedWaiter(comm::WorkState& work) : work_(work) {
    ++work_.waiters;
    if (recorded()) work_.owner->record.begin_wait(work_.record);
  }
  ~CountedWaiter() {
    // Of a work that has been completed, the record has the end.
    if (--work_.waiters == 0 && !work_.done() && recorded()) work_.owner->record.cancel_wait(work_.record);
  }
  CountedWaiter(const CountedWaiter&) = delete;
  CountedWaiter& operator=(const CountedWaiter&) = delete;

 private:
  bool recorded() const { return work_.owner && work_.record != comm::WorkState::kNoRecord; }
  comm::WorkState& work_;
};

}  // namespace

void Work::wait() {
  if (!state_) return;
  if (!state_->settled()) {
    comm::check_may_wait("Work::wait");
    CountedWaiter here(*state_);
    if (state_->chain)
      state_->chain->wait(*state_, {});
    else
      group_->wait(*state_, state_->limit.end(), false);
  }
  rethrow(*state_);
}
bool Work::wait_for(std::chrono::nanoseconds time) {
  if (!state_) return true;
  if (!state_->settled()) {
    comm::check_may_wait("Work::wait_for");
    CountedWaiter here(*state_);
    auto deadline = comm::Clock::now() + comm::bounded(time);
    if (!(state_->chain ? state_->chain->wait(*state_, deadline) : group_->wait(*state_, deadline, true))) return false;
  }
  rethrow(*state_);
  return true;
}
bool Work::done() const { return !state_ || state_->done(); }
std::exception_ptr Work::exception() const {
  if (!state_ || !state_->done()) return nullptr;
  state_->observe();
  return state_->error();
}
bool Work::cancel() {
  if (!state_ || !(state_->chain ? state_->chain->cancel() : group_->cancel(*state_))) return false;
  state_->observe();
  return true;
}
void Work::leave_alone() {
  if (!state_) return;
  state_->alone.store(true);
  state_->let_go();  // which this still holds
}
Work Work::watched() && {
  if (state_) comm::Watch::instance().add(state_, group_);
  return std::move(*this);
}
int Work::source() const { return state_ ? state_->source : -1; }
void Work::then(std::function<void()> f) {
  if (!state_) return f();
  state_->then(std::move(f));
}

}  // namespace tutti
