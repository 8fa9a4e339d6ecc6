// Messages of a group of processes of one host.
#include <algorithm>

#include "base/check.h"
#include "comm/transport/progress.h"
#include "comm/transport/shm.h"

namespace tutti::comm {

void ShmGroup::started_message(WorkState& work, int rank, int peer) {
  work.rank = rank;
  work.peer = peer;
  work.is_message = true;
}

void ShmGroup::move_messages() {
  while (messages_->progress()) event().notify();
  std::lock_guard lock(carrier_mutex_);
  if (!messages_->pending() || carrier_.joinable()) return carrier_changed_.notify_all();
  carrier_ = std::thread([this] {
    LibraryThread self(true);
    CarrierThread carrier;
    std::unique_lock lock(carrier_mutex_);
    while (!stop_) {
      carrier_changed_.wait(lock, [&] { return stop_ || messages_->pending(); });
      lock.unlock();
      event().wait(Clock::now() + kWatch, false, [&] {
        bool moved = false;
        while (messages_->progress()) moved = true;
        if (moved) event().notify();
        return moved || stop_ || world_->failed();
      });
      world_->watch();
      if (world_->failed()) {
        for (auto& work : messages_->withdraw_all()) work->complete(world_->failure());
        event().notify();  // who waits for one of them cannot withdraw it any more
      }
      lock.lock();
      carrier_changed_.notify_all();
    }
  });
}

void ShmGroup::start_send(int rank, int to, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) {
  world_->check();
  started_message(*work, rank, to);
  work->noted = world_->note(id_, next_, facts_of(call, me_, size()).header);
  messages_->send(to, tag, std::move(call), work);
  move_messages();
}

void ShmGroup::start_receive(int rank, int from, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) {
  world_->check();
  started_message(*work, rank, from);
  work->noted = world_->note(id_, next_, facts_of(call, me_, size()).header);
  messages_->receive(from, tag, std::move(call), work);
  move_messages();
}

// Who should receive, or send, what this work is about has ended. Of any source: all others have.
bool ShmGroup::has_ended(const WorkState& work) const {
  if (work.peer >= 0) return world_->has_ended(ranks()[static_cast<size_t>(work.peer)]);
  for (int k = 0; k < size(); ++k)
    if (k != me_ && !world_->has_ended(ranks()[static_cast<size_t>(k)])) return false;
  return size() > 1;
}

bool ShmGroup::wait_message(WorkState& work, Clock::time_point deadline, bool give_up) {
  int peer = work.peer < 0 ? -1 : ranks()[static_cast<size_t>(work.peer)], me = world_->rank();
  auto ready = [&] {
    while (messages_->progress()) event().notify();
    return work.settled() || world_->failed();
  };
  bool ended = false;
  LongWait board(world_->waits(), me);
  while (!event().wait(std::min(deadline, Clock::now() + kWatch), world_->spin(), ready)) {
    world_->watch();
    ended = has_ended(work);
    if (ended) {  // what it sent before is still there
      while (messages_->progress(true)) event().notify();
      ended = !work.settled();
    }
    if (work.settled()) return true;
    if (!give_up) world_->look_for_cycle(board, [&] { return WaitFor::message(work, ranks(), messages_->moved()); });
    if (ended || world_->failed() || Clock::now() >= deadline) break;
  }
  if (work.settled()) return true;
  if (give_up && !ended && !world_->failed()) return false;
  auto mine = messages_->withdraw(work, true);
  if (!mine) {  // completed by another thread this very moment
    while (!event().wait(Clock::now() + kWatch, false, [&] { return work.settled(); })) {
    }
    return true;
  }
  if (ended)
    world_->fail(peer < 0 ? ranks()[me_ == 0 ? 1 : 0] : peer,
                 fmt::format("it ended without {} what rank {} {}: {}", mine->sends ? "receiving" : "sending", me,
                             mine->sends ? "sends" : "waits for", mine->call));
  if (world_->failed()) {
    work.complete(world_->failure());
    return true;
  }
  std::string text = fmt::format("rank {} waited {} for {} to {}: {}", me, seconds(work.limit.timeout()),
                                 peer < 0 ? "any rank" : fmt::format("rank {}", peer),
                                 mine->sends ? "receive what it sends" : "send", mine->call);
  for (int r : peers_of(work)) {
    text += fmt::format("\n  rank {}: {}", r, world_->last_call(r, id_));
    if (world_->has_ended(r)) text += "; it has ended";
  }
  text = advised(std::move(text), nullptr);
  work.complete(std::make_exception_ptr(TimeoutError(text, mine->sends ? "send" : "recv")));
  world_->fail(me, text, "TimeoutError");
  event().notify();
  return true;
}

}  // namespace tutti::comm
