#include "tests/support/crash.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "tests/support/scratch.h"
#include "tutti/context.h"
#include "tutti/io.h"
#include "tutti/ops.h"

namespace tutti::test {
namespace {

// Checkpoint number n: every part of it says n, and its size depends on n.
io::State checkpoint(int64_t n) {
  Tensor values = full({1000 + n % 7 * 4000}, static_cast<double>(n), {f64});
  return {{"number", n}, {"values", values}, {"more", io::State{{"list", io::ValueList{n, values.slice(0, 0, 10)}}}}};
}

int64_t number_of(const io::State& state) {
  auto n = state["number"].as<int64_t>();
  auto all = [&](const Tensor& t) {
    for (double v : t.to_vector<double>())
      if (v != static_cast<double>(n)) return false;
    return true;
  };
  auto& list = state["more"].as<io::State>()["list"].as<io::ValueList>();
  const auto& values = state["values"].as<Tensor>();
  bool whole = values.numel() == 1000 + n % 7 * 4000 && all(values) && list[0].as<int64_t>() == n &&
               list[1].as<Tensor>().numel() == 10 && all(list[1].as<Tensor>());
  return whole ? n : -1;
}

[[noreturn]] void write_for_ever(const std::string& path, int64_t from) {
  ThreadsGuard one(1);  // a forked process has none of its parent's OpenMP threads
  try {
    for (int64_t n = from;; ++n) io::save_state(path, checkpoint(n));
  } catch (...) {
    ::_exit(1);
  }
}

}  // namespace

CrashResult crash_writers(int rounds, unsigned seed) {
  Scratch scratch;
  std::string path = scratch / "checkpoint";
  std::mt19937 random(seed);
  CrashResult result;
  int64_t last = 1;
  io::save_state(path, checkpoint(last));
  double longest = 3000;  // microseconds that a writer may have; adapted so that about half of them finish something
  for (; result.kills < rounds; ++result.kills) {
    int started[2];
    if (::pipe(started) != 0) return result.failure = "no pipe", result;
    pid_t child = ::fork();
    if (child == 0) {
      if (::write(started[1], "x", 1) == 1) write_for_ever(path, last + 1);
      ::_exit(1);
    }
    char ready;
    bool begun = ::read(started[0], &ready, 1) == 1;
    ::close(started[0]);
    ::close(started[1]);
    ::usleep(static_cast<useconds_t>(random() % static_cast<unsigned>(longest)));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!begun || !WIFSIGNALED(status)) return result.failure = "a writer ended by itself", result;
    try {
      int64_t now = number_of(io::load_state(path));
      if (now < last) return result.failure = "after " + std::to_string(last) + " came " + std::to_string(now), result;
      if (now > last) ++result.replaced;
      longest = std::clamp(longest * (now > last ? 0.9 : 1.1), 200.0, 200000.0);
      last = now;
    } catch (const std::exception& error) {
      return result.failure = error.what(), result;
    }
  }
  io::save_state(path, checkpoint(last + 1));
  if (scratch.files().size() != 1) result.failure = "files of killed writers were left";
  return result;
}

}  // namespace tutti::test
