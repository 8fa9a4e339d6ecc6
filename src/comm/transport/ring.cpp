#include "comm/transport/ring.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tutti::comm {

size_t Ring::put(const std::byte* from, size_t bytes) {
  uint64_t begin = written.load(std::memory_order_relaxed);
  size_t n = std::min<size_t>(bytes, kBytes - (begin - read.load()));
  size_t first = std::min<size_t>(n, kBytes - begin % kBytes);
  if (first) std::memcpy(data + begin % kBytes, from, first);
  if (n > first) std::memcpy(data, from + first, n - first);
  if (n) written.store(begin + n);
  return n;
}

size_t Ring::take(std::byte* to, size_t bytes) {
  uint64_t begin = read.load(std::memory_order_relaxed);
  size_t n = std::min<size_t>(bytes, written.load() - begin);
  size_t first = std::min<size_t>(n, kBytes - begin % kBytes);
  if (first) std::memcpy(to, data + begin % kBytes, first);
  if (n > first) std::memcpy(to + first, data, n - first);
  if (n) read.store(begin + n);
  return n;
}

void RingMessages::send(int to, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) {
  Header header{tag, call.in[0].count, static_cast<uint64_t>(call.in[0].count) * size_of(call.dtype),
                facts_of(call, me_, static_cast<int>(ranks_.size())).header};
  std::lock_guard lock(mutex_);
  sends_[static_cast<size_t>(to)].push_back({header, std::move(call), work});
}

void RingMessages::receive(int from, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) {
  std::lock_guard lock(mutex_);
  Receive receive{from, tag, std::move(call), work};
  auto fits = [&](const Incoming& m) { return m.header.tag == tag && (from < 0 || m.from == from); };
  auto found = std::find_if(kept_.begin(), kept_.end(), fits);
  if (found != kept_.end()) {
    found->receive = std::move(receive);
    deliver(*found);
    kept_.erase(found);
    return;
  }
  receives_.push_back(std::move(receive));
}

// What follows what is done, as far as it lies together; empty: nothing.
std::span<const std::byte> RingMessages::next_of(const Outgoing& m) {
  uint64_t data_end = sizeof(Header) + m.header.bytes;
  if (m.done < sizeof(Header)) return std::as_bytes(std::span(&m.header, 1)).subspan(m.done);
  if (m.done == data_end) return {&m.last, 1};
  if (m.done > data_end) return {};
  if (m.last == kTakenBack) return std::span(m.rest).last(data_end - m.done);
  return {static_cast<const std::byte*>(m.call.in[0].data) + (m.done - sizeof(Header)), data_end - m.done};
}
std::span<std::byte> RingMessages::next_of(Incoming& m) {
  uint64_t data_end = sizeof(Header) + m.header.bytes;
  if (m.done == data_end) return {&m.last, 1};
  std::byte* to = m.kept.empty() ? static_cast<std::byte*>(m.receive->call.out[0].data) : m.kept.data();
  return {to + (m.done - sizeof(Header)), data_end - m.done};
}

// Who has begun to take it waits for the next.
void RingMessages::taken_back(Incoming& m) {
  if (!m.receive) return;
  Receive again = std::move(*m.receive);
  auto fits = [&](const Incoming& k) { return k.header.tag == again.tag && (again.from < 0 || k.from == again.from); };
  auto found = std::find_if(kept_.begin(), kept_.end(), fits);
  if (found == kept_.end()) {
    receives_.push_front(std::move(again));
    return;
  }
  found->receive = std::move(again);
  deliver(*found);
  kept_.erase(found);
}

bool RingMessages::push(int to) {
  auto& queue = sends_[static_cast<size_t>(to)];
  Ring& ring = rings_[static_cast<size_t>(me_) * ranks_.size() + static_cast<size_t>(to)];
  bool moved = false;
  while (!queue.empty()) {
    Outgoing& m = queue.front();
    for (auto next = next_of(m); !next.empty(); next = next_of(m)) {
      size_t n = ring.put(next.data(), next.size());
      if (n == 0) return moved;
      m.done += n;
      moved = true;
    }
    if (m.work) completed_.emplace_back(std::move(m.work), nullptr);
    queue.pop_front();
    moved = true;
  }
  return moved;
}

// The first receive that wants the message gets it.
void RingMessages::match(Incoming& m) {
  auto fits = [&](const Receive& r) { return r.tag == m.header.tag && (r.from < 0 || r.from == m.from); };
  auto found = std::find_if(receives_.begin(), receives_.end(), fits);
  if (found != receives_.end()) {
    m.receive = std::move(*found);
    receives_.erase(found);
  }
}

std::exception_ptr RingMessages::misfit(const Incoming& m, const Receive& r) const {
  const Piece& to = r.call.out[0];
  std::string text = message_misfit({ranks_[static_cast<size_t>(m.from)], m.header.call, m.header.count},
                                    {ranks_[static_cast<size_t>(me_)], header_of(brief(r.call)), to.count});
  return text.empty() ? nullptr : std::make_exception_ptr(MismatchError(text, "recv"));
}

void RingMessages::deliver(Incoming& m) {
  std::exception_ptr error = misfit(m, *m.receive);
  if (!error && !m.kept.empty()) std::memcpy(m.receive->call.out[0].data, m.kept.data(), m.kept.size());
  m.receive->work->source = m.from;
  completed_.emplace_back(std::move(m.receive->work), std::move(error));
}

bool RingMessages::pull(int from) {
  auto& arriving = arriving_[static_cast<size_t>(from)];
  Ring& ring = rings_[static_cast<size_t>(from) * ranks_.size() + static_cast<size_t>(me_)];
  bool moved = false;
  while (true) {
    if (!arriving) arriving = Incoming{.from = from, .header = {}, .kept = {}, .receive = {}};
    Incoming& m = *arriving;
    if (!m.known()) {
      size_t n = ring.take(reinterpret_cast<std::byte*>(&m.header) + m.done, sizeof(Header) - m.done);
      if (n == 0) return moved;
      m.done += n;
      moved = true;
      if (!m.known()) return true;
      match(m);
      if (!m.receive || misfit(m, *m.receive)) m.kept.resize(m.header.bytes);
    }
    while (!m.whole()) {
      auto next = next_of(m);
      size_t n = ring.take(next.data(), next.size());
      if (n == 0) return moved;
      m.done += n;
      moved = true;
    }
    bool is_one = m.last == kWhole;
    if (is_one && !m.receive) match(m);  // a receive may have come meanwhile
    if (!is_one)
      taken_back(m);
    else if (m.receive)
      deliver(m);
    else
      kept_.push_back(std::move(m));
    arriving.reset();
  }
}

bool RingMessages::progress(bool wait) {
  bool moved = false;
  decltype(completed_) completed;
  {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (wait)
      lock.lock();
    else if (!lock.try_lock())
      return false;
    for (int k = 0; !broken_ && k < static_cast<int>(ranks_.size()); ++k) {
      moved = push(k) || moved;
      moved = pull(k) || moved;
    }
    completed.swap(completed_);
  }
  if (moved) moved_.fetch_add(1);
  for (auto& [work, error] : completed) work->complete(std::move(error));
  return moved || !completed.empty();
}

bool RingMessages::pending() {
  std::lock_guard lock(mutex_);
  if (!receives_.empty() || !completed_.empty()) return true;
  for (auto& queue : sends_)
    if (!queue.empty()) return true;
  return std::any_of(arriving_.begin(), arriving_.end(), [](const auto& m) { return m && m->done > 0; });
}

std::optional<RingMessages::Withdrawn> RingMessages::withdraw(const WorkState& work, bool always) {
  std::lock_guard lock(mutex_);
  for (auto it = receives_.begin(); it != receives_.end(); ++it)
    if (it->work.get() == &work) {
      Withdrawn taken{false, describe(it->call)};
      receives_.erase(it);
      return taken;
    }
  for (auto& queue : sends_)
    for (auto it = queue.begin(); it != queue.end(); ++it)
      if (it->work.get() == &work) {
        Withdrawn taken{true, describe(it->call)};
        if (it->done > 0 && !always) {
          uint64_t begun = it->done < sizeof(Header) ? 0 : it->done - sizeof(Header);
          const auto* data = static_cast<const std::byte*>(it->call.in[0].data);
          it->rest.assign(data + std::min(begun, it->header.bytes), data + it->header.bytes);
          it->last = kTakenBack;
          it->work = nullptr;
          return taken;
        }
        broken_ = broken_ || it->done > 0;
        queue.erase(it);
        return taken;
      }
  for (auto& m : arriving_)
    if (always && m && m->receive && m->receive->work.get() == &work) {
      Withdrawn taken{false, describe(m->receive->call)};
      broken_ = true;
      m.reset();
      return taken;
    }
  return {};
}

std::vector<std::shared_ptr<WorkState>> RingMessages::withdraw_all() {
  std::lock_guard lock(mutex_);
  broken_ = true;
  std::vector<std::shared_ptr<WorkState>> all;
  for (auto& r : receives_) all.push_back(std::move(r.work));
  for (auto& queue : sends_) {
    for (auto& m : queue)
      if (m.work) all.push_back(std::move(m.work));
    queue.clear();
  }
  for (auto& m : arriving_)
    if (m && m->receive) {
      all.push_back(std::move(m->receive->work));
      m.reset();
    }
  receives_.clear();
  return all;
}

}  // namespace tutti::comm
