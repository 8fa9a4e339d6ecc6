#include "comm/store/session.h"

#include <algorithm>

#include "base/check.h"

namespace tutti::store {

bool Frames::whole() const {
  size_t have = buffer_.size() - start_;
  return !broken_ && have >= 4 && have - 4 >= get_u32(buffer_.data() + start_);
}

std::string_view Frames::next() {
  if (broken_ || buffer_.size() - start_ < 4) return {};
  size_t length = get_u32(buffer_.data() + start_);
  broken_ = length < 8 || length > kMaxFrame;
  if (broken_ || !whole()) return {};
  std::string_view frame(buffer_.data() + start_ + 4, length);
  start_ += 4 + length;
  return frame;
}

// Keeps the rest. Memory that a large frame took is given back.
void Frames::compact() {
  if (start_ == 0) return;
  buffer_.erase(0, start_);
  start_ = 0;
  if (buffer_.capacity() > (1 << 20) && buffer_.size() < (1 << 16)) buffer_.shrink_to_fit();
}

struct Session::Call : Board::Pending {
  Call(Session& session, uint64_t number, Request&& request)
      : Pending(this->request), session(session), number(number), request(std::move(request)) {}
  // Stays in the session's table: this runs within the board. It goes when the peer speaks next.
  void finish(Reply answer) override {
    session.finished_.push_back(number);
    session.reply(number, std::move(answer));
    session.has_output_();
  }
  Session& session;
  uint64_t number;
  Request request;
};

Session::Session(Board& board, std::string_view secret, const Digest& nonce, std::function<void()> has_output)
    : board_(board), secret_(secret), has_output_(std::move(has_output)), greeting_(make_greeting(nonce)) {
  output_ = greeting_;
}

Session::~Session() {
  for (auto& [number, call] : waiting_) board_.forget(*call);
}

size_t Session::wanted() const {
  if (!proven_) return kClaimBytes - claim_.size();
  return paused() || frames_.whole() ? 0 : 1 << 18;
}

bool Session::receive(std::string_view bytes) {
  if (!proven_) return receive_claim(bytes);
  last_heard_ = Clock::now();
  frames_.add(bytes);
  return proceed();
}

// A few bytes can ask for many, so this stops as soon as there is much to send: then it is the peer's turn to read.
bool Session::proceed() {
  for (size_t turn = 0; turn < 1000 && !paused(); ++turn) {
    auto frame = frames_.next();
    if (frame.empty()) break;
    if (!receive_frame(frame)) return false;
  }
  frames_.compact();
  return !frames_.broken() && !overrun_;
}

bool Session::receive_claim(std::string_view bytes) {
  // Nobody may say more before we answered; wanted() keeps an honest caller of this from reading more.
  if (bytes.size() > kClaimBytes - claim_.size()) return false;
  claim_ += bytes;
  // Garbage is recognised at its first bytes.
  size_t check = std::min(claim_.size(), kMagic.size());
  if (claim_.compare(0, check, kMagic, 0, check) != 0) return false;
  if (claim_.size() < kClaimBytes) return true;
  std::string answer = make_answer(secret_, greeting_, claim_);
  proven_ = !answer.empty();
  output_ += proven_ ? answer : refusal();
  claim_.clear();
  return proven_;
}

void Session::sweep() {
  for (uint64_t number : finished_) waiting_.erase(number);
  finished_.clear();
}

bool Session::receive_frame(std::string_view frame) {
  sweep();
  uint64_t number = get_u64(frame.data());
  frame.remove_prefix(8);
  if (frame.empty()) {
    auto it = waiting_.find(number);
    // If it was answered in the meantime, the client gets that answer.
    if (it == waiting_.end()) return true;
    board_.forget(*it->second);
    reply(number, board_.ended(it->second->request));
    waiting_.erase(it);
    return true;
  }
  Request request;
  if (!decode(frame, request)) return false;
  if (request.op == Op::will) {
    take_will(request);
    reply(number, {});
    return true;
  }
  if (auto answer = board_.apply(request)) {
    reply(number, std::move(*answer));
    return true;
  }
  if (waiting_.size() >= kMaxPending) return false;
  auto [it, fresh] = waiting_.try_emplace(number, nullptr);
  if (!fresh) return false;
  it->second = std::make_unique<Call>(*this, number, std::move(request));
  board_.watch(*it->second);
  return true;
}

void Session::take_will(const Request& request) {
  bool revokes = request.values[0].empty() && request.values[1].empty();
  will_ = revokes ? std::nullopt : std::optional(request);
  silence_ = std::chrono::milliseconds(revokes ? 0 : std::clamp<int64_t>(request.number, 0, 1 << 30));
}

void Session::pass_away(bool silent) {
  if (!will_) return;
  Request request{Op::compare_and_set, false, 0, will_->keys, {"", will_->values[silent ? 1 : 0]}};
  will_.reset();
  board_.apply(request);
}

void Session::reply(uint64_t number, Reply reply) {
  overrun_ = overrun_ || output_.size() - sent_ + encoded_size(reply) > kMaxOutput;
  if (!overrun_) put_frame(output_, number, reply);
}

void Session::sent(size_t bytes) {
  sent_ += bytes;
  if (sent_ == output_.size()) {
    output_.clear();
    if (output_.capacity() > kPauseOutput) output_.shrink_to_fit();
    sent_ = 0;
  } else if (sent_ > output_.size() / 2) {
    output_.erase(0, sent_);
    sent_ = 0;
  }
}

}  // namespace tutti::store
