// What processes print: line by line, with whose it is in front, and into files.
#pragma once

#include <deque>
#include <fstream>
#include <string>
#include <string_view>

namespace tutti::tool {

/// One stream (standard output or error) of one process.
class Lines {
 public:
  /// `to`: our own stream (1 or 2), -1: none. `file`: "" for none.
  Lines(int to, std::string prefix, const std::string& file, std::deque<std::string>& last);
  void add(std::string_view bytes);
  /// The stream has ended: what is left is a line too.
  void end();

 private:
  void line(std::string_view text);
  static constexpr size_t kLongest = 64 << 10;  // longer lines are cut
  static constexpr size_t kLast = 20;
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
