#include "tools/tutti/output.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tools/tutti/command.h"
#include "tools/tutti/signals.h"

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
  using Clock = std::chrono::steady_clock;
  auto end = time ? Clock::now() + *time : Clock::time_point::max();
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

Lines::Lines(Printer& printer, int to, std::string prefix, const std::string& file, std::deque<std::string>& last)
    : printer_(printer), to_(to), prefix_(std::move(prefix)), last_(last) {
  if (file.empty()) return;
  file_.open(file, std::ios::binary | std::ios::trunc);
  if (!file_) throw UsageError("the file " + file + " cannot be written: " + std::strerror(errno));
}

void Lines::line(std::string_view text) {
  if (to_ >= 0) printer_.print(to_, prefix_ + std::string(text) + "\n");
  last_.emplace_back(text);
  if (last_.size() > kLast) last_.pop_front();
}

void Lines::add(std::string_view bytes) {
  if (file_.is_open()) file_.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush();
  while (!bytes.empty()) {
    size_t end = bytes.find('\n');
    if (end == std::string_view::npos) {
      rest_ += bytes;
      break;
    }
    rest_ += bytes.substr(0, end);
    line(rest_);
    rest_.clear();
    bytes.remove_prefix(end + 1);
  }
  if (rest_.size() > kLongest) {
    line(rest_);
    rest_.clear();
  }
}

void Lines::end() {
  if (!rest_.empty()) line(rest_);
  rest_.clear();
  if (file_.is_open()) file_.close();
}

}  // namespace tutti::tool
