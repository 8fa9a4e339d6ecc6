// What processes print: line by line, with whose it is in front, and into files.
//
// Note [Redrawn lines]
// A progress bar writes its line again and again, with a carriage return before it. On a terminal such lines are shown
// below all others, at the bottom, one for each process that has one, until they end. In a log, and in the files of
// --log, one is written every ten seconds, and as it was at the end.
#pragma once

#include <chrono>
#include <deque>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::tool {

class Signals;

/// Our own output (1) and error output (2). Whoever reads them may be slow, or stop for a while: what is printed waits
/// here meanwhile, and nothing else does.
class Printer {
 public:
  using Clock = std::chrono::steady_clock;
  /// Columns at the end of shown lines that stay free: the last may wrap, and a terminal writes ^C behind them.
  static constexpr int kNotDrawn = 3;

  Printer();
  /// Whether lines that are printed there can be redrawn.
  bool is_terminal(int to) const { return terminal_[to - 1]; }
  void print(int to, std::string_view text);
  /// Shows a line below all others, in the order of the numbers; "" removes it.
  void show(int number, const std::string& line);
  /// A number for a stream whose lines may be shown.
  int new_number() { return numbers_++; }
  /// Draws what is shown where that is due.
  void refresh();
  /// When it is due.
  std::optional<Clock::time_point> next_refresh() const;
  /// Takes the shown lines off the terminal, which somebody else may use until the next refresh().
  void hide() { erase(); }
  /// Whether there is something to be written there.
  bool has(int to) const { return !(to == 1 ? out_ : err_).empty(); }
  /// Whether so much waits that no more should be taken from whoever prints.
  bool is_full(int to) const { return (to == 1 && !one_terminal_ ? out_ : err_).size() > kMost; }
  /// As much as can be written without waiting.
  void write(int to);
  /// All of it; false: a signal that ends programs came before the reader took it, or the time was over.
  bool flush(Signals& signals, std::optional<std::chrono::milliseconds> time = {});

 private:
  static constexpr size_t kMost = 1 << 20;
  static constexpr auto kRedraw = std::chrono::milliseconds(50);
  std::string& waiting(int to) { return to == 1 ? out_ : err_; }
  void draw();
  void erase();
  std::string out_, err_;
  bool terminal_[2];
  bool one_terminal_;  // both are the same: all goes to err_, in its order
  int screen_;         // where lines are shown: 2, 1 or 0 (nowhere)
  std::map<int, std::string> shown_;
  std::vector<int> drawn_;  // columns of each line that is on the screen, once what waits is written
  bool changed_ = false;    // since they were drawn
  Clock::time_point drawn_at_{}, not_before_{};
  int numbers_ = 0;
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
  void line();
  void piece();
  void redrawn();
  void write_to_file(std::string_view text, bool whole);
  static constexpr size_t kLongest = 64 << 10;  // longer lines are cut
  static constexpr size_t kLast = 20;
  static constexpr auto kLog = std::chrono::seconds(10);  // between redrawn lines in a log
  Printer& printer_;
  const int to_, number_;
  std::string prefix_, rest_;
  bool returned_ = false;  // the last character was a carriage return
  bool redrawn_ = false;   // the line has been written before
  std::optional<Printer::Clock::time_point> logged_;
  std::ofstream file_;
  std::deque<std::string>& last_;  // lines of both streams of the process
};

/// A line from a descriptor, and not a byte more.
std::string read_line(int from);
/// All of it, to a descriptor.
void write_all(int to, std::string_view text);

}  // namespace tutti::tool
