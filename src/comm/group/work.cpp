#include "comm/group/work.h"

#include "base/check.h"
#include "comm/group/rank.h"
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
  if (owner) owner->record.end(record, error ? CallStatus::failed : CallStatus::done);
  std::vector<std::function<void()>> list;
  {
    std::lock_guard lock(mutex_);
    error_ = std::move(error);
    done_.store(true);
    list.swap(then_);
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
