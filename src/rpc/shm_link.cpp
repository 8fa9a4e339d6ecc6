// The link between processes of a host: a ring in shared memory from each worker to each other.
//
// Note [Rings and bells]
// A worker's segment has a ring for each worker that can send to it, and its bell. Others get it as a descriptor, by a
// socket of the worker's that has a name nobody can guess: nothing of it is in a file system, and it is gone when the
// last of them is. A message is a stream of bytes in the ring: header, front, data.
//
// Large data are lent instead, where the system lets workers read each other's memory (process_vm_readv; they try when
// they meet): the receiver copies them from where they are, in one go, and counts what it has given back. A sender that
// leaves before that revokes what it has lent, and then frees it; a receiver that has read finds that out afterwards,
// as it finds that the sender's process has ended, and throws away what it has read.
//
// A worker that is about to sleep says so in its bell, by a number that it has not used before, and then looks once
// more whether there is something to do. Who has put something into its ring, or has made room in a ring that it waits
// for, then looks at the bell, and sends a byte to the socket, once for each number. All of these are sequentially
// consistent, so one of the two sees the other. Who dies in between takes along only what it had to say itself.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>
#include <deque>
#include <thread>

#include "base/check.h"
#include "base/sha256.h"
#include "comm/transport/ring.h"
#include "comm/transport/segment.h"
#include "rpc/link.h"
#include "tutti/ops.h"

namespace tutti::rpc::detail {
namespace {

using comm::Segment;
using io::Descriptor;

constexpr size_t kPiece = 16 << 10;  // is copied before the other side is told: it copies the one before meanwhile
constexpr size_t kSmall = 32 << 10;  // messages of up to so many bytes own no memory
constexpr size_t kLent = 128 << 10;  // data of so many bytes are lent: of less, reading them elsewhere takes longer
// Room for messages that are not lent and then some, so that whoever sends one need not stay to push the rest of it.
using Ring = comm::Ring<256 << 10>;
constexpr int kTurn = 64;  // messages of one worker before it is another's turn

/// The shared part of a worker; all zeros is a good beginning.
struct Shared {
  alignas(64) std::atomic<uint64_t> asleep{0};  // the bell; 0: awake
  struct Lane {
    alignas(64) std::atomic<uint32_t> stalled{0};  // who writes waits for room
    std::atomic<uint32_t> may_lend{0};             // says who reads
    std::atomic<uint32_t> revoked{0};              // what is lent is no more
    std::atomic<uint64_t> given_back{0};           // loans
    Ring ring;
  };
  Lane& lane(int from) { return reinterpret_cast<Lane*>(this + 1)[from]; }
  static size_t bytes(size_t workers) { return sizeof(Shared) + workers * sizeof(Lane); }
};

/// What a worker tells another when they meet, along with its segment.
struct Greeting {
  Inbox::Token token{};
  uint64_t probe = 0;  // where kProbe is, in its memory
  uint32_t from = 0, reserved = 0;
};
constexpr uint64_t kProbe = 0x7475747469727063;

/// What a message begins with in a ring.
struct Head {
  WireHeader wire;
  uint64_t lent = 0;  // where its data are; 0: they follow
};

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;
  explicit Address(const std::string& text) {
    check<ConnectionError>(text.size() < sizeof name.sun_path, kSessionOperation, "an address of {} bytes",
                           text.size());
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path + 1, text.data(), text.size());  // after a zero: it is no file
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

class ShmLink final : public Link {
 public:
  ShmLink(Descriptor socket, const LinkPlan& plan, bool lends);
  ~ShmLink() override;
  void meet(const LinkPlan& plan);
  void send(int to, Packed packed) override;
  bool poll() override;
  bool arm() override;
  void disarm() override;
  int descriptor() const override { return socket_.get(); }
  void close(int peer) override;
  void flush(Clock::time_point until) override;
  size_t strangers() const override { return inbox_.strangers(); }

 private:
  struct Sending {
    Packed packed;
    Head head;
    size_t done = 0;  // bytes of head, front and data
  };
  struct Incoming {
    Head head;
    size_t done = 0;     // bytes of the head, and of what follows it
    uint64_t total = 0;  // of both; 0: not known yet
    std::string small;
    std::shared_ptr<Tensor> memory;  // of what is not small
    bool kept = true;                // false: there is no memory for it
  };
  struct Peer {
    explicit Peer(const LinkPeer& given)
        : mine(given.mine), address(given.address), pid(static_cast<pid_t>(given.pid)) {}
    const bool mine;
    const Address address;
    const pid_t pid;
    Descriptor process;  // readable when it has ended
    Segment segment;
    Shared* shared = nullptr;
    std::atomic<uint64_t> rung{0};  // for which sleep of its
    // Wants the link's lock.
    Incoming incoming;
    bool greeted = false;
    std::atomic<bool> closed{false};
    // Wants its own lock, which is taken after the link's.
    std::mutex mutex;
    std::deque<Sending> queue;
    std::deque<Packed> lent;
    uint64_t loans = 0;                // that were given back
    std::atomic<bool> waiting{false};  // either is not empty
  };
  Peer& peer(int k) { return *peers_[static_cast<size_t>(k)]; }
  void ring(Peer& peer);
  bool greet(int to);
  void hear_greeting();
  bool put(Peer& peer, Sending& sending);
  void take_back(Peer& peer);
  bool push(Peer& peer);
  bool pull(int from);
  bool begin(int from, Incoming& m);
  bool fill(Ring& ring, Incoming& m);
  void finish(int from, Incoming& m);
  bool fetch(int from, Incoming& m);
  bool something_to_do();

  const Descriptor socket_;
  const int me_;
  const bool lends_;
  Descriptor memory_;  // until all have it
  Segment segment_;
  Shared* mine_ = nullptr;
  size_t bytes_ = 0;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<int> others_;  // whom this link leads to
  uint64_t sleeps_ = 0;
  std::mutex mutex_;
  Inbox inbox_;
  std::vector<std::byte> nowhere_;
};

ShmLink::ShmLink(Descriptor socket, const LinkPlan& plan, bool lends)
    : socket_(std::move(socket)), me_(plan.me), lends_(lends), bytes_(Shared::bytes(plan.peers.size())), inbox_(plan) {
  for (size_t k = 0; k < plan.peers.size(); ++k) {
    peers_.push_back(std::make_unique<Peer>(plan.peers[k]));
    if (plan.peers[k].mine) others_.push_back(static_cast<int>(k));
  }
  memory_ = Descriptor(::memfd_create("tutti-rpc", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  check<MemoryError>(memory_.get() >= 0 && ::ftruncate(memory_.get(), static_cast<off_t>(bytes_)) == 0 &&
                         ::fcntl(memory_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0,
                     kSessionOperation, "{} bytes of shared memory cannot be had: {}", bytes_, std::strerror(errno));
  segment_ = Segment::of(::fcntl(memory_.get(), F_DUPFD_CLOEXEC, 0), bytes_);
  mine_ = reinterpret_cast<Shared*>(segment_.data());
}

ShmLink::~ShmLink() {
  for (int k : others_) close(k);
}

// ---- Meeting

bool has_ended(const Descriptor& process) {
  pollfd readable{process.get(), POLLIN, 0};
  return ::poll(&readable, 1, 0) > 0;
}

// Says whether all of it was read; errno why not.
bool read_memory(pid_t pid, uint64_t from, void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    iovec local{at, bytes};
    iovec remote{reinterpret_cast<void*>(from), bytes};  // NOLINT: of another process
    ssize_t n = ::process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (n <= 0) return false;
    at += n;
    from += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

// False: it cannot take it now.
bool ShmLink::greet(int to) {
  Greeting greeting{inbox_.token_to(to), reinterpret_cast<uint64_t>(&kProbe), static_cast<uint32_t>(me_)};
  iovec bytes{&greeting, sizeof greeting};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_name = const_cast<sockaddr*>(peer(to).address.get());
  message.msg_namelen = peer(to).address.length;
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  int fd = memory_.get();
  std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
  if (::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return true;
  check<ConnectionError>(errno == EAGAIN || errno == EINTR || errno == ENOBUFS, kSessionOperation,
                         "worker number {} cannot be reached on this host: {}", to, std::strerror(errno));
  return false;
}

void ShmLink::hear_greeting() {
  Greeting greeting;
  iovec bytes{&greeting, sizeof greeting};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t size = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  Descriptor memory;
  const cmsghdr* head = size >= 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
    for (size_t k = 0; k < (head->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++k) {  // others are closed
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head) + k * sizeof fd, sizeof fd);
      memory = Descriptor(fd);
    }
  }
  if (size <= 1) return;  // one who has met all others rings already
  if (size != sizeof greeting) return inbox_.stranger("it is no greeting");
  if (!inbox_.proves(greeting.token, greeting.from)) return;
  Peer& p = peer(static_cast<int>(greeting.from));
  struct stat is{};
  check<ConnectionError>(p.mine && ::fstat(memory.get(), &is) == 0 && static_cast<size_t>(is.st_size) == bytes_ &&
                             (::fcntl(memory.get(), F_GET_SEALS) & F_SEAL_SHRINK) != 0,
                         kSessionOperation,
                         "what worker number {} shares is not what it should be: do all workers run the "
                         "same program?",
                         greeting.from);
  p.segment = Segment::of(::fcntl(memory.get(), F_DUPFD_CLOEXEC, 0), bytes_);
  p.shared = reinterpret_cast<Shared*>(p.segment.data());
  uint64_t found = 0;
  bool readable = lends_ && read_memory(p.pid, greeting.probe, &found, sizeof found) && found == kProbe;
  mine_->lane(static_cast<int>(greeting.from)).may_lend.store(readable ? 1 : 0);
}

void ShmLink::meet(const LinkPlan& plan) {
  auto until = Clock::now() + plan.timeout;
  std::vector<pollfd> polls = {{socket_.get(), POLLIN, 0}};
  for (int k : others_) {
    Peer& p = peer(k);
    p.process = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, p.pid, 0)));
    polls.push_back({p.process.get(), POLLIN, 0});
  }
  while (true) {
    int missing = -1;
    bool waits = false;
    for (int k : others_) {
      Peer& p = peer(k);
      if (!p.greeted) p.greeted = greet(k);
      waits = waits || !p.greeted;
      if (!p.greeted || !p.shared) missing = k;
    }
    if (missing < 0) break;
    check<ConnectionError>(Clock::now() < until, kSessionOperation, "nothing was heard of worker number {} in {:.3g} s",
                           missing, std::chrono::duration<double>(plan.timeout).count());
    if (::poll(polls.data(), polls.size(), waits ? 1 : 100) == 0) plan.check();
    if (polls[0].revents) hear_greeting();
    for (size_t k = 1; k < polls.size(); ++k)
      check<ConnectionError>(polls[k].revents == 0 || peer(others_[k - 1]).shared, kSessionOperation,
                             "worker number {} ended before it had a session", others_[k - 1]);
  }
  memory_ = Descriptor();
}

// ---- Sending

void ShmLink::ring(Peer& p) {
  uint64_t asleep = p.shared->asleep.load();
  if (asleep == 0 || p.rung.exchange(asleep) == asleep) return;
  char byte = 0;
  // A socket that is full wakes it as well. One that is no more is noticed by its process's end.
  (void)::sendto(socket_.get(), &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL, p.address.get(), p.address.length);
}

// True: all of it.
bool ShmLink::put(Peer& p, Sending& s) {
  Ring& ring = p.shared->lane(me_).ring;
  const Packed& packed = s.packed;
  const std::pair<const void*, size_t> parts[] = {{&s.head, sizeof s.head},
                                                  {packed.front.data(), packed.front.size()},
                                                  {packed.data, s.head.lent ? 0 : packed.header.data_bytes}};
  size_t begin = 0;
  for (auto [data, size] : parts) {
    while (s.done < begin + size) {
      size_t at = s.done - begin;
      size_t n = ring.put(static_cast<const std::byte*>(data) + at, std::min(size - at, kPiece));
      if (n == 0) return false;
      s.done += n;
    }
    begin += size;
  }
  if (s.head.lent) p.lent.push_back(std::move(s.packed));
  return true;
}

void ShmLink::take_back(Peer& p) {
  for (uint64_t back = p.shared->lane(me_).given_back.load(); p.loans < back && !p.lent.empty(); ++p.loans)
    p.lent.pop_front();
}

// Wants the peer's lock. Says whether anything moved.
bool ShmLink::push(Peer& p) {
  Shared::Lane& lane = p.shared->lane(me_);
  bool moved = false;
  take_back(p);
  while (!p.queue.empty()) {
    Sending& s = p.queue.front();
    size_t before = s.done;
    bool all = put(p, s);
    if (!all) {
      lane.stalled.store(1);
      all = put(p, s);  // there may have been room before that was seen
    }
    moved = moved || s.done > before;
    if (!all) break;
    p.queue.pop_front();
  }
  if (p.queue.empty()) lane.stalled.store(0, std::memory_order_relaxed);
  p.waiting.store(!p.queue.empty() || !p.lent.empty(), std::memory_order_relaxed);
  return moved;
}

void ShmLink::send(int to, Packed packed) {
  Peer& p = peer(to);
  packed.header.token = inbox_.token_to(to);
  Sending s{std::move(packed), {}};
  s.head.wire = s.packed.header;
  if (s.head.wire.data_bytes >= kLent && p.shared->lane(me_).may_lend.load(std::memory_order_relaxed))
    s.head.lent = reinterpret_cast<uint64_t>(s.packed.data);
  {
    std::lock_guard lock(p.mutex);
    if (p.closed.load()) return;
    bool all = p.queue.empty() && put(p, s);
    if (!all) p.queue.push_back(std::move(s));
    if (!all || !p.lent.empty()) push(p);
  }
  ring(p);
}

void ShmLink::close(int k) {
  Peer& p = peer(k);
  p.closed.store(true);
  {
    std::lock_guard lock(mutex_);
    p.incoming = {};
  }
  std::lock_guard lock(p.mutex);
  if (!p.shared) return;
  p.shared->lane(me_).revoked.store(1);
  p.lent.clear();
  p.queue.clear();
  p.waiting.store(false);
}

void ShmLink::flush(Clock::time_point until) {
  auto waits = [&] {
    bool any = false;
    for (int k : others_) {
      Peer& p = peer(k);
      std::lock_guard lock(p.mutex);
      if (p.closed.load() || !p.waiting.load()) continue;
      if (push(p)) ring(p);
      any = any || p.waiting.load();
    }
    return any;
  };
  while (waits() && Clock::now() < until) std::this_thread::yield();  // the bell is for who sleeps
}

// ---- Receiving

// A header has come. False: nothing that comes from there can be understood any more.
bool ShmLink::begin(int from, Incoming& m) {
  const WireHeader& header = m.head.wire;
  if (!inbox_.proves(header.token, header.from) || header.from != static_cast<uint32_t>(from)) {
    inbox_.broken(from, "it sends what does not prove that it is of this session");
    return false;
  }
  uint64_t bytes = bytes_after(header);
  if (std::string wrong = defect(header, bytes); !wrong.empty()) {
    inbox_.broken(from, "it sends what is no message: " + wrong);
    return false;
  }
  m.total = sizeof m.head + bytes - (m.head.lent ? header.data_bytes : 0);
  if (bytes <= kSmall) {
    m.small.resize(bytes);
    return true;
  }
  try {
    m.memory = std::make_shared<Tensor>(empty({bytes}, {.dtype = DType::u8, .device = Device()}));
  } catch (const std::exception& e) {
    inbox_.add_defect(from, e.what());
    m.kept = false;
    nowhere_.resize(kPiece);
  }
  return true;
}

// Says whether anything moved.
bool ShmLink::fill(Ring& ring, Incoming& m) {
  size_t head = sizeof m.head, before = m.done;
  auto* to = m.memory ? static_cast<std::byte*>(m.memory->raw_data()) : reinterpret_cast<std::byte*>(m.small.data());
  while (m.done < m.total) {
    size_t left = std::min<uint64_t>(m.total - m.done, kPiece);
    size_t n = ring.take(m.kept ? to + (m.done - head) : nowhere_.data(), left);
    if (n == 0) break;
    m.done += n;
  }
  return m.done > before;
}

// Data that are lent. False: they cannot be had.
bool ShmLink::fetch(int from, Incoming& m) {
  Peer& p = peer(from);
  Shared::Lane& lane = mine_->lane(from);
  bool read = true;
  if (m.kept) {
    auto* to = m.memory ? static_cast<char*>(m.memory->raw_data()) : m.small.data();
    read = read_memory(p.pid, m.head.lent, to + data_at(m.head.wire), m.head.wire.data_bytes);
    bool gone = errno == ESRCH;
    std::string why = read ? "" : std::strerror(errno);
    // Everybody hears of that otherwise. (Memory goes some time before the process does.)
    if ((!read && gone) || has_ended(p.process) || lane.revoked.load()) return false;
    if (!read) inbox_.add_defect(from, "its memory cannot be read: " + why);
  }
  lane.given_back.fetch_add(1);
  return read;
}

void ShmLink::finish(int from, Incoming& m) {
  bool whole = m.kept;
  if (m.head.lent) whole = fetch(from, m) && whole;
  if (whole && m.memory)
    inbox_.add(m.head.wire, {static_cast<const char*>(m.memory->raw_data()), static_cast<size_t>(m.memory->numel())},
               m.memory);
  else if (whole)
    inbox_.add(m.head.wire, m.small, nullptr);
  m.done = 0;
  m.total = 0;
  m.memory = nullptr;
  m.kept = true;
}

bool ShmLink::pull(int from) {
  Peer& p = peer(from);
  Incoming& m = p.incoming;
  Shared::Lane& lane = mine_->lane(from);
  bool moved = false;
  for (int turns = 0; turns < kTurn && !p.closed.load(std::memory_order_relaxed);) {
    if (m.total == 0) {
      size_t n = lane.ring.take(reinterpret_cast<std::byte*>(&m.head) + m.done, sizeof m.head - m.done);
      if (n == 0) break;
      moved = true;
      m.done += n;
      if (m.done < sizeof m.head) continue;
      if (!begin(from, m)) {
        p.closed.store(true);
        break;
      }
    }
    moved = fill(lane.ring, m) || moved;
    if (m.done < m.total) break;
    finish(from, m);
    ++turns;
  }
  if (moved && lane.stalled.load()) ring(p);
  return moved;
}

bool ShmLink::poll() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return false;
  bool moved = false;
  for (int k : others_) {
    Peer& p = peer(k);
    if (p.waiting.load(std::memory_order_relaxed)) {
      std::lock_guard sending(p.mutex);
      if (push(p)) {
        moved = true;
        ring(p);
      }
    }
    moved = pull(k) || moved;
  }
  inbox_.deliver(std::move(lock));
  return moved;
}

// ---- Waiting: Note [Rings and bells]

bool ShmLink::something_to_do() {
  std::lock_guard lock(mutex_);
  if (!inbox_.empty()) return true;
  for (int k : others_) {
    Peer& p = peer(k);
    if (p.closed.load()) continue;
    const Ring& in = mine_->lane(k).ring;
    if (in.written.load() != in.read.load()) return true;
    std::lock_guard sending(p.mutex);
    const Ring& out = p.shared->lane(me_).ring;
    if (!p.queue.empty() && out.written.load() - out.read.load() < Ring::kBytes) return true;
  }
  return false;
}

bool ShmLink::arm() {
  mine_->asleep.store(++sleeps_);
  if (!something_to_do()) return true;
  mine_->asleep.store(0);
  return false;
}

void ShmLink::disarm() {
  mine_->asleep.store(0);
  char byte = 0;
  for (int most = kTurn; most > 0; --most) {
    ssize_t size = ::recv(socket_.get(), &byte, 1, MSG_DONTWAIT | MSG_TRUNC);
    if (size < 0) return;
    if (size != 1) inbox_.stranger("someone knocked at the door of this host's workers");
  }
}

class ShmOpening final : public Opening {
 public:
  explicit ShmOpening(bool lends)
      : lends_(lends), socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    Digest random = random_digest();
    name_ = "tutti-rpc-";
    for (size_t k = 0; k < 16; ++k) name_ += fmt::format("{:02x}", random[k]);
    Address address(name_);
    check<ConnectionError>(socket_.get() >= 0 && ::bind(socket_.get(), address.get(), address.length) == 0,
                           kSessionOperation, "a socket for workers of this host cannot be made: {}",
                           std::strerror(errno));
  }
  std::string address() const override { return name_; }
  std::unique_ptr<Link> connect(LinkPlan plan) override {
    auto link = std::make_unique<ShmLink>(std::move(socket_), plan, lends_);
    link->meet(plan);
    return link;
  }

 private:
  const bool lends_;
  Descriptor socket_;
  std::string name_;
};

}  // namespace

std::unique_ptr<Opening> open_shm_link(bool lends) { return std::make_unique<ShmOpening>(lends); }

}  // namespace tutti::rpc::detail
