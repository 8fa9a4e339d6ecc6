#include <condition_variable>
#include <mutex>

#include "comm/store/board.h"
#include "comm/store/waiting.h"

namespace tutti {

struct MemoryStore::Impl {
  std::mutex mutex;
  store::Board board;
};

namespace {

// One thread that waits, woken by its own condition: what comes wakes those who wait for it and nobody else.
struct Sleeper : store::Board::Pending {
  using Pending::Pending;
  void finish(store::Reply answer) override {
    reply = std::move(answer);
    changed.notify_one();
  }
  std::optional<store::Reply> reply;
  std::condition_variable changed;
};

}  // namespace

MemoryStore::MemoryStore(std::chrono::nanoseconds timeout) : Store(timeout), impl_(new Impl) {}
MemoryStore::~MemoryStore() = default;

std::string MemoryStore::name() const { return "the memory store"; }

store::Reply MemoryStore::call(const store::Request& request, const store::Waiting& waiting) {
  {
    std::lock_guard lock(impl_->mutex);
    if (auto reply = impl_->board.apply(request)) return std::move(*reply);
  }
  Sleeper sleeper(request);
  store::Wakers wakers(waiting, [&] {
    std::lock_guard lock(impl_->mutex);
    sleeper.changed.notify_one();
  });
  std::unique_lock lock(impl_->mutex);
  if (auto reply = impl_->board.apply(request)) return std::move(*reply);
  impl_->board.watch(sleeper);
  while (!sleeper.reply && !waiting.stopped() && store::Clock::now() < waiting.deadline)
    sleeper.changed.wait_until(lock, waiting.deadline);
  impl_->board.forget(sleeper);
  return sleeper.reply ? std::move(*sleeper.reply) : impl_->board.ended(request);
}

}  // namespace tutti
