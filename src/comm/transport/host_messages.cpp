#include "comm/transport/host_messages.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tutti::comm {
namespace {

constexpr size_t kShort = 64 << 10;  // bytes of messages that go at once

size_t message_bytes(const Piece& piece, DType dtype) { return static_cast<size_t>(piece.count) * size_of(dtype); }

}  // namespace

void HostMessages::complete(Completed& completed) {
  for (auto& [work, error] : completed) work->complete(std::move(error));
}

void HostMessages::post(int to, const Letter& letter, const void* data, size_t bytes) {
  std::vector<std::byte> mail(sizeof letter + bytes);
  std::memcpy(mail.data(), &letter, sizeof letter);
  if (bytes) std::memcpy(mail.data() + sizeof letter, data, bytes);
  world_.post(ranks_[static_cast<size_t>(to)], group_, std::move(mail));
}

HostMessages::Transfer& HostMessages::add_transfer(bool sends, Call call, std::shared_ptr<WorkState> work) {
  transfers_.push_back(std::make_unique<Transfer>(sends, std::move(call), std::move(work)));
  transfers_.back()->pending.when_done = [world = &world_, group = group_] { world->nudge(group); };
  return *transfers_.back();
}

void HostMessages::send(int to, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) {
  size_t bytes = message_bytes(call.in[0], call.dtype);
  Letter letter{.tag = tag,
                .count = call.in[0].count,
                .bytes = bytes,
                .call = facts_of(call, me_, static_cast<int>(ranks_.size())).header};
  Completed completed;
  {
    std::lock_guard lock(mutex_);
    if (to == me_) {
      const auto* data = static_cast<const std::byte*>(call.in[0].data);
      came({me_, letter, std::vector<std::byte>(data, data + bytes)}, completed);
      completed.emplace_back(work, nullptr);
    } else if (bytes <= kShort) {
      post(to, letter, call.in[0].data, bytes);
      completed.emplace_back(work, nullptr);
    } else {
      letter.kind = Kind::offer;
      letter.id = next_id_++;
      post(to, letter);
      offers_.emplace(letter.id, Offer{to, std::move(call), work});
    }
  }
  complete(completed);
}

void HostMessages::receive(int from, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) {
  Completed completed;
  {
    std::lock_guard lock(mutex_);
    Receive receive{from, tag, std::move(call), work};
    auto fits = [&](const Incoming& m) { return m.letter.tag == tag && (from < 0 || m.from == from); };
    auto found = std::find_if(kept_.begin(), kept_.end(), fits);
    if (found == kept_.end()) {
      receives_.push_back(std::move(receive));
    } else {
      take(*found, std::move(receive), completed);
      kept_.erase(found);
    }
  }
  complete(completed);
}

std::exception_ptr HostMessages::misfit(const Incoming& m, const Receive& r) const {
  const Piece& to = r.call.out[0];
  std::string text = message_misfit({ranks_[static_cast<size_t>(m.from)], m.letter.call, m.letter.count},
                                    {ranks_[static_cast<size_t>(me_)], header_of(brief(r.call)), to.count});
  if (text.empty() && m.letter.bytes != message_bytes(to, r.call.dtype))
    text = fmt::format("rank {} sent {} bytes as a message of {}", ranks_[static_cast<size_t>(m.from)], m.letter.bytes,
                       message_bytes(to, r.call.dtype));
  return text.empty() ? nullptr : std::make_exception_ptr(MismatchError(text, "recv"));
}

// A message and who wanted it have met.
void HostMessages::take(Incoming& m, Receive r, Completed& completed) {
  std::exception_ptr error = misfit(m, r);
  r.work->source = m.from;
  bool offered = m.letter.kind == Kind::offer;
  // Who is refused is told by which call.
  if (offered)
    post(m.from, {.kind = error ? Kind::discard : Kind::ready,
                  .id = m.letter.id,
                  .count = r.call.out[0].count,
                  .call = header_of(brief(r.call))});
  if (!offered && !error && !m.bytes.empty()) std::memcpy(r.call.out[0].data, m.bytes.data(), m.bytes.size());
  if (!offered || error) {
    completed.emplace_back(std::move(r.work), std::move(error));
    return;
  }
  Transfer& t = add_transfer(false, std::move(r.call), std::move(r.work));
  t.from = m.from;
  t.id = m.letter.id;
  t.asked = r.from;
  t.tag = r.tag;
  world_.wire().receive({group_, m.letter.id, ranks_[static_cast<size_t>(m.from)], Channel::message},
                        t.call.out[0].data, m.letter.bytes, t.pending);
}

void HostMessages::came(Incoming m, Completed& completed) {
  auto fits = [&](const Receive& r) { return r.tag == m.letter.tag && (r.from < 0 || r.from == m.from); };
  auto found = std::find_if(receives_.begin(), receives_.end(), fits);
  if (found == receives_.end()) {
    kept_.push_back(std::move(m));
    return;
  }
  Receive receive = std::move(*found);
  receives_.erase(found);
  take(m, std::move(receive), completed);
}

// Its sender has cancelled an offer. Who has accepted it meanwhile waits for the next.
void HostMessages::taken_back(int from, uint64_t id, Completed& completed) {
  auto offer = std::find_if(kept_.begin(), kept_.end(), [&](const Incoming& m) {
    return m.from == from && m.letter.kind == Kind::offer && m.letter.id == id;
  });
  if (offer != kept_.end()) {
    kept_.erase(offer);
    return;
  }
  auto accepted = std::find_if(transfers_.begin(), transfers_.end(),
                               [&](const auto& t) { return !t->sends && t->from == from && t->id == id; });
  if (accepted == transfers_.end()) return;
  world_.wire().unreceive({group_, id, ranks_[static_cast<size_t>(from)], Channel::message});
  Receive again{(*accepted)->asked, (*accepted)->tag, std::move((*accepted)->call), std::move((*accepted)->work)};
  transfers_.erase(accepted);
  auto fits = [&](const Incoming& m) { return m.letter.tag == again.tag && (again.from < 0 || m.from == again.from); };
  auto found = std::find_if(kept_.begin(), kept_.end(), fits);
  if (found == kept_.end()) {
    receives_.push_front(std::move(again));
  } else {
    take(*found, std::move(again), completed);
    kept_.erase(found);
  }
}

void HostMessages::arrived(const Mail& mail) {
  Incoming m{-1, {}, {}};
  auto sender = std::find(ranks_.begin(), ranks_.end(), mail.name.from);
  if (sender == ranks_.end() || mail.bytes.size() < sizeof(Letter)) return;
  m.from = static_cast<int>(sender - ranks_.begin());
  std::memcpy(&m.letter, mail.bytes.data(), sizeof(Letter));
  m.letter.call.bound();
  m.bytes.assign(mail.bytes.begin() + sizeof(Letter), mail.bytes.end());
  Completed completed;
  {
    std::lock_guard lock(mutex_);
    switch (m.letter.kind) {
      case Kind::message:
        if (m.bytes.size() != m.letter.bytes) return;
        [[fallthrough]];
      case Kind::offer:
        came(std::move(m), completed);
        break;
      case Kind::withdrawn:
        taken_back(m.from, m.letter.id, completed);
        break;
      case Kind::ready:
      case Kind::discard: {
        auto it = offers_.find(m.letter.id);
        if (it == offers_.end()) return;  // cancelled: the other side is told
        Offer offer = std::move(offers_.extract(it).mapped());
        if (m.letter.kind == Kind::discard) {
          std::string text =
              message_misfit({ranks_[static_cast<size_t>(me_)], header_of(brief(offer.call)), offer.call.in[0].count},
                             {ranks_[static_cast<size_t>(m.from)], m.letter.call, m.letter.count});
          completed.emplace_back(std::move(offer.work), std::make_exception_ptr(MismatchError(text, "send")));
          break;
        }
        Transfer& t = add_transfer(true, std::move(offer.call), std::move(offer.work));
        world_.wire().send(ranks_[static_cast<size_t>(offer.to)],
                           {group_, m.letter.id, ranks_[static_cast<size_t>(me_)], Channel::message}, t.call.in[0].data,
                           message_bytes(t.call.in[0], t.call.dtype), t.pending);
        break;
      }
    }
  }
  complete(completed);
}

void HostMessages::settle() {
  Completed completed;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(transfers_, [&](const auto& t) {
      if (!t->pending.done()) return false;
      completed.emplace_back(std::move(t->work), nullptr);
      return true;
    });
  }
  complete(completed);
}

std::optional<HostMessages::Withdrawn> HostMessages::withdraw(const WorkState& work, bool always) {
  std::lock_guard lock(mutex_);
  auto mine = [&](const auto& entry) { return entry.work.get() == &work; };
  auto receive = std::find_if(receives_.begin(), receives_.end(), mine);
  if (receive != receives_.end()) {
    Withdrawn taken{false, describe(receive->call)};
    receives_.erase(receive);
    return taken;
  }
  auto offer = std::find_if(offers_.begin(), offers_.end(), [&](const auto& entry) { return mine(entry.second); });
  if (offer != offers_.end()) {
    Withdrawn taken{true, describe(offer->second.call)};
    if (!always) post(offer->second.to, {.kind = Kind::withdrawn, .id = offer->first});
    offers_.erase(offer);
    return taken;
  }
  if (!always) return {};
  auto transfer = std::find_if(transfers_.begin(), transfers_.end(), [&](const auto& t) { return mine(*t); });
  if (transfer == transfers_.end()) return {};
  Withdrawn taken{(*transfer)->sends, describe((*transfer)->call)};
  transfers_.erase(transfer);
  return taken;
}

std::optional<HostMessages::Withdrawn> HostMessages::find(const WorkState& work) {
  std::lock_guard lock(mutex_);
  for (auto& r : receives_)
    if (r.work.get() == &work) return Withdrawn{false, describe(r.call)};
  for (auto& [id, offer] : offers_)
    if (offer.work.get() == &work) return Withdrawn{true, describe(offer.call)};
  for (auto& t : transfers_)
    if (t->work.get() == &work) return Withdrawn{t->sends, describe(t->call)};
  return {};
}

bool HostMessages::moving() {
  std::lock_guard lock(mutex_);
  return !transfers_.empty();
}

std::vector<std::shared_ptr<WorkState>> HostMessages::withdraw_all() {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<WorkState>> all;
  for (auto& r : receives_) all.push_back(std::move(r.work));
  for (auto& [id, offer] : offers_) all.push_back(std::move(offer.work));
  for (auto& t : transfers_) all.push_back(std::move(t->work));
  receives_.clear();
  offers_.clear();
  transfers_.clear();
  return all;
}

}  // namespace tutti::comm
