// Tests whose bodies run on every rank of a world, for GoogleTest (which the program brings along).
//
//   struct Sums : tutti::harness::RankTest<2, 4> {};       // worlds of two and of four ranks
//
//   TUTTI_RANK_TEST(Sums, AddUp) {                         // Sums.AddUp/2 and Sums.AddUp/4
//     Tensor x = ones({3});
//     all_reduce(x);
//     EXPECT_EQ(x[0].item<double>(), world_size());        // a failure says "[rank 1 of 4]"
//     ON_RANK(0) EXPECT_EQ(x.numel(), 3);                  // on that rank only
//     if (world_size() > 2) GTEST_SKIP() << "for pairs";   // on any rank: the whole test is skipped
//   }
//
// A body that throws, or an ASSERT that fails, ends the others at once; the first real error is the one reported. In an
// ordinary TEST, run_ranks(n, body) does the same. The object of a test is one for all ranks (that are threads).
#pragma once

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "tutti/comm/group.h"
#include "tutti/error.h"

namespace tutti::comm {
/// Whether this build of Tutti has an engine between hosts: "ucx" or "gloo".
bool has_engine(const std::string& name);
}  // namespace tutti::comm

namespace tutti::harness {

/// A way to run ranks: like spawn_ranks, which is the one by threads.
struct Runner {
  std::string name;
  std::function<void(int ranks, const std::function<void()>& body, const SpawnOptions& options)> run;
  bool shares_memory = true;  // ranks see the memory of the test: not so for processes that it forks
};
inline Runner threads() {
  return {"threads", [](int n, const std::function<void()>& body, const SpawnOptions& o) { spawn_ranks(n, body, o); }};
}
/// Ranks as processes, forked from the test's.
inline Runner processes() {
  return {"shm", [](int n, const std::function<void()>& body, const SpawnOptions& o) { spawn_processes(n, body, o); },
          false};
}
/// The same, as if they were on several hosts: by "ucx" or "gloo", every rank on its own; or by "shm+ucx" or
/// "shm+gloo", on two hosts. A host that says nothing for `silence` counts as lost, unless the test's options name
/// another time than SpawnOptions does by itself: where many processes share few cores, a second is soon over.
inline Runner hosts(const std::string& transport, std::chrono::milliseconds silence = std::chrono::seconds(5)) {
  std::string name = transport;
  for (char& c : name)
    if (c == '+') c = '_';
  return {name,
          [transport, silence](int n, const std::function<void()>& body, const SpawnOptions& o) {
            SpawnOptions options = o;
            options.transport = transport;
            if (transport.starts_with("shm"))
              for (int r = 0; r < n; ++r) options.hosts.push_back(r * 2 / n);
            if (o.silence == SpawnOptions().silence) options.silence = silence;
            spawn_processes(n, body, options);
          },
          false};
}
/// All ways that this build has.
inline std::vector<Runner> every_transport() {
  std::vector<Runner> runners = {threads()};
#if !defined(TUTTI_SANITIZE_THREAD) && !defined(__SANITIZE_THREAD__)
  // ThreadSanitizer does not follow a process that has threads into its children
  runners.push_back(processes());
  if (comm::has_engine("ucx")) runners.push_back(hosts("ucx"));
  if (comm::has_engine("ucx")) runners.push_back(hosts("shm+ucx"));
  if (comm::has_engine("gloo")) runners.push_back(hosts("gloo"));
  if (comm::has_engine("gloo")) runners.push_back(hosts("shm+gloo"));
#endif
  return runners;
}

namespace detail {

/// Something a rank's body asserted, or a skip.
struct Part {
  ::testing::TestPartResult::Type type;
  std::string file;
  int line;
  std::string message;
};
using Parts = std::vector<Part>;

/// Ends a rank whose body skipped or failed, and so the others; what it was is among the parts.
inline constexpr const char* kStopped = "its test body ended early";

inline void write_parts(const std::filesystem::path& path, const Parts& parts) {
  std::ofstream out(path, std::ios::binary);
  for (const Part& p : parts)
    out << p.type << ' ' << p.line << ' ' << p.file.size() << ' ' << p.message.size() << '\n' << p.file << p.message;
}
inline Parts read_parts(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  Parts parts;
  int type = 0, line = 0;
  size_t file = 0, message = 0;
  while (in >> type >> line >> file >> message) {
    in.get();
    Part p{static_cast<::testing::TestPartResult::Type>(type), std::string(file, 0), line, std::string(message, 0)};
    in.read(p.file.data(), static_cast<std::streamsize>(file));
    in.read(p.message.data(), static_cast<std::streamsize>(message));
    parts.push_back(std::move(p));
  }
  return parts;
}

/// What the ranks of one run asserted: by memory, or by files where they have not the same.
class Outcomes {
 public:
  Outcomes(int ranks, bool shared) : parts_(static_cast<size_t>(ranks)) {
    if (shared) return;
    std::string pattern = (std::filesystem::temp_directory_path() / "tutti-test-XXXXXX").string();
    if (mkdtemp(pattern.data())) folder_ = pattern;
  }
  ~Outcomes() {
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }
  Outcomes(const Outcomes&) = delete;
  Outcomes& operator=(const Outcomes&) = delete;

  void put(int rank, Parts parts) {
    if (!folder_.empty()) return write_parts(file(rank), parts);
    std::lock_guard lock(mutex_);
    parts_[static_cast<size_t>(rank)] = std::move(parts);
  }
  void report() {
    bool failed = false;
    const Part* skip = nullptr;
    std::string whose;
    for (size_t r = 0; r < parts_.size(); ++r) {
      if (!folder_.empty()) parts_[r] = read_parts(file(static_cast<int>(r)));
      std::string rank = "[rank " + std::to_string(r) + " of " + std::to_string(parts_.size()) + "] ";
      for (const Part& p : parts_[r]) {
        bool skips = p.type == ::testing::TestPartResult::kSkip;
        if (skips && !skip) skip = &p, whose = rank;
        if (skips || p.type == ::testing::TestPartResult::kSuccess) continue;
        failed = true;
        add(p, rank);
      }
    }
    if (skip && !failed) add(*skip, whose);
  }

 private:
  std::filesystem::path file(int rank) const { return folder_ / std::to_string(rank); }
  static void add(const Part& p, const std::string& rank) {
    GTEST_MESSAGE_AT_(p.file.empty() ? nullptr : p.file.c_str(), p.line, (rank + p.message).c_str(), p.type);
  }
  std::mutex mutex_;
  std::vector<Parts> parts_;
  std::filesystem::path folder_;
};

/// Keeps what the calling thread asserts from the test's own result.
class Recorder {
 public:
  explicit Recorder(Outcomes& outcomes) : outcomes_(outcomes), rank_(rank()), reporter_(&results_) {}
  ~Recorder() { outcomes_.put(rank_, parts()); }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  bool stopped() const {
    for (int i = 0; i < results_.size(); ++i)
      if (results_.GetTestPartResult(i).fatally_failed() || results_.GetTestPartResult(i).skipped()) return true;
    return false;
  }

 private:
  Parts parts() const {
    Parts parts;
    for (int i = 0; i < results_.size(); ++i) {
      const auto& r = results_.GetTestPartResult(i);
      parts.push_back({r.type(), r.file_name() ? r.file_name() : "", r.line_number(), r.message()});
    }
    return parts;
  }
  Outcomes& outcomes_;
  int rank_;
  ::testing::TestPartResultArray results_;
  ::testing::ScopedFakeTestPartResultReporter reporter_;
};

}  // namespace detail

/// Runs body on ranks from inside a test. What they assert becomes part of the test, naming the rank; what they throw
/// is thrown here, as by spawn_ranks.
inline void run_ranks(int ranks, const std::function<void()>& body, const SpawnOptions& options = {},
                      const Runner& runner = threads()) {
  detail::Outcomes outcomes(ranks, runner.shares_memory);
  try {
    runner.run(
        ranks,
        [&] {
          bool stopped = false;
          {
            detail::Recorder recorder(outcomes);
            body();
            stopped = recorder.stopped();
          }
          if (stopped) throw Error(detail::kStopped);
        },
        options);
  } catch (const Error& e) {
    outcomes.report();
    if (std::string(e.what()).find(detail::kStopped) == std::string::npos) throw;
    return;
  } catch (...) {
    outcomes.report();
    throw;
  }
  outcomes.report();
}

/// A fixture whose test bodies run on every rank, once for each world size. SetUp and TearDown run once, outside.
template <int... sizes>
class RankTest : public ::testing::Test {
 public:
  static std::vector<int> world_sizes() { return {sizes...}; }
  static std::vector<Runner> runners() { return {threads()}; }
  static constexpr bool names_runner = false;
  void configure(Runner runner, int ranks) {
    runner_ = std::move(runner);
    ranks_ = ranks;
  }

 protected:
  static_assert(sizeof...(sizes) > 0, "say of how many ranks the worlds are: RankTest<2, 4>");
  virtual void body() = 0;
  /// Timeouts, seeds.
  virtual SpawnOptions options() const { return {}; }
  void TestBody() final {
    run_ranks(ranks_, [this] { body(); }, options(), runner_);
  }

 private:
  Runner runner_;
  int ranks_ = 0;
};

/// The same once for each transport as well: Suite.Name/threads/4.
template <int... sizes>
class TransportTest : public RankTest<sizes...> {
 public:
  static std::vector<Runner> runners() { return every_transport(); }
  static constexpr bool names_runner = true;
};

namespace detail {
template <class Fixture, class Test>
bool register_tests(const char* suite, const std::string& name, const char* file, int line) {
  for (const Runner& runner : Fixture::runners())
    for (int n : Fixture::world_sizes()) {
      std::string full = name;
      if (Fixture::names_runner) full += "/" + runner.name;
      if (Fixture::world_sizes().size() > 1) full += "/" + std::to_string(n);
      ::testing::RegisterTest(suite, full.c_str(), nullptr, nullptr, file, line, [runner, n]() -> Fixture* {
        auto* test = new Test;
        test->configure(runner, n);
        return test;
      });
    }
  return true;
}
}  // namespace detail

}  // namespace tutti::harness

/// A test of a RankTest or TransportTest fixture; the body follows.
#define TUTTI_RANK_TEST(Fixture, Name)                                                                       \
  class Fixture##_##Name##_Ranks : public Fixture {                                                          \
    void body() override;                                                                                    \
  };                                                                                                         \
  [[maybe_unused]] static const bool Fixture##_##Name##_registered =                                         \
      ::tutti::harness::detail::register_tests<Fixture, Fixture##_##Name##_Ranks>(#Fixture, #Name, __FILE__, \
                                                                                  __LINE__);                 \
  void Fixture##_##Name##_Ranks::body()

/// The statement that follows is for one rank of the world only.
#define ON_RANK(number)              \
  if (::tutti::rank() != (number)) { \
  } else
