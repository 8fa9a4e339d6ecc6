// Stores: small tables of bytes that the ranks of a job share, by which they find each other before any group exists.
//
//   auto store = std::make_shared<TcpStore>(TcpStoreOptions{.host = "node0", .port = 29500, .secret = secret});
//   store->set("address/3", address);
//   std::string peer = store->get("address/5", {.timeout = 10s});   // waits until somebody sets it
//
// All stores behave the same; they differ in who can reach them: the threads of a process (MemoryStore), whoever sees a
// file (FileStore), whoever reaches a server and knows its secret (TcpStore). A PrefixStore is a view of another.
// Every operation is atomic, and may be called from any number of threads of one handle. A handle does not survive a
// fork: the child opens its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/error.h"

namespace tutti {

namespace store {  // what passes between the kinds of stores; src/comm/store
struct Request;
struct Reply;
struct Waiting;
class Server;
}  // namespace store

/// How long a call may wait, and what may end it earlier.
struct Wait {
  std::optional<std::chrono::nanoseconds> timeout = {};  // default: the store's
  std::stop_token stop = {};                             // asked to stop, the call throws CancelledError
};

class Store {
 public:
  using Keys = std::vector<std::string>;
  using Values = std::vector<std::string>;

  // Bounds of every store, so that a program meets them on its desk. What exceeds them is a ValueError.
  static constexpr size_t kMaxKey = 4096;               // bytes of a key, with its prefixes
  static constexpr size_t kMaxValue = size_t{1} << 23;  // bytes of a value, also after appending
  static constexpr size_t kMaxKeys = size_t{1} << 16;   // keys of one call
  static constexpr size_t kMaxBytes = size_t{1} << 24;  // bytes of one call or its result, keys and lengths included

  virtual ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Each throws TimeoutError when it waited for longer than its timeout, CancelledError when it was cancelled,
  // ConnectionError when a server is lost, StoreError when the store cannot do it.

  void set(std::string_view key, std::string_view value, const Wait& wait = {});
  /// The value of a key; waits until there is one.
  std::string get(std::string_view key, const Wait& wait = {});
  /// The value of a key if there is one now.
  std::optional<std::string> try_get(std::string_view key, const Wait& wait = {});
  /// Waits until all of the keys have values.
  void wait(const Keys& keys, const Wait& wait = {});
  /// Whether all of the keys have values now.
  bool has(const Keys& keys, const Wait& wait = {});
  /// Adds to a counter and returns what it is now. A counter that does not exist is 0; its value is decimal text.
  int64_t add(std::string_view key, int64_t amount, const Wait& wait = {});
  /// Sets the key to `desired` if its value is `expected`, and returns the value that it has after that. A key that
  /// does not exist has the value "" here, and keeps not existing if something else was expected.
  std::string compare_and_set(std::string_view key, std::string_view expected, std::string_view desired,
                              const Wait& wait = {});
  /// Adds to the end of a value. A value that does not exist is empty.
  void append(std::string_view key, std::string_view value, const Wait& wait = {});
  /// The values of all keys at one moment, in their order; waits until all are there.
  Values multi_get(const Keys& keys, const Wait& wait = {});
  /// Sets all of them at one moment.
  void multi_set(const std::vector<std::pair<std::string, std::string>>& entries, const Wait& wait = {});

  // Queues have names of their own: a queue and a value of the same name do not meet. An empty queue does not exist.
  void push(std::string_view queue, std::string_view value, const Wait& wait = {});
  /// Takes the oldest value out; waits until there is one. Each value goes to one consumer, and with it if that dies.
  std::string pop(std::string_view queue, const Wait& wait = {});
  std::optional<std::string> try_pop(std::string_view queue, const Wait& wait = {});
  int64_t queue_size(std::string_view queue, const Wait& wait = {});

  /// Removes a value; false if there was none.
  bool erase(std::string_view key, const Wait& wait = {});
  /// Removes all values and queues whose names start with the prefix; returns how many.
  int64_t clear(std::string_view prefix = {}, const Wait& wait = {});
  /// How many keys have values.
  int64_t count(const Wait& wait = {});
  /// The keys that have values and start with the prefix, sorted.
  Keys list(std::string_view prefix = {}, const Wait& wait = {});

  std::chrono::nanoseconds timeout() const;
  void set_timeout(std::chrono::nanoseconds timeout);
  /// Ends all calls of this handle that wait, in any thread, and all later ones: they throw CancelledError. Views of
  /// this handle are ended too; the handle that a view is of is not.
  void cancel();
  /// "the file store /tmp/x", for messages.
  virtual std::string name() const = 0;

 protected:
  explicit Store(std::chrono::nanoseconds timeout);
  /// Carries out a request, and waits if it says so. Ended early, it replies with the keys that did not come.
  virtual store::Reply call(const store::Request& request, const store::Waiting& waiting) = 0;

 private:
  friend class PrefixStore;
  store::Reply run(const char* operation, const store::Request& request, const Wait& wait);

  struct State;
  std::unique_ptr<State> state_;
};

using StorePtr = std::shared_ptr<Store>;

inline constexpr std::chrono::minutes kStoreTimeout{5};

/// A table in this process.
class MemoryStore : public Store {
 public:
  explicit MemoryStore(std::chrono::nanoseconds timeout = kStoreTimeout);
  ~MemoryStore() override;
  std::string name() const override;

 protected:
  store::Reply call(const store::Request& request, const store::Waiting& waiting) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct FileStoreOptions {
  bool remove = false;  // the last handle to go removes the file; all handles of a file should agree
  std::chrono::nanoseconds timeout = kStoreTimeout;
};

/// A table in a file, on any file system that all users see and that has locks (NFS too). The file is a log of changes,
/// which only grows: it is meant for what a job's start needs. A user killed at any moment leaves it whole.
class FileStore : public Store {
 public:
  explicit FileStore(std::string path, FileStoreOptions options = {});
  ~FileStore() override;
  std::string name() const override;

 protected:
  store::Reply call(const store::Request& request, const store::Waiting& waiting) override;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

struct TcpStoreOptions {
  std::string host = {};    // the server's; empty: this machine. While serving: what to listen on; empty: see `secret`
  uint16_t port = 0;        // while serving, 0 takes a free one: see port()
  bool serve = false;       // this process is the server, for as long as this handle lives
  std::string secret = {};  // server and clients prove to each other that they know it. A server without one listens
                            // on the loopback device only, one with it on all
  std::chrono::nanoseconds timeout = kStoreTimeout;  // also of connecting: the server may start later than its clients
  std::chrono::nanoseconds handshake_timeout = std::chrono::seconds(10);  // what a server gives a peer to prove itself
  std::chrono::nanoseconds grace = std::chrono::seconds(5);  // what a server has to answer, beyond a call's timeout,
                                                             // before a client counts it as lost
  std::stop_token stop = {};                                 // ends connecting
};

/// A table in a server process, over TCP (docs/wire-format.md). A client has one connection, which all of its threads
/// use, and no thread of its own. The traffic is not encrypted: the secret keeps others out, not from listening.
class TcpStore : public Store {
 public:
  explicit TcpStore(TcpStoreOptions options);
  ~TcpStore() override;
  std::string name() const override;
  /// The server's.
  uint16_t port() const;
  /// For others to know when this process is no more: `key` gets the value `if_ended` when the connection of this
  /// handle ends, or `if_silent` when it says nothing for `silence` (zero: may be silent for ever), unless it has a
  /// value by then. Any call counts as saying something. A later will replaces this one; one without values revokes it.
  void leave_will(const std::string& key, const std::string& if_ended, const std::string& if_silent,
                  std::chrono::milliseconds silence);

 protected:
  store::Reply call(const store::Request& request, const store::Waiting& waiting) override;

 private:
  struct Impl;
  std::unique_ptr<store::Server> server_;
  std::unique_ptr<Impl> impl_;
};

/// A view of a store in which all keys and queues have a prefix. It can be cancelled without its store.
class PrefixStore : public Store {
 public:
  PrefixStore(std::string prefix, StorePtr store);
  ~PrefixStore() override;
  std::string name() const override;

 protected:
  store::Reply call(const store::Request& request, const store::Waiting& waiting) override;

 private:
  std::string prefix_;
  StorePtr store_;
};

}  // namespace tutti
