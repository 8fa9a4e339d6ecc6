// What clients of the TCP store leave behind when they are gone or silent; and processes that are stopped for a while.
#include <unistd.h>

#include <utility>

#include "tests/comm/store_support.h"
#include "tests/support/expect.h"

namespace tutti::test {
namespace {

TEST(TcpStoreWill, IsCarriedOutWhenItsClientIsGone) {
  TcpSite site("127.0.0.1");
  auto others = site.open();
  auto connect = [&] { return std::dynamic_pointer_cast<TcpStore>(site.open()); };
  connect()->leave_will("gone", "ended", "silent", {});
  EXPECT_EQ(others->get("gone"), "ended");
  // One who has a value already keeps it; one who revoked leaves none.
  others->set("kept", "first");
  connect()->leave_will("kept", "second", "second", {});
  {
    auto store = connect();
    store->leave_will("revoked", "a", "b", {});
    store->leave_will("revoked", "", "", {});
  }
  connect()->leave_will("last", "x", "y", {});
  others->get("last");
  EXPECT_EQ(others->get("kept"), "first");
  EXPECT_FALSE(others->has({"revoked"}));
}

TEST(TcpStoreWill, IsCarriedOutWhenItsClientIsSilent) {
  TcpSite site("127.0.0.1");
  auto others = site.open();
  auto silent = std::dynamic_pointer_cast<TcpStore>(site.open());
  auto lively = std::dynamic_pointer_cast<TcpStore>(site.open());
  silent->leave_will("silent", "ended", "silent", 200ms);
  lively->leave_will("lively", "ended", "silent", 2s);
  auto begin = Clock::now();
  EXPECT_EQ(others->get("silent"), "silent");
  EXPECT_GE(seconds_since(begin), 0.15);
  while (seconds_since(begin) < 3) EXPECT_THROW(lively->get("never", {.timeout = 50ms}), TimeoutError);
  EXPECT_FALSE(others->has({"lively"}));
  EXPECT_THROW(silent->set("a", "b"), ConnectionError);  // who was given up does not come back
}

/// A process of its own: what `body` does, which may tell its parent one number first.
class Child {
 public:
  explicit Child(const std::function<void(const std::function<void(int)>& tell)>& body) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      try {
        body([&](int number) {
          if (::write(ends[1], &number, sizeof number) != sizeof number) ::_exit(1);
        });
      } catch (...) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    ::close(ends[1]);
    EXPECT_EQ(::read(ends[0], &told, sizeof told), static_cast<ssize_t>(sizeof told));
    ::close(ends[0]);
  }
  ~Child() {
    if (pid_ == 0) return;
    kill(SIGKILL);
    wait();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void kill(int signal) const { ::kill(pid_, signal); }
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  int told = 0;

 private:
  pid_t pid_ = 0;
};

void serve_for_ever(const std::function<void(int)>& tell) {
  TcpStore server({.serve = true, .secret = kSecret});
  tell(server.port());
  while (true) ::pause();
}

TEST(TcpStoreWill, AServerThatDoesNotAnswerIsLostAfterTheGrace) {
  Child server(serve_for_ever);
  TcpStoreOptions options = client_of(static_cast<uint16_t>(server.told));
  options.grace = 200ms;
  TcpStore store(options);
  store.set("a", "b");
  server.kill(SIGSTOP);
  auto begin = Clock::now();
  EXPECT_THROW(store.get("b", {.timeout = 100ms}), ConnectionError);
  EXPECT_LT(seconds_since(begin), 4);  // five seconds is what it would be without
}

// A whole job that is stopped, as by ^Z, and goes on later: the server first, which has heard nobody for long.
TEST(TcpStoreWill, IsNotCarriedOutWhenTheServerItselfWasStoppedSlow) {
  Child server(serve_for_ever);
  auto port = static_cast<uint16_t>(server.told);
  Child client([&](const auto& tell) {
    TcpStore store(client_of(port));
    store.leave_will("will", "ended", "silent", 1s);
    tell(0);
    while (true) {
      store.add("beats", 1);
      std::this_thread::sleep_for(20ms);
    }
  });
  TcpStore observer(client_of(port));
  auto beats = [&] { return observer.add("beats", 0); };
  client.kill(SIGSTOP);
  server.kill(SIGSTOP);
  std::this_thread::sleep_for(1300ms);
  server.kill(SIGCONT);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(observer.has({"will"}));
  auto before = beats();
  client.kill(SIGCONT);
  auto begin = Clock::now();
  while (beats() < before + 3 && !observer.has({"will"}) && seconds_since(begin) < 20) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(observer.has({"will"}));
  // One that is really silent is still found.
  client.kill(SIGSTOP);
  EXPECT_EQ(observer.get("will"), "silent");
}

// The other way round: who is stopped while it waits for an answer gives the server its grace again. That is so for
// threads that leave the connection to another, which waits at the socket: there the system forgives the time.
TEST(TcpStoreWill, AClientThatWasStoppedDoesNotBlameTheServerSlow) {
  Child server(serve_for_ever);
  Child client([&](const auto& tell) {
    TcpStoreOptions options = client_of(static_cast<uint16_t>(server.told));
    options.grace = 1s;
    TcpStore store(options);
    std::thread leader([&] { EXPECT_THROW(store.get("never", {.timeout = 60s}), Error); });
    std::this_thread::sleep_for(100ms);  // it leads
    server.kill(SIGSTOP);
    tell(0);
    try {
      store.get("never", {.timeout = 100ms});
    } catch (const TimeoutError&) {
      ::_exit(7);
    } catch (const Error&) {
      ::_exit(8);
    }
  });
  std::this_thread::sleep_for(400ms);  // it has asked the server to take the question back
  client.kill(SIGSTOP);
  std::this_thread::sleep_for(1500ms);
  client.kill(SIGCONT);
  std::this_thread::sleep_for(200ms);
  server.kill(SIGCONT);
  EXPECT_EQ(client.wait(), 7);
}

}  // namespace
}  // namespace tutti::test
