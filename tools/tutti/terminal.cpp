#include "tools/tutti/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace tutti::tool {
namespace {

constexpr char kEscape = '\x1b';

bool begins_character(char c) { return (c & 0xc0) != 0x80; }

// How many bytes the control sequence at the beginning of the text has; all of them where it is not complete.
size_t sequence_length(std::string_view text) {
  auto is_in = [&](size_t i, int low, int high) {
    return i < text.size() && static_cast<unsigned char>(text[i]) >= low && static_cast<unsigned char>(text[i]) <= high;
  };
  size_t i = 1;
  if (i < text.size() && text[i] == '[') {  // CSI: parameters, and a letter
    for (++i; is_in(i, 0x20, 0x3f);) ++i;
  } else if (i < text.size() && (text[i] == ']' || text[i] == 'P')) {  // a text, such as the window's title
    while (++i < text.size() && text[i] != '\a')
      if (text[i] == kEscape) return std::min(i + 2, text.size());
  } else {
    while (is_in(i, 0x20, 0x2f)) ++i;
  }
  return std::min(i + 1, text.size());
}

bool is_color(std::string_view sequence) { return sequence.size() > 2 && sequence[1] == '[' && sequence.back() == 'm'; }

std::string without_sequences(std::string_view line, bool keep_colors) {
  std::string text;
  for (size_t i = 0; i < line.size();) {
    size_t n = line[i] == kEscape ? sequence_length(line.substr(i)) : 1;
    std::string_view part = line.substr(i, n);
    bool control = static_cast<unsigned char>(line[i]) < 0x20 || line[i] == 0x7f;
    if (line[i] == '\t' || (line[i] == kEscape ? keep_colors && is_color(part) : !control)) text += part;
    i += n;
  }
  return text;
}

}  // namespace

WindowSize window_size(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return {};
  return {size.ws_col, size.ws_row ? size.ws_row : 24};
}

bool can_redraw(int fd) {
  const char* kind = std::getenv("TERM");
  return ::isatty(fd) == 1 && kind && std::string_view(kind) != "dumb" && !std::getenv(kReadByLines);
}

bool same_terminal(int a, int b) {
  struct stat x{}, y{};
  return ::isatty(a) == 1 && ::isatty(b) == 1 && ::fstat(a, &x) == 0 && ::fstat(b, &y) == 0 && x.st_rdev == y.st_rdev;
}

bool in_background(int terminal) {
  pid_t group = ::tcgetpgrp(terminal);  // -1: it is not the terminal of our session
  return group > 0 && group != ::getpgrp();
}

std::optional<std::pair<Descriptor, Descriptor>> make_pseudoterminal(const WindowSize& size) {
  Descriptor ours(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  char name[64];
  if (ours.get() < 0 || ::grantpt(ours.get()) != 0 || ::unlockpt(ours.get()) != 0 ||
      ::ptsname_r(ours.get(), name, sizeof name) != 0)
    return {};
  Descriptor theirs(::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios mode{};
  if (theirs.get() < 0 || ::tcgetattr(theirs.get(), &mode) != 0) return {};
  ::cfmakeraw(&mode);
  if (::tcsetattr(theirs.get(), TCSANOW, &mode) != 0) return {};
  resize_pseudoterminal(ours.get(), size);
  return std::pair(std::move(ours), std::move(theirs));
}

void resize_pseudoterminal(int fd, const WindowSize& size) {
  winsize value{};
  value.ws_col = static_cast<unsigned short>(std::max(1, size.columns));
  value.ws_row = static_cast<unsigned short>(std::max(1, size.rows));
  ::ioctl(fd, TIOCSWINSZ, &value);
}

std::string plain_text(std::string_view line) { return without_sequences(line, false); }

std::string colored_text(std::string_view line) {
  std::string text = without_sequences(line, true);
  if (text.find(kEscape) != std::string::npos) text += "\x1b[0m";
  return text;
}

std::string cut_to_columns(std::string_view colored, int columns) {
  std::string text;
  for (size_t i = 0; i < colored.size();) {
    size_t n = colored[i] == kEscape ? sequence_length(colored.substr(i)) : 1;
    if (colored[i] != kEscape && begins_character(colored[i])) --columns;
    if (columns >= 0 || colored[i] == kEscape) text += colored.substr(i, n);
    i += n;
  }
  return text;
}

int columns_of(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), begins_character));
}

}  // namespace tutti::tool
