// Processes that live and die together: started, listened to, told to end, and never left behind.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/tutti/output.h"

namespace tutti::tool {

/// A descriptor that is closed with it.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }
  int get() const { return fd_; }
  void close();

 private:
  int fd_ = -1;
};

/// Signals for this process that are to be passed on, as something that can be waited for. One for the program.
class Signals {
 public:
  Signals();
  int descriptor() const { return fd_.get(); }
  /// The next that came; 0: none.
  int take();
  /// What a child does before it becomes another program.
  void restore() const;

 private:
  Descriptor fd_;
};

struct Process {
  std::string name;    // "rank 3", for messages
  std::string prefix;  // of its lines
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> environment;  // beyond this process's
  std::vector<int> cores;                                        // empty: all
  std::string file;  // what it prints goes to file.out and file.err too; "": nowhere
  /// Instead of signals (which do not reach another host): its standard input is told first this line, then
  /// "signal <n>", and is closed when it is to end. Without it the input is empty.
  std::optional<std::string> control;
};

struct SuperviseOptions {
  bool print = true;
  bool explain = true;  // which failed, and its last lines
  // How long others may go on when one has failed, or when told to end, before they are told again, and then killed.
  std::chrono::milliseconds grace{5000};
};

struct Ending {
  int code = 0;           // 0: all ended well
  int first = -1;         // which failed first; -1: none of these
  std::string text;       // "exit code 3", "killed by signal 9 (Killed)"
  int signal = 0;         // that told us to end
  bool hopeless = false;  // it would be the same another time
};

/// Runs them until all have ended. `interrupted` is asked several times a second, and ends them when it gives a text.
/// `input` is a descriptor whose lines "signal <n>" and whose end are orders as signals are; -1: none.
Ending supervise(const std::vector<Process>& processes, const SuperviseOptions& options, Signals& signals,
                 const std::function<std::optional<std::string>()>& interrupted = {}, int input = -1);

}  // namespace tutti::tool
