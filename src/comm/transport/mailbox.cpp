#include "comm/transport/mailbox.h"

#include <cstring>

#include "base/check.h"
#include "comm/group/facts.h"

namespace tutti::comm {
namespace {

constexpr size_t kEager = 64 << 10;  // bytes of messages that are copied, so that the sender need not wait

template <class Fits>
std::optional<Mailboxes::Waiting> take(std::list<Mailboxes::Waiting>& list, const Fits& fits) {
  for (auto it = list.begin(); it != list.end(); ++it)
    if (fits(*it)) {
      std::optional<Mailboxes::Waiting> found(std::move(*it));
      list.erase(it);
      return found;
    }
  return {};
}

}  // namespace

void Mailboxes::send(int from, int to, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) {
  Waiting message{to, from, tag, true, std::move(call), {}, work};
  std::optional<Waiting> receive;
  bool eager = false;
  {
    Box& box = boxes_[static_cast<size_t>(to)];
    std::lock_guard lock(box.mutex);
    receive = take(box.receives, [&](const Waiting& w) { return w.tag == tag && (w.from < 0 || w.from == from); });
    if (!receive) {
      const Piece& piece = message.call.in[0];
      size_t bytes = static_cast<size_t>(piece.count) * size_of(message.call.dtype);
      eager = bytes <= kEager;
      if (eager) {
        const char* data = static_cast<const char*>(piece.data);
        if (bytes) message.copy.assign(data, data + bytes);
        message.work = nullptr;
      }
      box.messages.push_back(std::move(message));
    }
  }
  if (receive) return move(message, *receive);
  if (eager) work->complete(nullptr);
}

void Mailboxes::receive(int to, int from, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) {
  Waiting receive{to, from, tag, false, std::move(call), {}, work};
  std::optional<Waiting> message;
  {
    Box& box = boxes_[static_cast<size_t>(to)];
    std::lock_guard lock(box.mutex);
    message = take(box.messages, [&](const Waiting& w) { return w.tag == tag && (from < 0 || w.from == from); });
    if (!message) box.receives.push_back(std::move(receive));
  }
  if (message) move(*message, receive);
}

void Mailboxes::move(Waiting& message, Waiting& receive) {
  const Piece &from = message.call.in[0], &to = receive.call.out[0];
  std::exception_ptr errors[2];
  bool fits = message.call.dtype == receive.call.dtype && message.call.shape == receive.call.shape;
  if (!fits) {
    std::string text =
        message_misfit({ranks_[static_cast<size_t>(message.from)], header_of(brief(message.call)), from.count},
                       {ranks_[static_cast<size_t>(receive.box)], header_of(brief(receive.call)), to.count});
    // An error for each, since each is freed by its own rank.
    errors[0] = std::make_exception_ptr(MismatchError(text, "send"));
    errors[1] = std::make_exception_ptr(MismatchError(text, "recv"));
  } else if (to.count > 0) {
    std::memcpy(to.data, message.work ? from.data : message.copy.data(),
                static_cast<size_t>(to.count) * size_of(receive.call.dtype));
  }
  receive.work->source = message.from;
  if (message.work) message.work->complete(std::move(errors[0]));
  receive.work->complete(std::move(errors[1]));
}

std::optional<Mailboxes::Waiting> Mailboxes::withdraw(const WorkState& work) {
  for (Box& box : boxes_) {
    std::lock_guard lock(box.mutex);
    auto mine = [&](const Waiting& w) { return w.work.get() == &work; };
    if (auto found = take(box.messages, mine)) return found;
    if (auto found = take(box.receives, mine)) return found;
  }
  return {};
}

std::vector<Mailboxes::Waiting> Mailboxes::withdraw_all() {
  std::vector<Waiting> all;
  for (Box& box : boxes_) {
    std::lock_guard lock(box.mutex);
    for (auto* list : {&box.messages, &box.receives}) {
      for (Waiting& w : *list)
        if (w.work) all.push_back(std::move(w));
      list->clear();
    }
  }
  return all;
}

}  // namespace tutti::comm
