// The client of the TCP store. Its threads share one connection; one of those that wait for answers, the leader, waits
// at the socket for all, hands the answers out, and passes the lead on when it has its own. So an answer wakes the
// thread that wants it and no other, and a handle that nobody uses costs no thread.
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>

#include "base/check.h"
#include "comm/store/server.h"

namespace tutti {

using store::Clock;
using store::Reply;
using store::Waiting;

namespace {

constexpr const char* kTcpOperation = "TcpStore";
constexpr auto kOverslept = std::chrono::milliseconds(100);  // what a busy machine may be late

// False where a later try may do better, with the reason in `failure`.
bool shake_hands(int socket, const std::string& where, const TcpStoreOptions& options, const Waiting& waiting,
                 std::string& failure) {
  Waiting attempt{std::min(waiting.deadline, store::deadline_after(options.handshake_timeout)), waiting.stop};
  std::string greeting(store::kGreetingBytes, '\0'), answer(store::kAnswerBytes, '\0');
  if (!store::read_all(socket, greeting.data(), greeting.size(), attempt, failure)) return false;
  if (std::string defect = store::greeting_defect(greeting); !defect.empty())
    fail<ConnectionError>(kTcpOperation, "cannot use the server at {}: {}", where, defect);
  std::string claim = store::make_claim(options.secret, greeting, random_digest());
  if (!store::write_all(socket, claim, attempt, failure)) return false;
  if (!store::read_all(socket, answer.data(), answer.size(), attempt, failure)) return false;
  check<ConnectionError>(answer != store::refusal(), kTcpOperation, "the server at {} refused: its secret is another",
                         where);
  check<ConnectionError>(store::answer_proves(options.secret, greeting, claim, answer), kTcpOperation,
                         "the server at {} does not know the secret", where);
  return true;
}

}  // namespace

struct TcpStore::Impl {
  struct Slot {
    std::optional<Reply> reply;
    std::condition_variable changed;
  };

  Impl(const std::string& host, uint16_t port, const TcpStoreOptions& options);
  Reply call(const store::Request& request, const Waiting& waiting);
  void await(std::unique_lock<std::mutex>& lock, uint64_t number, Slot& slot, const Waiting& waiting);
  void lead(std::unique_lock<std::mutex>& lock, Clock::time_point deadline);
  void wake_leader();
  void flush();
  void receive();
  void hand_out();
  void lose(const std::string& reason);
  void leave(uint64_t number);

  std::string address;  // of the server, for messages
  uint16_t port = 0;
  const std::chrono::nanoseconds grace;
  const pid_t process = ::getpid();
  io::Descriptor socket, wake;

  std::mutex mutex;  // guards all that follows
  bool leading = false;
  std::string lost;  // why the connection is of no more use
  uint64_t next_number = 1;
  std::unordered_map<uint64_t, Slot*> slots;
  std::string output;
  size_t sent = 0;
  store::Frames input;
  std::vector<char> buffer = std::vector<char>(1 << 16);
};

TcpStore::Impl::Impl(const std::string& host, uint16_t port, const TcpStoreOptions& options)
    : port(port), grace(options.grace), wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  check<ConnectionError>(wake.get() >= 0, kTcpOperation, "no descriptor: {}", store::errno_text(errno));
  Waiting waiting{store::deadline_after(options.timeout), &options.stop};
  std::string failure;
  auto pause = std::chrono::milliseconds(5);
  while (true) {
    store::Address peer;
    socket = store::connect_once(host, port, waiting, peer, failure);
    if (socket.get() >= 0) {
      address = peer.text();
      if (shake_hands(socket.get(), address, options, waiting, failure)) return;
    }
    Waiting rest{std::min(waiting.deadline, Clock::now() + pause), waiting.stop};
    store::poll_until(-1, 0, rest);
    check<CancelledError>(!waiting.stopped(), kTcpOperation, "cancelled while connecting to {}",
                          store::host_port(host, port));
    check<ConnectionError>(Clock::now() < waiting.deadline, kTcpOperation, "no server at {} in {:.3g} s: {}",
                           store::host_port(host, port), std::chrono::duration<double>(options.timeout).count(),
                           failure);
    pause = std::min(pause * 2, std::chrono::milliseconds(200));
  }
}

Reply TcpStore::Impl::call(const store::Request& request, const Waiting& waiting) {
  check<StoreError>(process == ::getpid(), kTcpOperation,
                    "the connection to {} was made before a fork; the child has to make its own", address);
  Slot slot;
  store::Wakers wakers(waiting, [&] {
    std::lock_guard lock(mutex);
    slot.changed.notify_all();
    wake_leader();
  });
  std::unique_lock lock(mutex);
  uint64_t number = next_number++;
  slots.emplace(number, &slot);
  struct Leave {
    Impl& impl;
    uint64_t number;
    ~Leave() { impl.leave(number); }
  } leave_at_end{*this, number};

  if (lost.empty()) {
    put_frame(output, number, request);
    flush();
  }
  await(lock, number, slot, waiting);
  return std::move(*slot.reply);
}

// Until the answer is there. A wait that is over is taken back from the server, which says what did not come; if it
// has answered in the meantime, that answer counts, so that nothing is lost that was taken from a queue.
void TcpStore::Impl::await(std::unique_lock<std::mutex>& lock, uint64_t number, Slot& slot, const Waiting& waiting) {
  auto deadline = waiting.deadline;
  bool taken_back = false;
  while (!slot.reply) {
    if (!lost.empty()) fail<ConnectionError>(kTcpOperation, "{}", lost);
    bool late = Clock::now() >= deadline;
    if (!taken_back && (late || waiting.stopped())) {
      store::put_take_back(output, number);
      flush();
      taken_back = true;
      deadline = Clock::now() + grace;
    } else if (taken_back && Clock::now() - deadline > std::max<Clock::duration>(grace / 2, kOverslept)) {
      deadline = Clock::now() + grace;  // this process was stopped, and the server perhaps with it
    } else if (taken_back && late) {
      lose(fmt::format("the server at {} does not answer", address));
    } else if (leading) {
      slot.changed.wait_until(lock, deadline);
    } else {
      lead(lock, deadline);
    }
  }
}

void TcpStore::Impl::leave(uint64_t number) {
  slots.erase(number);
  if (!leading && !slots.empty()) slots.begin()->second->changed.notify_all();  // somebody has to lead
}

void TcpStore::Impl::lead(std::unique_lock<std::mutex>& lock, Clock::time_point deadline) {
  leading = true;
  short events = POLLIN;
  if (sent < output.size()) events |= POLLOUT;
  pollfd polls[2] = {{socket.get(), events, 0}, {wake.get(), POLLIN, 0}};
  auto left =
      std::clamp<std::chrono::nanoseconds>(deadline - Clock::now(), std::chrono::nanoseconds(0), std::chrono::hours(1));
  timespec limit{static_cast<time_t>(left.count() / 1000000000), static_cast<long>(left.count() % 1000000000)};
  lock.unlock();
  int ready = ::ppoll(polls, 2, &limit, nullptr);
  lock.lock();
  leading = false;
  if (ready <= 0 || !lost.empty()) return;
  eventfd_t ignored;
  if (polls[1].revents) ::eventfd_read(wake.get(), &ignored);
  if (polls[0].revents & ~POLLOUT) receive();
  flush();
}

void TcpStore::Impl::wake_leader() {
  if (leading) ::eventfd_write(wake.get(), 1);
}

// Sends what the socket takes; the leader sends the rest.
void TcpStore::Impl::flush() {
  while (lost.empty() && sent < output.size()) {
    ssize_t count = ::send(socket.get(), output.data() + sent, output.size() - sent, MSG_NOSIGNAL);
    if (count >= 0)
      sent += static_cast<size_t>(count);
    else if (errno == EAGAIN)
      return wake_leader();
    else if (errno != EINTR)
      lose(fmt::format("lost the server at {}: {}", address, store::errno_text(errno)));
  }
  output.clear();
  if (output.capacity() > (1 << 20)) output.shrink_to_fit();
  sent = 0;
}

void TcpStore::Impl::receive() {
  for (int turns = 0; turns < 64 && lost.empty(); ++turns) {
    ssize_t count = ::recv(socket.get(), buffer.data(), buffer.size(), 0);
    if (count > 0) {
      input.add({buffer.data(), static_cast<size_t>(count)});
      if (static_cast<size_t>(count) < buffer.size()) break;
    } else if (count == 0) {
      lose(fmt::format("lost the server at {}: it closed the connection", address));
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      lose(fmt::format("lost the server at {}: {}", address, store::errno_text(errno)));
    }
  }
  hand_out();
}

void TcpStore::Impl::hand_out() {
  for (auto frame = input.next(); !frame.empty(); frame = input.next()) {
    Reply reply;
    if (!decode(frame.substr(8), reply)) return lose(fmt::format("the server at {} speaks nonsense", address));
    auto it = slots.find(store::get_u64(frame.data()));
    if (it == slots.end()) continue;
    it->second->reply = std::move(reply);
    it->second->changed.notify_all();
  }
  input.compact();
  if (input.broken()) lose(fmt::format("the server at {} speaks nonsense", address));
}

void TcpStore::Impl::lose(const std::string& reason) {
  if (!lost.empty()) return;
  lost = reason;
  for (auto& [number, slot] : slots) slot->changed.notify_all();
  wake_leader();
}

TcpStore::TcpStore(TcpStoreOptions options) : Store(options.timeout) {
  std::string host = options.host.empty() ? "127.0.0.1" : options.host;
  uint16_t port = options.port;
  if (options.serve) {
    server_ = std::make_unique<store::Server>(options.host, port, options.secret, options.handshake_timeout);
    const store::Address& bound = server_->address();
    port = bound.port();
    host = !bound.any() ? bound.host() : bound.storage.ss_family == AF_INET6 ? "::1" : "127.0.0.1";
  }
  impl_ = std::make_unique<Impl>(host, port, options);
}

TcpStore::~TcpStore() = default;

std::string TcpStore::name() const { return "the TCP store at " + impl_->address; }
uint16_t TcpStore::port() const { return impl_->port; }

void TcpStore::leave_will(const std::string& key, const std::string& if_ended, const std::string& if_silent,
                          std::chrono::milliseconds silence) {
  store::Request request{store::Op::will, false, silence.count(), {key}, {if_ended, if_silent}};
  if (std::string text = defect(request); !text.empty()) fail<ValueError>("leave_will", "{}", text);
  std::stop_token none;
  impl_->call(request, Waiting{store::deadline_after(timeout()), &none});
}

Reply TcpStore::call(const store::Request& request, const Waiting& waiting) { return impl_->call(request, waiting); }

}  // namespace tutti
