// Stores of every kind for the tests, and the same test binary as another process.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/entries.h"
#include "tests/support/scratch.h"
#include "tutti/comm/store.h"

namespace tutti::test {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline const std::string kSecret = "the job's secret";

inline TcpStoreOptions client_of(uint16_t port, const std::string& secret = kSecret) {
  return {.host = "127.0.0.1", .port = port, .secret = secret, .timeout = 20s};
}

/// Where handles of one store come from.
struct Site {
  virtual ~Site() = default;
  virtual StorePtr open() = 0;
  /// What another process needs to open it (open_site); empty where it cannot.
  virtual std::string spec() const { return {}; }
};

struct MemorySite : Site {
  StorePtr open() override { return store; }
  StorePtr store = std::make_shared<MemoryStore>(20s);
};

struct FileSite : Site {
  StorePtr open() override { return std::make_shared<FileStore>(path, FileStoreOptions{.timeout = 20s}); }
  std::string spec() const override { return "file " + path; }
  Scratch scratch;
  std::string path = scratch / "store";
};

struct TcpSite : Site {
  explicit TcpSite(std::string host) : host(std::move(host)) {}
  StorePtr open() override { return connect(host, server->port()); }
  static StorePtr connect(const std::string& host, uint16_t port) {
    return std::make_shared<TcpStore>(TcpStoreOptions{.host = host, .port = port, .secret = kSecret, .timeout = 20s});
  }
  std::string spec() const override { return "tcp " + host + " " + std::to_string(server->port()); }
  std::string host;
  std::shared_ptr<TcpStore> server =
      std::make_shared<TcpStore>(TcpStoreOptions{.host = host, .serve = true, .secret = kSecret, .timeout = 20s});
};

/// Views, of views, of a store that others use as well.
struct PrefixSite : Site {
  StorePtr open() override {
    return std::make_shared<PrefixStore>("inner/", std::make_shared<PrefixStore>("outer/", base.open()));
  }
  PrefixSite() { base.open()->multi_set({{"outer/x", "not yours"}, {"outer/inner", "not yours"}, {"z", "not yours"}}); }
  MemorySite base;
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Site>()> make;
};
inline void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

inline const Kind kMemory{"memory", [] { return std::make_unique<MemorySite>(); }};
inline const Kind kFile{"file", [] { return std::make_unique<FileSite>(); }};
inline const Kind kTcp4{"tcp4", [] { return std::make_unique<TcpSite>("127.0.0.1"); }};
inline const Kind kTcp6{"tcp6", [] { return std::make_unique<TcpSite>("::1"); }};
inline const Kind kPrefix{"prefix", [] { return std::make_unique<PrefixSite>(); }};

/// `count` threads at once; joined on return.
inline void in_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (auto& thread : threads) thread.join();
}

/// This program as another process, in which the role (store_roles.cpp) of that name runs.
class Process {
 public:
  Process(const std::string& role, const std::string& spec, const std::string& argument = "");
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  /// The exit status, or minus the signal.
  int wait();
  void kill(int signal) { ::kill(pid_, signal); }

 private:
  pid_t pid_ = 0;
};

/// A handle of the store that spec() describes.
StorePtr open_site(const std::string& spec);

/// Threads and descriptors of this process.
struct Usage {
  size_t threads = count("/proc/self/task"), descriptors = count("/proc/self/fd");
  static size_t count(const char* folder) {
    // The first thread of a process brings a sanitizer's own with it, which stays.
    static const bool started = [] {
      std::thread([] {}).join();
      std::this_thread::sleep_for(20ms);
      return true;
    }();
    (void)started;
    return test::entries(folder);
  }
  bool operator==(const Usage&) const = default;
};
/// Whether they are again what they were. A thread that was joined may be listed for a moment more.
inline bool returns_to(const Usage& before) {
  auto start = Clock::now();
  while (!(Usage() == before) && seconds_since(start) < 2) std::this_thread::sleep_for(1ms);
  return Usage() == before;
}
inline void PrintTo(const Usage& usage, std::ostream* out) {
  *out << usage.threads << " threads, " << usage.descriptors << " descriptors";
}

}  // namespace tutti::test
