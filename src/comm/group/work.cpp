#include "comm/group/work.h"

#include "comm/group/rank.h"

namespace tutti::comm {

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
  for (auto& f : list) f();
  settled_.store(true);
}

void WorkState::then(std::function<void()> f) {
  {
    std::lock_guard lock(mutex_);
    if (!done_.load()) {
      then_.push_back(std::move(f));
      return;
    }
  }
  f();
}

}  // namespace tutti::comm
