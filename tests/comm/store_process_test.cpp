// Stores that several processes use, and processes that die while they do.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "tests/comm/store_support.h"
#include "tests/support/expect_ops.h"

extern char** environ;

namespace tutti::test {

// ---- This program as another process

Process::Process(const std::string& role, const std::string& spec, const std::string& argument) {
  std::vector<std::string> variables{"TUTTI_STORE_ROLE=" + role, "TUTTI_STORE_SPEC=" + spec,
                                     "TUTTI_STORE_ARGUMENT=" + argument};
  std::vector<char*> environment;
  for (char** entry = environ; *entry; ++entry)
    if (std::string_view(*entry).substr(0, 6) != "GTEST_") environment.push_back(*entry);
  for (auto& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  std::string program = std::filesystem::read_symlink("/proc/self/exe"), filter = "--gtest_filter=StoreRole.*";
  char* arguments[] = {program.data(), filter.data(), nullptr};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  int error = ::posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environment.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("the test cannot start itself");
}

Process::~Process() {
  if (pid_ == 0) return;
  kill(SIGKILL);
  wait();
}

int Process::wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

StorePtr open_site(const std::string& spec) {
  std::istringstream words(spec);
  std::string kind, where;
  uint16_t port = 0;
  words >> kind >> where >> port;
  if (kind == "file") return std::make_shared<FileStore>(where, FileStoreOptions{.timeout = 20s});
  return TcpSite::connect(where, port);
}

namespace {

using testing::HasSubstr;

// ---- What those processes do

void add(Store& store, int count) {
  for (int i = 0; i < count; ++i) store.add("n", 1);
}

void lock(Store& store, int count) {
  std::string me = std::to_string(::getpid());
  for (int i = 0; i < count; ++i) {
    while (store.compare_and_set("lock", "", me) != me) std::this_thread::yield();
    store.set("guarded", std::to_string(std::stoi(store.get("guarded")) + 1));
    store.compare_and_set("lock", me, "");
  }
}

void meet(Store& store, int world) {
  auto rank = store.add("arrived", 1) - 1;
  store.set("rank/" + std::to_string(rank), std::to_string(::getpid()));
  Store::Keys keys;
  for (int i = 0; i < world; ++i) keys.push_back("rank/" + std::to_string(i));
  auto all = store.multi_get(keys);
  store.append("met", all == store.multi_get(keys) ? "+" : "-");
}

void consume(Store& store, int) {
  for (std::string job = store.pop("jobs"); job != "stop"; job = store.pop("jobs")) store.push("results", job);
}

// Never ends. Every value tells whether it is whole, and `count` is what the keys say.
void scribble(Store& store, int seed) {
  std::string me = std::to_string(seed);
  for (int64_t k = 1;; ++k) {
    store.multi_set({{"value", std::string(static_cast<size_t>(1 + k * 7919 % 60000), static_cast<char>('a' + k % 26))},
                     {"size", std::to_string(1 + k * 7919 % 60000)}});
    store.append("log", "[" + me + "]");
    store.add("started", 1);
  }
}

void set_two(Store& store, int) {
  store.set("first", "x");
  std::this_thread::sleep_for(30ms);
  store.set("second", "x");
}

void hold(Store& store, int) {
  store.set("held", "x");
  store.get("never", {.timeout = 60s});
}

void serve(Store& store, int) {
  TcpStore server({.serve = true, .secret = kSecret});
  store.set("port", std::to_string(server.port()));
  store.get("never", {.timeout = 60s});
}

const std::map<std::string, void (*)(Store&, int)> kRoles = {
    {"add", add},           {"lock", lock}, {"meet", meet},   {"consume", consume},
    {"scribble", scribble}, {"hold", hold}, {"serve", serve}, {"set_two", set_two},
};

TEST(StoreRole, RunsInAnotherProcess) {
  if (const char* role = std::getenv("TUTTI_STORE_ROLE")) {
    StorePtr store = open_site(std::getenv("TUTTI_STORE_SPEC"));
    std::string argument = std::getenv("TUTTI_STORE_ARGUMENT");
    kRoles.at(role)(*store, argument.empty() ? 0 : std::stoi(argument));
    return;
  }
  FileSite site;
  Process good("add", site.spec(), "3"), bad("no such role", site.spec());
  EXPECT_EQ(good.wait(), 0);
  EXPECT_EQ(bad.wait(), 1);
  EXPECT_EQ(site.open()->get("n"), "3");
}

// ---- Tests of all stores that processes can share

class Processes : public testing::TestWithParam<Kind> {
 protected:
  /// Runs `count` of them to their end.
  void run(int count, const std::string& role, const std::string& argument, const std::function<void()>& beside = {}) {
    std::vector<std::unique_ptr<Process>> all;
    for (int i = 0; i < count; ++i) all.push_back(std::make_unique<Process>(role, site->spec(), argument));
    if (beside) beside();
    for (auto& process : all) EXPECT_EQ(process->wait(), 0) << role;
  }
  std::unique_ptr<Site> site = GetParam().make();
  StorePtr store = site->open();
};

TEST_P(Processes, AddIsExact) {
  run(6, "add", "100", [&] { add(*store, 100); });
  EXPECT_EQ(store->get("n"), "700");
}

TEST_P(Processes, CompareAndSetIsALock) {
  store->set("guarded", "0");
  run(3, "lock", "20", [&] { lock(*store, 20); });
  EXPECT_EQ(store->get("guarded"), "80");
}

TEST_P(Processes, Meet) {
  run(5, "meet", "6", [&] { meet(*store, 6); });
  EXPECT_EQ(store->get("met"), "++++++");
}

TEST_P(Processes, EachJobIsDoneOnce) {
  std::multiset<std::string> jobs, results;
  run(4, "consume", "", [&] {
    for (int i = 0; i < 60; ++i) store->push("jobs", *jobs.insert(std::to_string(i)));
    for (int i = 0; i < 60; ++i) results.insert(store->pop("results"));
    for (int i = 0; i < 4; ++i) store->push("jobs", "stop");
  });
  EXPECT_EQ(results, jobs);
}

TEST_P(Processes, SurviveTheKilled) {
  int killed_at_work = 0;
  for (int round = 0; round < 8; ++round) {
    auto before = store->add("started", 0);
    Process writer("scribble", site->spec(), std::to_string(round)), second("scribble", site->spec(), "-1");
    while (store->add("started", 0) < before + 2 + round) std::this_thread::sleep_for(200us * round);
    writer.kill(SIGKILL);
    second.kill(SIGKILL);
    EXPECT_EQ(writer.wait(), -SIGKILL);
    EXPECT_EQ(second.wait(), -SIGKILL);
    StorePtr fresh = site->open();
    auto pair = fresh->multi_get({"value", "size"});
    ASSERT_EQ(std::to_string(pair[0].size()), pair[1]);
    EXPECT_EQ(pair[0], std::string(pair[0].size(), pair[0][0]));
    killed_at_work += fresh->add("started", 0) > before;
    fresh->set("value", "");
    fresh->set("size", "0");
    EXPECT_EQ(store->get("value"), "");
  }
  EXPECT_EQ(killed_at_work, 8);
}

// Only one thread looks at the file or the socket. When it has what it waits for, another has to.
TEST_P(Processes, ThreadsThatWaitLookForEachOther) {
  auto start = Clock::now();
  Process other("set_two", site->spec());
  in_threads(4, [&](int i) { EXPECT_EQ(store->get(i == 0 ? "first" : "second"), "x"); });
  EXPECT_LT(seconds_since(start), 10);
  EXPECT_EQ(other.wait(), 0);
}

TEST_P(Processes, ThreadsThatGiveUpPassOnTheWatch) {
  auto start = Clock::now();
  std::thread first([&] { EXPECT_THROW(store->get("never", {.timeout = 40ms}), TimeoutError); });
  std::this_thread::sleep_for(10ms);
  std::thread second([&] { EXPECT_EQ(store->get("second"), "x"); });
  first.join();
  Process other("set_two", site->spec());
  second.join();
  EXPECT_LT(seconds_since(start), 10);
  EXPECT_EQ(other.wait(), 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Processes, testing::Values(kFile, kTcp4),
                         [](auto& info) { return std::string(info.param.name); });

// ---- The file store alone

std::string bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(FileStore, IgnoresAndRepairsATornRecord) {
  Scratch scratch;
  std::string path = scratch / "store";
  FileStore(path).set("a", "1");
  size_t whole = bytes_of_file(path).size();
  FileStore(path).set("b", "a value that is torn");
  std::string bytes = bytes_of_file(path);
  for (size_t size = 0; size < bytes.size(); ++size) {
    write_file(path, bytes.substr(0, size));
    FileStore store(path);
    EXPECT_EQ(store.try_get("a").has_value(), size >= whole) << size;
    EXPECT_FALSE(store.has({"b"})) << size;
    store.set("c", "3");
    EXPECT_EQ(store.get("c"), "3") << size;
  }
}

TEST(FileStore, SaysWhereItIsDamaged) {
  Scratch scratch;
  std::string path = scratch / "store";
  FileStore(path).set("a", "1");
  size_t first = bytes_of_file(path).size();
  FileStore(path).set("b", "2");
  FileStore(path).set("c", "3");
  std::string bytes = bytes_of_file(path);
  bytes[first + 12] ^= 1;
  write_file(path, bytes);
  EXPECT_EQ(message_of<StoreError>([&] { FileStore store(path); }),
            "FileStore: " + path + " is damaged at byte " + std::to_string(first));
  write_file(path, "something else");
  EXPECT_EQ(message_of<StoreError>([&] { FileStore store(path); }),
            "FileStore: " + path + " is not the file of a store");
  EXPECT_EQ(bytes_of_file(path), "something else");
  EXPECT_THAT(message_of<StoreError>([&] { FileStore store(scratch / "no/such/place"); }),
              HasSubstr("cannot be opened: No such file or directory"));
}

TEST(FileStore, GoesWithItsLastUser) {
  Scratch scratch;
  std::string path = scratch / "store";
  {
    FileStore kept(path);
  }
  EXPECT_TRUE(std::filesystem::exists(path));
  {
    auto a = std::make_unique<FileStore>(path, FileStoreOptions{.remove = true});
    auto b = std::make_unique<FileStore>(path, FileStoreOptions{.remove = true});
    a.reset();
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));

  auto mine = std::make_unique<FileStore>(path, FileStoreOptions{.remove = true});
  Process other("hold", "file " + path);
  mine->get("held");
  mine.reset();
  EXPECT_TRUE(std::filesystem::exists(path));  // the other has it still
  mine = std::make_unique<FileStore>(path, FileStoreOptions{.remove = true});
  EXPECT_EQ(mine->get("held"), "x");
  other.kill(SIGKILL);
  other.wait();
  mine.reset();
  EXPECT_FALSE(std::filesystem::exists(path));  // the dead one counts no more
}

TEST(FileStore, OpeningAndRemovingDoNotMiss) {
  Scratch scratch;
  std::string path = scratch / "store";
  in_threads(6, [&](int i) {
    for (int k = 0; k < 40; ++k) {
      FileStore store(path, {.remove = true});
      std::string key = std::to_string(i) + "/" + std::to_string(k);
      store.set(key, key);
      EXPECT_EQ(FileStore(path, {.remove = true}).try_get(key), key);  // by its name, it is the same file
    }
  });
  EXPECT_FALSE(std::filesystem::exists(path));
}

// Of two processes that leave at the same moment, one is the last.
TEST(FileStore, GoesWithTwoThatLeaveAtOnce) {
  Scratch scratch;
  std::string path = scratch / "store";
  void* memory = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto& came = *new (memory) std::atomic<int>(0);
  auto leave_often = [&] {
    int meetings = 0, left_behind = 0;
    auto meet = [&] {
      ++came;
      ++meetings;
      for (int looks = 0; came < 2 * meetings; ++looks)
        if (looks > 1000) std::this_thread::yield();
    };
    for (int k = 0; k < 1000; ++k) {
      auto store = std::make_unique<FileStore>(path, FileStoreOptions{.remove = true});
      meet();
      store.reset();
      meet();
      left_behind += std::filesystem::exists(path);
      meet();
    }
    ::_exit(left_behind > 0);
  };
  pid_t children[2];
  for (pid_t& child : children)
    if ((child = ::fork()) == 0) leave_often();
  for (pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  ::munmap(memory, sizeof(std::atomic<int>));
}

// Others who come now would make another file: to wait for them in this one is in vain.
TEST(FileStore, ThatIsRemovedMeanwhileIsAnError) {
  Scratch scratch;
  std::string path = scratch / "store", wanted = "FileStore: " + path + " was removed while it was in use";
  FileStore store(path), kept(path, {.remove = true});
  store.set("a", "1");
  std::thread waits([&] { EXPECT_EQ(message_of<StoreError>([&] { store.get("b"); }), wanted); });
  std::this_thread::sleep_for(10ms);
  std::filesystem::remove(path);
  EXPECT_EQ(message_of<StoreError>([&] { store.set("b", "2"); }), wanted);
  waits.join();
  FileStore(path).set("of", "another");
  EXPECT_EQ(message_of<StoreError>([&] { store.try_get("a"); }), wanted);
}

TEST(FileStore, ALockThatIsKeptIsATimeout) {
  Scratch scratch;
  std::string path = scratch / "store";
  FileStore store(path);
  store.set("a", "1");
  int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct flock range{};
  range.l_type = F_WRLCK;
  range.l_len = 1;
  ASSERT_EQ(::fcntl(file, F_OFD_SETLK, &range), 0);
  EXPECT_EQ(message_of<TimeoutError>([&] { store.set("b", "2", {.timeout = 20ms}); }),
            "store.set: the file store " + path + " did not answer in 0.02 s");
  EXPECT_THAT(message_of<TimeoutError>([&] { FileStore late(path, {.timeout = 20ms}); }),
              HasSubstr("was locked by another process for 0.02 s"));
  ::close(file);
  EXPECT_EQ(store.get("a"), "1");
  EXPECT_FALSE(store.has({"b"}));
}

TEST(FileStore, ManyThreadsWaitForAnotherProcess) {
  FileSite site;
  StorePtr store = site.open();
  store->set("guarded", "0");
  std::unique_ptr<Process> other;
  std::atomic<int> waiting{0};
  std::thread starter([&] {
    while (waiting < 100) std::this_thread::yield();
    other = std::make_unique<Process>("lock", site.spec(), "10");
  });
  in_threads(100, [&](int i) {
    ++waiting;
    if (i % 4 == 0) {
      EXPECT_THROW(store->get("never", {.timeout = 1ms * i}), TimeoutError);
    }
    EXPECT_NO_THROW(store->get("lock"));
  });
  starter.join();
  EXPECT_EQ(other->wait(), 0);
}

TEST(FileStore, ReadingAndFailedAttemptsLeaveNoTrace) {
  Scratch scratch;
  std::string path = scratch / "store";
  FileStore store(path);
  store.set("a", "1");
  auto size = std::filesystem::file_size(path);
  store.try_get("b");
  store.try_pop("q");
  store.compare_and_set("a", "2", "3");
  store.erase("b");
  EXPECT_THROW(store.pop("q", {.timeout = 2ms}), TimeoutError);
  EXPECT_EQ(std::filesystem::file_size(path), size);
}

// ---- A server that dies

TEST(TcpStoreServer, ItsDeathIsAnErrorAtOnce) {
  FileSite site;
  Process server("serve", site.spec());
  auto port = static_cast<uint16_t>(std::stoi(site.open()->get("port")));
  auto client = TcpSite::connect("127.0.0.1", port);
  client->set("a", "1");
  std::atomic<int> ready{0};
  std::thread killer([&] {
    while (ready < 6) std::this_thread::yield();
    std::this_thread::sleep_for(20ms);
    server.kill(SIGKILL);
  });

  in_threads(6, [&](int i) {
    ++ready;
    std::string text =
        message_of<ConnectionError>([&] { i % 2 ? client->wait({"never"}) : (void)client->pop("never"); });
    EXPECT_THAT(text, HasSubstr("TcpStore: lost the server at 127.0.0.1:" + std::to_string(port) + ": "));
  });
  auto start = Clock::now();
  killer.join();
  EXPECT_LT(seconds_since(start), 2);
  EXPECT_THROW(client->get("a"), ConnectionError);
}

}  // namespace
}  // namespace tutti::test
