// Generated code on disk: found again, never believed when damaged, shared by processes, bounded.
#include "graph/backends/native/cache.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "graph/backends/native/library.h"
#include "tests/support/scratch.h"
#include "tutti/compile.h"
#include "tutti/ops.h"

namespace tutti::test {
namespace {

using graph::native::Cache;

std::string object_of(int which, size_t bytes = 5000) { return std::string(bytes, static_cast<char>('a' + which)); }

void damage(const std::string& path, const std::function<void(std::string&)>& change) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  ASSERT_FALSE(bytes.empty());
  change(bytes);
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(CodeCache, WhatWasKeptIsFound) {
  Scratch scratch;
  Cache cache(scratch / "below");
  EXPECT_FALSE(cache.find("one"));
  cache.keep("one", object_of(1));
  EXPECT_EQ(cache.find("one"), object_of(1));
  EXPECT_EQ(Cache(scratch / "below").find("one"), object_of(1));
  EXPECT_FALSE(cache.find("two"));
  Cache none{""};
  none.keep("one", object_of(1));
  EXPECT_FALSE(none.find("one"));
}

TEST(CodeCache, DamagedFilesAreIgnoredAndReplaced) {
  Scratch scratch;
  Cache cache(scratch.path());
  const std::function<void(std::string&)> damages[] = {
      [](std::string& s) { s.resize(s.size() / 2); },
      [](std::string& s) { s.resize(10); },
      [](std::string& s) { s.clear(); },
      [](std::string& s) { s[s.size() - 7] ^= 1; },
      [](std::string& s) { s[0] ^= 1; },
      [](std::string& s) { s[25] ^= 1; },
      [](std::string& s) { s += "more"; },
  };
  for (const auto& change : damages) {
    cache.keep("one", object_of(1));
    ASSERT_EQ(cache.find("one"), object_of(1));
    damage(scratch / "one.tutti", change);
    EXPECT_FALSE(cache.find("one"));
  }
  cache.keep("one", object_of(2));
  EXPECT_EQ(cache.find("one"), object_of(2));
}

TEST(CodeCache, PlacesThatCannotBeWrittenAreNoError) {
  Scratch scratch;
  std::ofstream(scratch / "file") << "no directory";
  Cache cache(scratch / "file");
  cache.keep("one", object_of(1));
  EXPECT_FALSE(cache.find("one"));
}

TEST(CodeCache, KeepsWithinItsLimit) {
  Scratch scratch;
  Cache cache(scratch.path(), 40'000);
  for (int i = 0; i < 20; ++i) {
    cache.keep(std::to_string(i), object_of(i));
    uintmax_t total = 0;
    for (auto& file : std::filesystem::directory_iterator(scratch.path())) total += file.file_size();
    EXPECT_LE(total, 40'000u);
    EXPECT_EQ(cache.find(std::to_string(i)), object_of(i)) << "the newest stays";
  }
}

#ifndef TUTTI_SANITIZE_THREAD
// Processes that write, damage and read the same entries: whoever finds one finds it whole.
TEST(CodeCache, ManyProcessesAtATime) {
  Scratch scratch;
  std::vector<pid_t> children;
  for (int p = 0; p < 4; ++p) {
    pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Cache cache(scratch.path(), 60'000);
      bool whole = true;
      for (int i = 0; i < 300; ++i) {
        int which = (i * 7 + p) % 9;
        auto found = cache.find(std::to_string(which));
        whole = whole && (!found || *found == object_of(which, 9000));
        if (!found) cache.keep(std::to_string(which), object_of(which, 9000));
        if (i % 20 == 3) std::ofstream(scratch / (std::to_string(which) + ".tutti"), std::ios::binary) << "half";
      }
      ::_exit(whole ? 0 : 1);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  auto files = scratch.files();
  EXPECT_TRUE(std::none_of(files.begin(), files.end(), [](auto& f) { return f.ends_with(".new"); }));
}

// A process of its own, as its kernels are known to this one: how many modules it generated and found.
int generated_by_another(const std::string& directory) {
  std::string command = "TUTTI_TEST_CHILD=1 TUTTI_CACHE=" + directory + " TUTTI_BACKEND=native /proc/" +
                        std::to_string(::getpid()) + "/exe --gtest_filter=NativeChild.Compiles >/dev/null";
  int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(NativeChild, Compiles) {
  if (!std::getenv("TUTTI_TEST_CHILD")) GTEST_SKIP() << "runs for NativeCache.AnotherProcessGeneratesNothing";
  NoGrad no_grad;
  auto f = compile([](const Tensor& x) { return (x * 2 + 1).sin(); });
  Tensor x = ones({100});
  f(x);
  bool right = allclose(f(x), (x * 2 + 1).sin());
  std::_Exit(right ? 10 + static_cast<int>(graph::native::library_stats().generated) : 1);
}

TEST(NativeCache, WhatWasForgottenIsFoundAgain) {
  if (!graph::native::unavailable().empty()) GTEST_SKIP() << graph::native::unavailable();
  NoGrad no_grad;
  auto f = [](const Tensor& x) { return (x * 2 + 1).sin() * x; };
  Tensor x = ones({100});
  auto first = compile(f, {.backend = "native"});
  first(x), first(x);
  auto before = graph::native::library_stats();
  graph::native::forget_entries();
  auto second = compile(f, {.backend = "native"});
  second(x);
  EXPECT_TRUE(allclose(second(x), f(x)));
  EXPECT_TRUE(allclose(first(x), f(x))) << "code that is in use stays";
  auto after = graph::native::library_stats();
  EXPECT_EQ(after.generated + after.cached, before.generated + before.cached + 1);
  EXPECT_EQ(after.kernels, 1);
}

TEST(NativeCache, AnotherProcessGeneratesNothing) {
  if (!graph::native::unavailable().empty()) GTEST_SKIP() << graph::native::unavailable();
  Scratch scratch;
  EXPECT_EQ(generated_by_another(scratch.path()), 11);
  ASSERT_EQ(scratch.files().size(), 1u);
  EXPECT_EQ(generated_by_another(scratch.path()), 10);
  damage(scratch / scratch.files()[0], [](std::string& s) { s.resize(s.size() - 100); });
  EXPECT_EQ(generated_by_another(scratch.path()), 11) << "what is damaged is made anew";
  EXPECT_EQ(generated_by_another(scratch.path()), 10);
}
#endif

}  // namespace
}  // namespace tutti::test
