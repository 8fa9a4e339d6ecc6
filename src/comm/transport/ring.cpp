#include "comm/transport/ring.h"

#include "base/check.h"

namespace tutti::comm {

void RingMessages::send(int to, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) {
  Header header{.tag = tag,
                .count = call.in[0].count,
                .bytes = static_cast<uint64_t>(call.in[0].count) * size_of(call.dtype),
                .call = facts_of(call, me_, static_cast<int>(ranks_.size())).header};
  std::lock_guard lock(mutex_);
  if (header.bytes <= kShort || to == me_) {  // who sends to itself may well receive it later
    sends_[static_cast<size_t>(to)].push_back({header, std::move(call), work});
    return;
  }
  header.type = Type::offer;
  header.id = next_id_++;
  offers_.emplace(header.id, Offer{to, std::move(call), work});
  post(to, header);
}

void RingMessages::receive(int from, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) {
  std::lock_guard lock(mutex_);
  Receive receive{from, tag, std::move(call), work};
  auto fits = [&](const Incoming& m) { return m.header.tag == tag && (from < 0 || m.from == from); };
  auto found = std::find_if(kept_.begin(), kept_.end(), fits);
  if (found != kept_.end()) {
    found->receive = std::move(receive);
    take(*found);
    kept_.erase(found);
    return;
  }
  receives_.push_back(std::move(receive));
}

// What follows what is done, as far as it lies together; empty: nothing.
std::span<const std::byte> RingMessages::next_of(const Outgoing& m) {
  uint64_t data_end = m.header.data_end();
  if (m.done < sizeof(Header)) return std::as_bytes(std::span(&m.header, 1)).subspan(m.done);
  if (m.done == m.header.end()) return {};
  if (m.done == data_end) return {&m.last, 1};
  if (m.last == kTakenBack) return std::span(m.rest).last(data_end - m.done);
  return {static_cast<const std::byte*>(m.call.in[0].data) + (m.done - sizeof(Header)), data_end - m.done};
}
std::span<std::byte> RingMessages::next_of(Incoming& m) {
  uint64_t data_end = m.header.data_end();
  if (m.done == data_end) return {&m.last, 1};
  std::byte* to = m.kept.empty() ? static_cast<std::byte*>(m.receive->call.out[0].data) : m.kept.data();
  return {to + (m.done - sizeof(Header)), data_end - m.done};
}

// What it had begun to take was taken back: it waits for the next.
void RingMessages::want_again(Receive again) {
  auto fits = [&](const Incoming& k) { return k.header.tag == again.tag && (again.from < 0 || k.from == again.from); };
  auto found = std::find_if(kept_.begin(), kept_.end(), fits);
  if (found == kept_.end()) {
    receives_.push_front(std::move(again));
    return;
  }
  found->receive = std::move(again);
  take(*found);
  kept_.erase(found);
}

bool RingMessages::reserve_rings() {
  if (!rings_reserved_ && reserve_)
    rings_reserved_ =
        reserve_(reinterpret_cast<const std::byte*>(rings_), ranks_.size() * ranks_.size() * sizeof(RingHead));
  return rings_reserved_ || !reserve_;
}

// Before so many bytes are written. Who reads them touches no others.
bool RingMessages::reserve_data(int to, size_t bytes) {
  if (!reserve_) return true;
  size_t& reserved = data_reserved_[static_cast<size_t>(to)];
  uint64_t written = rings_[index(me_, to)].written.load(std::memory_order_relaxed);
  size_t end = std::min<uint64_t>(written + bytes, RingHead::kBytes);
  if (end <= reserved) return true;
  if (!reserve_(data(me_, to) + reserved, end - reserved)) return false;
  reserved = end;
  return true;
}

bool RingMessages::push(int to) {
  auto& queue = sends_[static_cast<size_t>(to)];
  RingHead& ring = rings_[index(me_, to)];
  bool moved = false;
  while (!queue.empty()) {
    Outgoing& m = queue.front();
    for (auto next = next_of(m); !next.empty(); next = next_of(m)) {
      if (!reserve_data(to, next.size())) return moved;
      size_t n = ring.put(data(me_, to), next.data(), next.size());
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

// A message, or an offer of one, and who wanted it have met.
void RingMessages::take(Incoming& m) {
  Receive& r = *m.receive;
  std::exception_ptr error = m.header.type == Type::data ? nullptr : misfit(m, r);
  r.work->source = m.from;
  if (m.header.type == Type::offer) {
    // Who is refused is told by which call.
    post(m.from, {.type = error ? Type::refused : Type::ready,
                  .id = m.header.id,
                  .count = r.call.out[0].count,
                  .call = header_of(brief(r.call))});
    if (!error) {
      accepted_.push_back({m.from, m.header.id, std::move(r)});
      return;
    }
  }
  if (!error && !m.kept.empty()) std::memcpy(r.call.out[0].data, m.kept.data(), m.kept.size());
  completed_.emplace_back(std::move(r.work), std::move(error));
}

void RingMessages::answered(int from, const Header& answer) {
  auto it = offers_.find(answer.id);
  if (it == offers_.end()) return;  // cancelled: the other side is told
  Offer offer = std::move(offers_.extract(it).mapped());
  if (answer.type == Type::ready) {
    Header header{.type = Type::data,
                  .id = answer.id,
                  .bytes = static_cast<uint64_t>(offer.call.in[0].count) * size_of(offer.call.dtype)};
    sends_[static_cast<size_t>(from)].push_back({header, std::move(offer.call), std::move(offer.work)});
    return;
  }
  std::string text =
      message_misfit({ranks_[static_cast<size_t>(me_)], header_of(brief(offer.call)), offer.call.in[0].count},
                     {ranks_[static_cast<size_t>(from)], answer.call, answer.count});
  completed_.emplace_back(std::move(offer.work), std::make_exception_ptr(MismatchError(text, "send")));
}

void RingMessages::offer_withdrawn(int from, uint64_t id) {
  auto offer = std::find_if(kept_.begin(), kept_.end(), [&](const Incoming& m) {
    return m.from == from && m.header.type == Type::offer && m.header.id == id;
  });
  if (offer != kept_.end()) {
    kept_.erase(offer);
    return;
  }
  auto accepted =
      std::find_if(accepted_.begin(), accepted_.end(), [&](const Accepted& a) { return a.from == from && a.id == id; });
  if (accepted == accepted_.end()) return;  // it was refused
  Receive again = std::move(accepted->receive);
  accepted_.erase(accepted);
  want_again(std::move(again));
}

// All of it, its data included.
void RingMessages::came(Incoming& m) {
  switch (m.header.type) {
    case Type::message:
    case Type::offer:
      if (m.last == kTakenBack) {
        if (m.receive) want_again(std::move(*m.receive));
        return;
      }
      if (!m.receive) match(m);  // of a message: a receive may have come meanwhile
      if (m.receive)
        take(m);
      else
        kept_.push_back(std::move(m));
      return;
    case Type::ready:
    case Type::refused:
      return answered(m.from, m.header);
    case Type::withdrawn:
      return offer_withdrawn(m.from, m.header.id);
    case Type::data:
      if (m.receive) take(m);
      return;
  }
}

bool RingMessages::pull(int from) {
  auto& arriving = arriving_[static_cast<size_t>(from)];
  RingHead& ring = rings_[index(from, me_)];
  const std::byte* data = this->data(from, me_);
  bool moved = false;
  while (true) {
    if (!arriving) arriving = Incoming{.from = from, .header = {}, .kept = {}, .receive = {}};
    Incoming& m = *arriving;
    if (!m.known()) {
      size_t n = ring.take(data, reinterpret_cast<std::byte*>(&m.header) + m.done, sizeof(Header) - m.done);
      if (n == 0) return moved;
      m.done += n;
      moved = true;
      if (!m.known()) return true;
      m.header.call.bound();
      find_place(m);
    }
    while (!m.whole()) {
      auto next = next_of(m);
      size_t n = ring.take(data, next.data(), next.size());
      if (n == 0) return moved;
      m.done += n;
      moved = true;
    }
    came(m);
    arriving.reset();
  }
}

// Where the data of what arrives go.
void RingMessages::find_place(Incoming& m) {
  if (m.header.type == Type::message) {
    match(m);
    if (!m.receive || misfit(m, *m.receive)) m.kept.resize(m.header.bytes);
  } else if (m.header.type == Type::data) {
    auto accepted = std::find_if(accepted_.begin(), accepted_.end(),
                                 [&](const Accepted& a) { return a.from == m.from && a.id == m.header.id; });
    TUTTI_ASSERT(accepted != accepted_.end());
    m.receive = std::move(accepted->receive);
    accepted_.erase(accepted);
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
    for (int k = 0; k < static_cast<int>(ranks_.size()) && !broken_ && reserve_rings(); ++k) {
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
  if (!receives_.empty() || !completed_.empty() || !offers_.empty() || !accepted_.empty()) return true;
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
  for (auto it = offers_.begin(); it != offers_.end(); ++it)
    if (it->second.work.get() == &work) {
      Withdrawn taken{true, describe(it->second.call)};
      if (!always) post(it->second.to, {.type = Type::withdrawn, .id = it->first});
      offers_.erase(it);
      return taken;
    }
  for (auto& queue : sends_)
    for (auto it = queue.begin(); it != queue.end(); ++it)
      if (it->work.get() == &work) {
        if (it->header.type == Type::data && !always) return {};
        Withdrawn taken{true, describe(it->call)};
        if (it->done > 0 && !always) {
          uint64_t begun = it->done < sizeof(Header) ? 0 : it->done - sizeof(Header);
          const auto* data = static_cast<const std::byte*>(it->call.in[0].data);
          it->rest.assign(data + std::min(begun, it->header.bytes), data + it->header.bytes);
          it->last = kTakenBack;
          it->work = nullptr;
          return taken;
        }
        broken_ = broken_ || it->done > 0 || it->header.type == Type::data;
        queue.erase(it);
        return taken;
      }
  if (!always) return {};
  for (auto it = accepted_.begin(); it != accepted_.end(); ++it)
    if (it->receive.work.get() == &work) {
      Withdrawn taken{false, describe(it->receive.call)};
      broken_ = true;
      accepted_.erase(it);
      return taken;
    }
  for (auto& m : arriving_)
    if (m && m->receive && m->receive->work.get() == &work) {
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
  for (auto& [id, offer] : offers_) all.push_back(std::move(offer.work));
  for (auto& a : accepted_) all.push_back(std::move(a.receive.work));
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
  offers_.clear();
  accepted_.clear();
  return all;
}

}  // namespace tutti::comm
