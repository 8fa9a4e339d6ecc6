#include "tools/tutti/output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "tools/tutti/command.h"

namespace tutti::tool {

std::string read_line(int from) {
  std::string line;
  for (char c = 0; ::read(from, &c, 1) == 1 && c != '\n';) line += c;
  return line;
}

void write_all(int to, std::string_view text) {
  while (!text.empty()) {
    ssize_t n = ::write(to, text.data(), text.size());
    if (n < 0 && errno == EAGAIN) {
      pollfd ready{to, POLLOUT, 0};
      ::poll(&ready, 1, -1);
      continue;
    }
    if (n < 0 && errno != EINTR) return;  // nobody reads it any more; the ranks go on
    if (n > 0) text.remove_prefix(static_cast<size_t>(n));
  }
}

Lines::Lines(int to, std::string prefix, const std::string& file, std::deque<std::string>& last)
    : to_(to), prefix_(std::move(prefix)), last_(last) {
  if (file.empty()) return;
  file_.open(file, std::ios::binary | std::ios::app);
  if (!file_) throw UsageError("the file " + file + " cannot be written");
}

void Lines::line(std::string_view text) {
  // One write for a line, so that lines of different processes never mix.
  if (to_ >= 0) write_all(to_, prefix_ + std::string(text) + "\n");
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
