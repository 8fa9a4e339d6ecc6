// Descriptors, and what this process is told: by signals, and by orders from the host that started it.
#pragma once

#include <sys/types.h>

#include <deque>
#include <string>
#include <utility>

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

/// Throws by what errno says, and says what to do about it.
[[noreturn]] void cannot(const char* what);
/// What a system call gave.
inline Descriptor checked(int fd, const char* what) {
  if (fd < 0) cannot(what);
  return Descriptor(fd);
}
std::pair<Descriptor, Descriptor> make_pipe();

/// Signals for this process that are to be passed on, as something that can be waited for. One for the program. Those
/// that it was started to ignore (nohup) it leaves ignored, and so do its children.
class Signals {
 public:
  Signals();
  /// From now on, lines "signal <n>" from there count as signals do, and so does its end, as SIGTERM.
  void obey(int input) {
    input_ = input;
    obeys_ = true;
  }
  /// Whether somebody gives orders, or did: who that is has been told what this process is told.
  bool obeys() const { return obeys_; }
  int descriptor() const { return fd_.get(); }
  /// Of orders; -1: there are none.
  int input() const { return input_; }
  /// The next that came, without waiting; 0: none.
  int take();
  /// What a child does before it becomes another program.
  void restore() const;

 private:
  void read_orders();
  Descriptor fd_;
  int input_ = -1;
  std::string orders_;
  std::deque<int> ordered_;
  bool pipes_ignored_ = false, obeys_ = false;
};

bool ends_programs(int signal);

}  // namespace tutti::tool
