// What processes print: line by line, with whose it is in front, and into files.
#pragma once

#include <chrono>
#include <deque>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

namespace tutti::tool {

class Signals;

/// Our own output (1) and error output (2). Whoever reads them may be slow, or stop for a while: what is printed waits
/// here meanwhile, and nothing else does.
class Printer {
 public:
  void print(int to, std::string_view text) { waiting(to) += text; }
  /// Whether there is something to be written there.
  bool has(int to) const { return !(to == 1 ? out_ : err_).empty(); }
  /// Whether so much waits that no more should be taken from whoever prints.
  bool is_full(int to) const { return (to == 1 ? out_ : err_).size() > kMost; }
  /// As much as can be written without waiting.
  void write(int to);
  /// All of it; false: a signal that ends programs came before the reader took it, or the time was over.
  bool flush(Signals& signals, std::optional<std::chrono::milliseconds> time = {});

 private:
  static constexpr size_t kMost = 1 << 20;
  std::string& waiting(int to) { return to == 1 ? out_ : err_; }
  std::string out_, err_;
};

/// One stream (standard output or error) of one process.
class Lines {
 public:
  /// `to`: our own stream (1 or 2), -1: none. `file`: "" for none.
  Lines(Printer& printer, int to, std::string prefix, const std::string& file, std::deque<std::string>& last);
  void add(std::string_view bytes);
  /// The stream has ended: what is left is a line too.
  void end();
  bool is_full() const { return to_ >= 0 && printer_.is_full(to_); }

 private:
  void line(std::string_view text);
  static constexpr size_t kLongest = 64 << 10;  // longer lines are cut
  static constexpr size_t kLast = 20;
  Printer& printer_;
  int to_;
  std::string prefix_, rest_;
  std::ofstream file_;
  std::deque<std::string>& last_;  // lines of both streams of the process
};

/// A line from a descriptor, and not a byte more.
std::string read_line(int from);
/// All of it, to a descriptor.
void write_all(int to, std::string_view text);

}  // namespace tutti::tool
