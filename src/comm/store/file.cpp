#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "comm/store/board.h"
#include "comm/store/log.h"
#include "comm/store/waiting.h"

namespace tutti {

using store::Clock;
using store::Reply;

/// The table of one file in this process, shared by all its handles: they see each other's changes at once.
struct FileStore::Impl {
  Impl(const std::string& path, std::chrono::nanoseconds timeout)
      : log(path, timeout, [this](const store::Request& request) { board.apply(request); }) {}

  std::mutex mutex;
  std::condition_variable changed;
  bool watched = false;  // one of the threads that wait looks at the file
  store::Board board;
  store::Log log;
  const pid_t process = ::getpid();

  Reply call(const store::Request& request, const store::Waiting& waiting);
  std::optional<Reply> attempt(const store::Request& request, bool& locked);
  static std::shared_ptr<Impl> open(const std::string& path, std::chrono::nanoseconds timeout);
};

// By device and inode, so that two names of one file are one table.
std::shared_ptr<FileStore::Impl> FileStore::Impl::open(const std::string& path, std::chrono::nanoseconds timeout) {
  static std::mutex mutex;
  static std::map<std::pair<uint64_t, uint64_t>, std::weak_ptr<Impl>> all;
  auto fresh = std::make_shared<Impl>(path, timeout);
  std::lock_guard lock(mutex);
  std::erase_if(all, [](auto& entry) { return entry.second.expired(); });
  auto& known = all[fresh->log.identity()];
  if (auto found = known.lock(); found && found->process == fresh->process) return found;
  known = fresh;
  return fresh;
}

FileStore::FileStore(std::string path, FileStoreOptions options)
    : Store(options.timeout), impl_(Impl::open(path, options.timeout)) {
  std::lock_guard lock(impl_->mutex);
  if (options.remove) impl_->log.set_remove();
}

FileStore::~FileStore() = default;

std::string FileStore::name() const { return "the file store " + impl_->log.path(); }

Reply FileStore::call(const store::Request& request, const store::Waiting& waiting) {
  return impl_->call(request, waiting);
}

// Nothing if the file is locked by another process, or the request has to wait.
std::optional<Reply> FileStore::Impl::attempt(const store::Request& request, bool& locked) {
  store::Log::Guard guard(log, request.changes());
  locked = !guard;
  if (locked) return std::nullopt;
  if (log.catch_up()) changed.notify_all();
  if (board.takes_effect(request)) log.write(request);
  auto reply = board.apply(request);
  if (reply && request.changes()) changed.notify_all();
  return reply;
}

Reply FileStore::Impl::call(const store::Request& request, const store::Waiting& waiting) {
  check<StoreError>(process == ::getpid(), "FileStore", "{} was opened before a fork; the child has to open it again",
                    log.path());
  store::Wakers wakers(waiting, [this] {
    std::lock_guard lock(mutex);
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  struct PassOn {  // the watch, to another that waits
    Impl& impl;
    ~PassOn() { impl.changed.notify_one(); }
  } pass_on{*this};

  // A file on another host's disk tells nobody that it changed, so one of those who wait looks: soon at first, then
  // seldom. A lock is given back soon, but to whoever comes first: for that each looks often.
  constexpr std::chrono::microseconds first(50), last(10000), last_of_lock(200);
  auto pause = first;
  bool locked = true;
  while (true) {
    if (locked || !watched || !board.lacks(request))
      if (auto reply = attempt(request, locked)) return std::move(*reply);
    auto now = Clock::now();
    if (waiting.stopped() || now >= waiting.deadline) return board.ended(request);
    bool watches = !std::exchange(watched, true);
    auto until = watches || locked ? std::min(waiting.deadline, now + pause) : waiting.deadline;
    bool told = changed.wait_until(lock, until) == std::cv_status::no_timeout;
    if (watches) watched = false;
    pause = told ? first : std::min(pause * 2, locked ? last_of_lock : last);
  }
}

}  // namespace tutti
