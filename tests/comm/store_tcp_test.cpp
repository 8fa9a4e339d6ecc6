// The TCP store: how it starts and ends, many clients, and peers that mean no good.
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "comm/store/server.h"
#include "tests/comm/store_support.h"
#include "tests/support/expect_ops.h"

namespace tutti::test {
namespace {

using store::Waiting;
using testing::HasSubstr;
using testing::StartsWith;

/// A socket of our own, for saying what no client says.
struct Raw {
  explicit Raw(uint16_t port) {
    store::Address peer;
    socket = store::connect_once("127.0.0.1", port, {Clock::now() + 10s, &never}, peer, failure);
    EXPECT_GE(socket.get(), 0) << failure;
  }
  bool send(std::string_view bytes) {
    return store::write_all(socket.get(), bytes, {Clock::now() + 5s, &never}, failure);
  }
  std::string read(size_t count, std::chrono::nanoseconds time = 5s) {
    std::string bytes(count, '\0');
    return store::read_all(socket.get(), bytes.data(), count, {Clock::now() + time, &never}, failure) ? bytes : "";
  }
  /// Whether the server closes the connection in that time.
  bool closed(std::chrono::nanoseconds time = 5s) {
    std::vector<char> buffer(1 << 20);
    for (auto deadline = Clock::now() + time; store::poll_until(socket.get(), POLLIN, {deadline, &never});)
      if (::recv(socket.get(), buffer.data(), buffer.size(), 0) <= 0) return true;
    return false;
  }
  void prove(const std::string& secret = kSecret) {
    std::string greeting = read(store::kGreetingBytes);
    send(store::make_claim(secret, greeting, random_digest()));
    EXPECT_NE(read(store::kAnswerBytes), store::refusal());
  }
  std::stop_token never;
  std::string failure;
  io::Descriptor socket;
};

std::string frame(uint64_t number, const store::Request& request) {
  std::string bytes;
  store::put_frame(bytes, number, request);
  return bytes;
}

// ---- Starting

TEST(TcpStore, ListensWhereItIsSafe) {
  TcpStore open({.serve = true, .secret = kSecret});  // everywhere, by both protocols
  EXPECT_NE(open.port(), 0);
  open.set("a", "1");
  for (auto* host : {"127.0.0.1", "::1", "localhost", ""}) {
    TcpStore client({.host = host, .port = open.port(), .secret = kSecret});
    EXPECT_EQ(client.get("a"), "1") << host;
  }
  TcpStore local({.serve = true});
  EXPECT_THAT(local.name(), StartsWith("the TCP store at 127.0.0.1:"));
  EXPECT_THAT(message_of<ValueError>([] { TcpStore({.host = "0.0.0.0", .serve = true}); }),
              HasSubstr("where others can reach it, needs a secret"));
  EXPECT_EQ(message_of<ConnectionError>([&] { TcpStore({.host = "127.0.0.1", .port = local.port(), .serve = true}); }),
            "TcpStore: cannot listen on 127.0.0.1:" + std::to_string(local.port()) + ": Address already in use");
}

TEST(TcpStore, NobodyThereIsAnErrorWithAddressAndReason) {
  uint16_t port = 0;
  {
    TcpStore gone({.serve = true});
    port = gone.port();
  }
  auto options = client_of(port);
  options.timeout = 60ms;
  auto start = Clock::now();
  EXPECT_EQ(message_of<ConnectionError>([&] { TcpStore store(options); }),
            "TcpStore: no server at 127.0.0.1:" + std::to_string(port) + " in 0.06 s: Connection refused");
  EXPECT_GE(seconds_since(start), 0.06);
  options.timeout = 60s;
  std::stop_source stop;
  options.stop = stop.get_token();
  std::thread stopper([&] {
    std::this_thread::sleep_for(20ms);
    stop.request_stop();
  });
  EXPECT_THROW(TcpStore store(options), CancelledError);
  EXPECT_LT(seconds_since(start), 10);
  stopper.join();
}

TEST(TcpStore, ClientsMayComeFirst) {
  uint16_t port = TcpStore({.serve = true}).port();
  std::thread client([&] { EXPECT_EQ(TcpStore(client_of(port)).get("a"), "1"); });
  std::this_thread::sleep_for(30ms);
  TcpStore server({.host = "127.0.0.1", .port = port, .serve = true, .secret = kSecret});
  server.set("a", "1");
  client.join();
}

// ---- Secrets, in both directions

TEST(TcpStore, AnotherSecretIsRefused) {
  TcpStore server({.serve = true, .secret = kSecret});
  for (auto& secret : {std::string("guess"), std::string(), kSecret + "x"})
    EXPECT_EQ(message_of<ConnectionError>([&] { TcpStore store(client_of(server.port(), secret)); }),
              "TcpStore: the server at 127.0.0.1:" + std::to_string(server.port()) + " refused: its secret is another");
}

/// Accepts one connection and speaks as a server would not.
class Impostor {
 public:
  explicit Impostor(std::function<void(int)> speak)
      : listener_(store::listen_on("127.0.0.1", 0, false, address_)), thread_([this, speak] {
          pollfd poll{listener_.get(), POLLIN, 0};
          ::poll(&poll, 1, 5000);
          io::Descriptor socket(::accept(listener_.get(), nullptr, nullptr));
          speak(socket.get());
        }) {}
  ~Impostor() { thread_.join(); }
  uint16_t port() const { return address_.port(); }

 private:
  store::Address address_;
  io::Descriptor listener_;
  std::thread thread_;
};

TEST(TcpStore, TheServerHasToProveItselfToo) {
  auto error_with = [](std::function<void(int)> speak) {
    Impostor impostor(std::move(speak));
    auto options = client_of(impostor.port());
    options.timeout = 100ms;
    return message_of<ConnectionError>([&] { TcpStore store(options); });
  };
  auto greeting = store::make_greeting(random_digest());
  auto say = [](int socket, const std::string& text) { return ::send(socket, text.data(), text.size(), MSG_NOSIGNAL); };
  EXPECT_THAT(error_with([&](int s) {
                char claim[store::kClaimBytes];
                say(s, greeting);
                ::recv(s, claim, sizeof claim, MSG_WAITALL);
                say(s, std::string(32, 'x'));
              }),
              HasSubstr("does not know the secret"));
  // Sending the client its own proof is no proof.
  EXPECT_THAT(error_with([&](int s) {
                char claim[store::kClaimBytes];
                say(s, greeting);
                ::recv(s, claim, sizeof claim, MSG_WAITALL);
                say(s, std::string(claim + store::kGreetingBytes, 32));
              }),
              HasSubstr("does not know the secret"));
  EXPECT_THAT(error_with([&](int s) { say(s, "HTTP/1.1 400 Bad Request\r\nServer: something else entirely\r\n\r\n"); }),
              HasSubstr("it is not a Tutti store"));
  greeting[8] = 9;
  EXPECT_THAT(error_with([&](int s) { say(s, greeting); }), HasSubstr("it speaks version 9, this program version 1"));
  EXPECT_THAT(error_with([](int s) {
                pollfd poll{s, POLLIN | POLLRDHUP, 0};
                ::poll(&poll, 1, 5000);
              }),
              HasSubstr("it says nothing"));
}

// ---- Many

TEST(TcpStore, ThousandsOfClients) {
  rlimit limit;
  ::getrlimit(RLIMIT_NOFILE, &limit);
  rlimit raised = limit;
  raised.rlim_cur = std::min<rlim_t>(limit.rlim_max, 8192);
  ::setrlimit(RLIMIT_NOFILE, &raised);
  Usage before;
  {
    TcpStore server({.serve = true, .secret = kSecret, .timeout = 60s});
    constexpr int threads = 10, each = 200;  // all there at once
    in_threads(threads, [&](int t) {
      std::vector<std::unique_ptr<TcpStore>> clients;
      for (int i = 0; i < each; ++i) {
        clients.push_back(std::make_unique<TcpStore>(client_of(server.port())));
        clients.back()->set("client/" + std::to_string(t * each + i), "here");
      }
      EXPECT_EQ(clients.back()->add("threads", 1) > 0, true);
      while (clients[0]->get("threads") != std::to_string(threads)) std::this_thread::yield();
      for (auto& client : clients) client->add("sum", 1);
      clients[0]->add("left", 1);
      while (clients[0]->get("left") != std::to_string(threads)) std::this_thread::yield();
    });
    EXPECT_EQ(server.list("client/").size(), size_t{threads * each});
    EXPECT_EQ(server.get("sum"), std::to_string(threads * each));
  }
  EXPECT_TRUE(returns_to(before)) << testing::PrintToString(Usage()) << ", before: " << testing::PrintToString(before);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Large values in both directions at once over one connection: neither side may wait for the other to read first.
TEST(TcpStore, LargeValuesBothWays) {
  TcpStore server({.serve = true, .secret = kSecret, .timeout = 20s});
  TcpStore client(client_of(server.port()));
  in_threads(6, [&](int i) {
    std::string key = std::to_string(i), value(2 << 20, static_cast<char>('a' + i));
    for (int k = 0; k < 4; ++k) {
      client.set(key, value);
      EXPECT_TRUE(client.get(key) == value);
    }
  });
}

TEST(TcpStore, ManyThreadsWaitOnOneConnection) {
  TcpStore server({.serve = true, .secret = kSecret, .timeout = 20s});
  TcpStore client(client_of(server.port()));
  constexpr int count = 40;
  in_threads(count, [&](int i) {
    // Each waits for the one before it, so that they finish in an order that has nothing to do with their arrival.
    if (i > 0) client.wait({"done/" + std::to_string(i - 1)});
    EXPECT_THROW(client.get("never", {.timeout = 1ms}), TimeoutError);
    client.set("done/" + std::to_string(i), "x");
  });
  EXPECT_EQ(server.count(), count);
}

TEST(TcpStore, LeavesNothingBehind) {
  Usage before;
  for (int round = 0; round < 20; ++round) {
    TcpStore server({.serve = true, .secret = kSecret});
    TcpStore a(client_of(server.port())), b(client_of(server.port()));
    a.set("x", "1");
    EXPECT_EQ(b.get("x"), "1");
    EXPECT_THROW(b.get("y", {.timeout = 1ms}), TimeoutError);
    Raw half(server.port());
  }
  EXPECT_TRUE(returns_to(before)) << testing::PrintToString(Usage()) << ", before: " << testing::PrintToString(before);
}

TEST(TcpStore, AWaiterThatLeftTakesNothing) {
  TcpStore server({.serve = true, .secret = kSecret, .timeout = 20s});
  for (bool polite : {true, false}) {
    {
      Raw gone(server.port());
      gone.prove();
      gone.send(frame(1, {.op = store::Op::pop, .keys = {"q"}}) + frame(2, {.op = store::Op::get, .keys = {"k"}}) +
                frame(3, {.op = store::Op::count, .keys = {""}}));
      gone.read(22);  // the third answer: the first two wait
      linger end{1, 0};
      if (!polite) ::setsockopt(gone.socket.get(), SOL_SOCKET, SO_LINGER, &end, sizeof end);  // a reset
    }
    std::this_thread::sleep_for(20ms);
    server.push("q", "item");
    server.set("k", "v");
    EXPECT_EQ(server.pop("q", {.timeout = 0s}), "item");
    server.clear();
  }
}

TEST(TcpStore, AForkedChildHasToOpenItsOwn) {
  FileSite file;
  TcpSite tcp("127.0.0.1");
  for (StorePtr store : {file.open(), tcp.open()}) {
    pid_t child = ::fork();
    if (child == 0) {
      try {
        store->set("a", "from the child");
      } catch (const StoreError& error) {
        ::_exit(std::string(error.what()).find("before a fork") != std::string::npos ? 7 : 8);
      }
      ::_exit(9);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 7);
    EXPECT_EQ(store->count(), 0);
  }
}

// ---- Attacks

/// Works as a client while something else goes on, and keeps the longest time that an operation took.
class GoodClient {
 public:
  explicit GoodClient(uint16_t port)
      : thread_([this, port] {
          TcpStore store(client_of(port));
          std::string value(1000, 'v');
          while (!done_) {
            auto start = Clock::now();
            store.set("good", value);
            EXPECT_TRUE(store.get("good") == value);
            worst_ = std::max(worst_, seconds_since(start));
            ++rounds_;
          }
        }) {}
  ~GoodClient() {
    for (auto start = Clock::now(); rounds_ <= 20 && seconds_since(start) < 10;) std::this_thread::yield();
    done_ = true;
    thread_.join();
    EXPECT_LT(worst_, 2.0);  // of a loaded machine; the point is that it is not the attackers' seconds
    EXPECT_GT(rounds_, 20);
  }

 private:
  std::atomic<bool> done_{false};
  double worst_ = 0;
  std::atomic<int> rounds_{0};
  std::thread thread_;
};

TEST(TcpStoreAttack, GarbageIsDroppedAtOnce) {
  TcpStore server({.serve = true, .secret = kSecret});
  GoodClient good(server.port());
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    std::string garbage(1 + random() % 5000, '\0');
    for (auto& c : garbage) c = static_cast<char>(random());
    Raw attacker(server.port());
    attacker.send(garbage);
    EXPECT_TRUE(attacker.closed());
  }
  Raw http(server.port());
  http.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(http.closed());
}

TEST(TcpStoreAttack, TruncatedAndWrongHandshakes) {
  TcpStore server({.serve = true, .secret = kSecret});
  GoodClient good(server.port());
  for (size_t size = 0; size < store::kClaimBytes; size += 7) {
    Raw attacker(server.port());
    std::string claim = store::make_claim(kSecret, attacker.read(store::kGreetingBytes), random_digest());
    attacker.send(claim.substr(0, size));
  }
  for (size_t bit = 0; bit < 8 * store::kClaimBytes; bit += 13) {
    Raw attacker(server.port());
    std::string claim = store::make_claim(kSecret, attacker.read(store::kGreetingBytes), random_digest());
    if (bit / 8 >= 12 && bit / 8 < 16) continue;  // reserved
    claim[bit / 8] = static_cast<char>(claim[bit / 8] ^ (1 << bit % 8));
    attacker.send(claim);
    EXPECT_TRUE(attacker.closed()) << bit;
  }
  // A proof that somebody else made is worth nothing: the nonce is another.
  Raw first(server.port()), second(server.port());
  std::string claim = store::make_claim(kSecret, first.read(store::kGreetingBytes), random_digest());
  second.read(store::kGreetingBytes);
  second.send(claim);
  EXPECT_EQ(second.read(store::kAnswerBytes), store::refusal());
  EXPECT_TRUE(second.closed());
  // Nothing is read before the proof, also if it comes in one piece with it.
  Raw hasty(server.port());
  claim = store::make_claim("wrong", hasty.read(store::kGreetingBytes), random_digest());
  hasty.send(claim + frame(1, {.op = store::Op::set, .keys = {"hacked"}, .values = {"x"}}));
  EXPECT_TRUE(hasty.closed());
  EXPECT_FALSE(server.has({"hacked"}));
}

TEST(TcpStoreAttack, SlowPeersHaveADeadline) {
  TcpStore server({.serve = true, .secret = kSecret, .handshake_timeout = 150ms});
  GoodClient good(server.port());
  auto start = Clock::now();
  std::vector<std::unique_ptr<Raw>> slow;
  for (int i = 0; i < 100; ++i) slow.push_back(std::make_unique<Raw>(server.port()));
  std::string claim = store::make_claim(kSecret, std::string(store::kGreetingBytes, 'x'), random_digest());
  size_t byte = 0;
  while (seconds_since(start) < 0.1) {  // one byte after another, well within what the magic allows
    for (auto& peer : slow) peer->send(claim.substr(byte % claim.size(), byte < 30 ? 1 : 0));
    ++byte;
    std::this_thread::sleep_for(5ms);
  }
  for (auto& peer : slow) EXPECT_TRUE(peer->closed());
  EXPECT_LT(seconds_since(start), 5);
}

TEST(TcpStoreAttack, AFloodOfConnectionsDoesNotKeepOthersOut) {
  rlimit limit;
  ::getrlimit(RLIMIT_NOFILE, &limit);
  rlimit raised = limit;
  raised.rlim_cur = std::min<rlim_t>(limit.rlim_max, 8192);
  ::setrlimit(RLIMIT_NOFILE, &raised);
  {
    TcpStore server({.serve = true, .secret = kSecret, .timeout = 20s, .handshake_timeout = 60s});
    std::vector<std::unique_ptr<Raw>> flood;
    for (size_t i = 0; i < store::kMaxUnproven + 100; ++i) flood.push_back(std::make_unique<Raw>(server.port()));
    TcpStore client(client_of(server.port()));
    client.set("a", "1");
    EXPECT_EQ(server.get("a"), "1");
    EXPECT_TRUE(flood.front()->closed());  // the oldest gave way
  }
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Those who know the secret can still be broken.
TEST(TcpStoreAttack, ProvenPeersThatSpeakNonsense) {
  TcpStore server({.serve = true, .secret = kSecret});
  GoodClient good(server.port());
  using store::Op;
  std::string valid = frame(1, {.op = Op::set, .keys = {"k"}, .values = {"v"}});
  std::vector<std::string> nonsense = {std::string("\xff\xff\xff\xff\0\0\0\0", 8),   // 4 GB
                                       std::string("\7\0\0\0\0\0\0\0\0\0\0\0", 12),  // shorter than a number
                                       std::string("\11\0\0\1\0\0\0\0", 8)};         // just above the bound
  auto damaged = [&](size_t at, uint32_t value) {
    std::string bytes = valid, number;
    store::put_u32(number, value);
    return bytes.replace(at, 4, number);
  };
  nonsense.push_back(damaged(22, 0xffffffff));  // keys
  nonsense.push_back(damaged(22, 0x10000));
  nonsense.push_back(damaged(22, 2));
  nonsense.push_back(damaged(26, 0xffffffff));  // bytes of the key
  nonsense.push_back(damaged(26, 4097));
  nonsense.push_back(damaged(31, 0x7fffffff));  // values
  nonsense.push_back(damaged(31, 0));
  for (uint8_t op : {0, 14, 255}) {
    nonsense.push_back(valid);
    nonsense.back()[12] = static_cast<char>(op);
  }
  for (size_t i = 0; i < nonsense.size(); ++i) {
    Raw peer(server.port());
    peer.prove();
    peer.send(nonsense[i]);
    EXPECT_TRUE(peer.closed()) << i;
  }
  EXPECT_FALSE(server.has({"k"}));
  // One number for two requests that wait.
  Raw twice(server.port());
  twice.prove();
  std::string wait = frame(7, {.op = Op::wait, .keys = {"never"}});
  twice.send(wait + wait);
  EXPECT_TRUE(twice.closed());
  // A large frame whose end does not come takes what it sent and no more, and disturbs nobody.
  Raw half(server.port());
  half.prove();
  half.send(std::string("\0\0\xff\0", 4) + std::string(100000, 'x'));
  EXPECT_FALSE(half.closed(20ms));
}

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(TcpStoreAttack, APeerThatDoesNotReadIsNotReadFrom) {
  TcpStore server({.serve = true, .secret = kSecret});
  server.set("large", std::string(1 << 20, 'x'));
  GoodClient good(server.port());
  size_t before = resident_bytes();
  Raw peer(server.port());
  peer.prove();
  std::string ask;
  for (uint64_t i = 1; i <= 2000; ++i) ask += frame(i, {.op = store::Op::get, .keys = {"large"}});
  peer.send(ask);  // 2 GB of answers
  std::this_thread::sleep_for(100ms);
  EXPECT_LT(resident_bytes(), before + (size_t{100} << 20));
  // It reads in the end, and gets what it asked for.
  std::string first = peer.read(22 + (1 << 20));
  EXPECT_EQ(first.size(), size_t{22 + (1 << 20)});
  EXPECT_EQ(store::get_u64(first.data() + 4), 1u);
}

TEST(TcpStoreAttack, APeerThatLetsAnswersGatherIsDropped) {
  TcpStore server({.serve = true, .secret = kSecret});
  Raw peer(server.port());
  peer.prove();
  std::string ask;
  for (uint64_t i = 1; i <= 200; ++i) ask += frame(i, {.op = store::Op::get, .keys = {"late"}});
  ask += frame(201, {.op = store::Op::set, .keys = {"all asked"}, .values = {"yes"}});  // read in order
  peer.send(ask);
  server.wait({"all asked"});
  size_t before = resident_bytes();
  server.set("late", std::string(4 << 20, 'x'));  // 800 MB for one that does not read
#ifndef TUTTI_SANITIZE_ADDRESS                    // which keeps freed memory for a while
  EXPECT_LT(resident_bytes(), before + (size_t{300} << 20));
#endif
  EXPECT_EQ(server.count(), 2);
  EXPECT_TRUE(peer.closed());
}

}  // namespace
}  // namespace tutti::test
