#include "tools/tutti/output.h"

#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tools/tutti/command.h"
#include "tools/tutti/signals.h"
#include "tools/tutti/terminal.h"

namespace tutti::tool {

std::string read_line(int from) {
  std::string line;
  for (char c = 0; ::read(from, &c, 1) == 1 && c != '\n';) line += c;
  return line;
}

void write_all(int to, std::string_view text) {
  while (!text.empty()) {
    ssize_t n = ::write(to, text.data(), text.size());
    if (n < 0 && errno != EINTR) return;  // nobody reads it any more; the ranks go on
    if (n > 0) text.remove_prefix(static_cast<size_t>(n));
  }
}

// ---- Printer

Printer::Printer()
    : terminal_{can_redraw(1), can_redraw(2)},
      one_terminal_(terminal_[0] && terminal_[1] && same_terminal(1, 2)),
      screen_(terminal_[1]   ? 2
              : terminal_[0] ? 1
                             : 0) {}

void Printer::print(int to, std::string_view text) {
  if (one_terminal_) to = screen_;
  if (to == screen_) erase();
  waiting(to) += text;
}

void Printer::show(int number, const std::string& line) {
  if (line.empty()) {
    changed_ = shown_.erase(number) > 0 || changed_;
    return;
  }
  std::string& known = shown_[number];
  changed_ = changed_ || known != line;
  known = line;
}

// They are also drawn again at once after lines that went in their place.
std::optional<Printer::Clock::time_point> Printer::next_refresh() const {
  if (!screen_ || has(screen_)) return {};
  if (drawn_.empty() && !shown_.empty()) return not_before_;
  if (changed_) return std::max(drawn_at_ + kRedraw, not_before_);
  return {};
}

void Printer::refresh() {
  auto due = next_refresh();
  if (!due || Clock::now() < *due) return;
  if (!in_background(screen_)) return draw();
  erase();
  not_before_ = Clock::now() + std::chrono::seconds(1);
}

// Rows that the terminal has made narrower since have become several. Each is cleared by itself: who clears all of a
// screen at once finds it again in what tmux scrolls back to.
void Printer::erase() {
  if (drawn_.empty()) return;
  int columns = window_size(screen_).columns, rows = 0;
  for (int n : drawn_) rows += std::max(1, (n + columns - 1) / columns);
  std::string& text = waiting(screen_);
  text += "\r\x1b[K";
  for (int row = 1; row < rows; ++row) text += "\x1b[A\x1b[K";
  drawn_.clear();
}

// Lines that the terminal would wrap cannot be erased, so they are cut, and it is told not to wrap meanwhile.
void Printer::draw() {
  erase();
  changed_ = false;
  drawn_at_ = Clock::now();
  if (shown_.empty()) return;
  WindowSize window = window_size(screen_);
  auto most = static_cast<size_t>(std::clamp(window.rows / 3, 1, 8));
  std::string text = "\x1b[?7l";
  size_t lines = shown_.size() > most && most > 1 ? most - 1 : std::min(most, shown_.size());
  auto add = [&](const std::string& line) {
    std::string cut = cut_to_columns(line, window.columns - kNotDrawn);
    if (!drawn_.empty()) text += '\n';
    text += cut;
    drawn_.push_back(columns_of(plain_text(cut)));
  };
  for (auto it = shown_.begin(); lines-- > 0; ++it) add(it->second);
  if (shown_.size() > drawn_.size() && most > 1) add(fmt::format("... and {} more", shown_.size() - drawn_.size()));
  waiting(screen_) += text + "\x1b[?7h";
}

// The descriptors may be shared with others, so they stay as they are, and block. But one that is ready takes PIPE_BUF
// bytes at once; whole lines, where they are not longer, so that those of different processes never mix.
void Printer::write(int to) {
  std::string& text = waiting(to);
  size_t done = 0;
  for (int turn = 0; turn < 64 && done < text.size(); ++turn) {
    pollfd ready{to, POLLOUT, 0};
    if (::poll(&ready, 1, 0) <= 0) break;
    size_t most = std::min<size_t>(PIPE_BUF, text.size() - done);
    size_t end = text.rfind('\n', done + most - 1);
    if (end != std::string::npos && end >= done) most = end + 1 - done;
    ssize_t n = ::write(to, text.data() + done, most);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    done = n < 0 ? text.size() : done + static_cast<size_t>(n);  // nobody reads it any more; the ranks go on
  }
  text.erase(0, done);
}

bool Printer::flush(Signals& signals, std::optional<std::chrono::milliseconds> time) {
  auto end = time ? Clock::now() + *time : Clock::time_point::max();
  if (shown_.empty()) erase();
  while (has(1) || has(2)) {
    if (Clock::now() >= end) return false;
    pollfd polls[] = {{signals.descriptor(), POLLIN, 0},
                      {signals.input(), POLLIN, 0},
                      {has(1) ? 1 : -1, POLLOUT, 0},
                      {has(2) ? 2 : -1, POLLOUT, 0}};
    ::poll(polls, 4, 200);
    for (int to : {1, 2}) write(to);
    while (int signal = signals.take())
      if (ends_programs(signal)) return false;
  }
  return true;
}

// ---- Lines

Lines::Lines(Printer& printer, int to, std::string prefix, const std::string& file, std::deque<std::string>& last)
    : printer_(printer), to_(to), number_(printer.new_number()), prefix_(std::move(prefix)), last_(last) {
  if (file.empty()) return;
  file_.open(file, std::ios::binary | std::ios::trunc);
  if (!file_) throw UsageError("the file " + file + " cannot be written: " + std::strerror(errno));
}

void Lines::write_to_file(std::string_view text, bool whole) {
  if (file_.is_open()) (file_ << plain_text(text) << (whole ? "\n" : "")).flush();
}

void Lines::add(std::string_view bytes) {
  while (!bytes.empty()) {
    size_t n = 1;
    if (bytes[0] == '\n') {
      line();
    } else if (bytes[0] == '\r') {
      returned_ = true;  // what follows takes the place of the line, unless it ends here
    } else {
      if (std::exchange(returned_, false)) {
        rest_.clear();
        redrawn_ = true;
      } else if (redrawn_ && rest_.ends_with("\x1b[K")) {
        line();  // a bar that was complete: what follows is none of it (an error that ends the program, mostly)
      }
      n = std::min(bytes.find_first_of("\r\n"), bytes.size());
      rest_ += bytes.substr(0, n);
    }
    bytes.remove_prefix(n);
  }
  if (rest_.size() > kLongest)
    piece();
  else if (returned_ || redrawn_)
    redrawn();
}

void Lines::line() {
  if (redrawn_) rest_.erase(rest_.find_last_not_of(' ') + 1);  // where a longer one was before
  if (to_ >= 0) {
    printer_.show(number_, "");
    printer_.print(to_, prefix_ + (printer_.is_terminal(to_) ? colored_text(rest_) : rest_) + "\n");
  }
  write_to_file(rest_, true);
  last_.push_back(plain_text(rest_));
  if (last_.size() > kLast) last_.pop_front();
  rest_.clear();
  returned_ = redrawn_ = false;
  logged_.reset();
}

// Of a line that is too long to wait for its end.
void Lines::piece() {
  if (to_ >= 0) printer_.print(to_, prefix_ + (printer_.is_terminal(to_) ? colored_text(rest_) : rest_) + "\n");
  write_to_file(rest_, false);
  rest_.clear();
}

// See Note [Redrawn lines].
void Lines::redrawn() {
  bool terminal = to_ >= 0 && printer_.is_terminal(to_);
  std::string plain = plain_text(rest_);
  bool blank = plain.find_first_not_of(' ') == std::string::npos;
  if (terminal) printer_.show(number_, blank ? "" : prefix_ + colored_text(rest_));
  auto now = Printer::Clock::now();
  if (!logged_) logged_ = now;
  if (blank || now - *logged_ < kLog) return;
  logged_ = now;
  if (to_ >= 0 && !terminal) printer_.print(to_, prefix_ + plain + "\n");
  write_to_file(plain, true);
}

void Lines::end() {
  bool blank = rest_.find_first_not_of(' ') == std::string::npos;
  if (redrawn_ ? !blank : !rest_.empty()) line();
  if (to_ >= 0) printer_.show(number_, "");
  if (file_.is_open()) file_.close();
}

}  // namespace tutti::tool
