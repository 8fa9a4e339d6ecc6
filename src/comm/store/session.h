// One peer of a server, as bytes in and bytes out: the protocol of the TCP store without sockets (docs/wire-format.md).
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <unordered_map>

#include "comm/store/board.h"
#include "comm/store/handshake.h"
#include "comm/store/waiting.h"

namespace tutti::store {

// A frame: u32 length of what follows, u64 number of the request, then an encoded Request or Reply. A frame from a
// client that ends after the number takes the request of that number back.
inline constexpr size_t kFrameHeader = 4 + 8;
inline constexpr size_t kMaxFrame = 8 + Store::kMaxBytes;
inline constexpr size_t kMaxPending = size_t{1} << 16;      // requests of one peer that wait
inline constexpr size_t kPauseOutput = size_t{1} << 20;     // a peer that does not read so much is read from no more
inline constexpr size_t kMaxOutput = 4 * Store::kMaxBytes;  // and one that still gets more is dropped

template <class T>
void put_frame(std::string& out, uint64_t number, const T& message) {
  put_u32(out, static_cast<uint32_t>(8 + encoded_size(message)));
  put_u64(out, number);
  encode(out, message);
}
inline void put_take_back(std::string& out, uint64_t number) {
  put_u32(out, 8);
  put_u64(out, number);
}

/// Bytes that come in pieces, as frames.
class Frames {
 public:
  void add(std::string_view bytes) { buffer_.append(bytes); }
  /// Whether next() has one.
  bool whole() const;
  /// The next whole frame, valid until the next call of add(); empty if there is none (yet), see broken().
  std::string_view next();
  /// A length that cannot be was met: the rest makes no sense.
  bool broken() const { return broken_; }
  void compact();

 private:
  std::string buffer_;
  size_t start_ = 0;
  bool broken_ = false;
};

class Session {
 public:
  /// `has_output` is called when there is something to send that came from another peer's doing.
  Session(Board& board, std::string_view secret, const Digest& nonce, std::function<void()> has_output);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  bool proven() const { return proven_; }
  /// How many bytes to read next; 0: none until output has been sent.
  size_t wanted() const;
  /// Takes bytes in and answers what can be answered. False: the peer broke the protocol, or let too much output
  /// gather. What output there is may still be sent.
  bool receive(std::string_view bytes);
  /// Goes on with requests that wait for output to be sent first; to be called when there is little left of it.
  bool proceed();
  bool paused() const { return output_.size() - sent_ > kPauseOutput; }
  std::string_view output() const { return std::string_view(output_).substr(sent_); }
  void sent(size_t bytes);
  /// The peer let too much output gather, and some was not kept.
  bool overrun() const { return overrun_; }

  /// A peer with a will is expected to speak: how long it may be silent, zero for ever.
  std::chrono::milliseconds silence() const { return silence_; }
  Clock::time_point last_heard() const { return last_heard_; }
  /// The peer is gone: carries out its will.
  void pass_away(bool silent);

 private:
  struct Call;
  bool receive_claim(std::string_view bytes);
  bool receive_frame(std::string_view frame);
  void take_will(const Request& request);
  void sweep();
  void reply(uint64_t number, Reply reply);

  Board& board_;
  std::string_view secret_;
  std::function<void()> has_output_;
  bool proven_ = false;
  std::string greeting_, claim_;
  Frames frames_;
  std::string output_;
  size_t sent_ = 0;
  bool overrun_ = false;
  std::unordered_map<uint64_t, std::unique_ptr<Call>> waiting_;
  std::vector<uint64_t> finished_;  // of those that wait no more
  std::optional<Request> will_;
  std::chrono::milliseconds silence_{0};
  Clock::time_point last_heard_ = Clock::now();
};

}  // namespace tutti::store
