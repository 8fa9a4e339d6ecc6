#include "comm/transport/wire.h"

#include <utility>

namespace tutti::comm {

// Declared for tests, in tutti/testing.h.
bool has_engine(const std::string& name);
bool has_engine(const std::string& name) { return name == "ucx" ? has_ucx() : name == "gloo" && has_gloo(); }

std::vector<Mail> Wire::take_mail() {
  std::lock_guard lock(mutex_);
  mails_.store(0);
  nudged_.store(false);
  return std::exchange(mail_, {});
}

void Wire::put_mail(Mail mail) {
  {
    std::lock_guard lock(mutex_);
    Box& box = boxes_[mail.name.from];
    box.early.emplace(mail.name.number, std::move(mail));
    while (!box.early.empty() && box.early.begin()->first == box.next) {
      mail_.push_back(std::move(box.early.extract(box.early.begin()).mapped()));
      ++box.next;
    }
    mails_.store(mail_.size());
  }
  unattended();
}

void Wire::nudge() {
  nudged_.store(true);
  unattended();
}

void Wire::set_on_mail(std::function<void()> f) {
  {
    std::lock_guard lock(mutex_);
    on_mail_ = std::move(f);
  }
  unattended();
}

void Wire::unattended() {
  if (attended() || !has_mail()) return;
  std::function<void()> call;
  {
    std::lock_guard lock(mutex_);
    call = on_mail_;
  }
  if (call) call();
}

bool Wire::misfits(const WireName& name, size_t length, size_t room, Pending* pending) {
  if (fits(name, length, room)) return false;
  if (pending->tentative) {
    pending->misfit.store(true);
    finish(pending);
  } else {
    set_broken(name.from, "it sent a message of a length that cannot be");
  }
  return true;
}

std::optional<Wire::Broken> Wire::broken(int rank) const {
  std::lock_guard lock(mutex_);
  return broken_[static_cast<size_t>(rank)];
}

void Wire::set_broken(int rank, std::string text) {
  std::lock_guard lock(mutex_);
  auto& broken = broken_[static_cast<size_t>(rank)];
  if (!broken) broken = Broken{Clock::now(), std::move(text)};
}

}  // namespace tutti::comm
