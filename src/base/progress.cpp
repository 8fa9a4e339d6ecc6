#include "tutti/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace tutti {
namespace {

constexpr double kRedraw = 0.1;              // seconds between drawings on a terminal
constexpr int kShortest = 5, kLongest = 40;  // columns of the bar
constexpr double kMemory = 15;               // seconds over which the rate is averaged, about

std::string variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT: nobody sets the environment meanwhile
  return value ? value : "";
}

bool terminal_redraws() { return ::isatty(STDERR_FILENO) == 1 && variable("TERM") != "dumb"; }

bool shows_unicode() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (std::string value = variable(name); !value.empty())
      return value.find("UTF-8") != std::string::npos || value.find("utf8") != std::string::npos;
  return false;
}

int terminal_width() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void write_to_stderr(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// 75 → "01:15", 3700 → "1:01:40".
std::string duration(double seconds) {
  if (!(seconds >= 0 && seconds < 1e8)) return "--:--";
  auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{:02}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

// 3 → "3", 0.25 → "0.2500", 12345.6 → "12.3k": short, and as wide after the next step.
std::string number_text(double value) {
  double size = std::abs(value);
  if (size >= 1e4 && size < 1e15) {
    auto [unit, letter] = size >= 999.95e9   ? std::pair(1e12, 'T')
                          : size >= 999.95e6 ? std::pair(1e9, 'G')
                          : size >= 999.95e3 ? std::pair(1e6, 'M')
                                             : std::pair(1e3, 'k');
    return fmt::format("{:.1f}{}", value / unit, letter);
  }
  if (size < 1e15 && (size >= 1000 || value == std::floor(value))) return fmt::format("{:.0f}", value);
  return fmt::format("{:#.4g}", value);
}

std::string rate_text(double rate) {
  if (!(rate > 0)) return "-/s";
  if (rate >= 1e4) return number_text(rate) + "/s";
  if (rate >= 1) return fmt::format("{:.{}f}/s", rate, rate < 99.95 ? 1 : 0);
  return fmt::format("{:.3g} s each", 1 / rate);
}

std::string bar_text(double share, int width, bool unicode) {
  constexpr const char* eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  auto parts = static_cast<int>(share * width * (unicode ? 8 : 1));
  int full = unicode ? parts / 8 : parts, rest = unicode ? parts % 8 : 0;
  std::string bar;
  for (int i = 0; i < full; ++i) bar += unicode ? "█" : "#";
  bar += eighths[rest];
  return bar.append(static_cast<size_t>(width - full - (rest > 0)), ' ');
}

// Bytes that begin a character are columns, near enough.
size_t columns_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}
std::string_view cut(std::string_view text, size_t columns) {
  for (size_t i = 0; i < text.size(); ++i)
    if ((text[i] & 0xc0) != 0x80 && columns-- == 0) return text.substr(0, i);
  return text;
}

}  // namespace

struct Progress::Impl {
  Impl(int64_t steps, ProgressOptions given) : total(steps), options(std::move(given)), done(options.start) {
    if (!options.write) options.write = write_to_stderr;
    if (!options.clock) options.clock = steady_seconds;
    terminal = options.terminal.value_or(terminal_redraws());
    color = terminal && options.color.value_or(variable("NO_COLOR").empty());
    unicode = shows_unicode();
    begun = last_step = last_shown = options.clock();
    if (terminal && options.enabled) draw();
  }

  void step(Values given, int64_t count) {
    std::lock_guard lock(mutex);
    for (auto& [name, value] : given) {
      auto found = std::find_if(values.begin(), values.end(), [&](auto& v) { return v.first == name; });
      if (found == values.end())
        values.emplace_back(name, value);
      else
        found->second = value;
    }
    done += count;
    double now = options.clock();
    update_rate(now, static_cast<double>(count));
    if (!options.enabled) return;
    if (terminal && (now - last_shown >= kRedraw || done == total)) {
      last_shown = now;
      draw();
    } else if (!terminal && now - last_shown >= options.seconds && done != total) {
      last_shown = now;
      log_line(now);
    }
  }

  // Steps and seconds fade away together: their quotient follows the last few seconds, and is never jumpy at the start.
  void update_rate(double now, double count) {
    double elapsed = std::max(now - last_step, 0.0), fade = std::exp(-elapsed / kMemory);
    last_step = now;
    recent_steps = recent_steps * fade + count;
    recent_seconds = recent_seconds * fade + elapsed;
  }
  double rate() const { return recent_seconds > 0 ? recent_steps / recent_seconds : 0; }
  // What is left to wait for and how fast it goes; when there is nothing left, what it took.
  std::string timing_text(double now) const {
    double elapsed = now - begun;
    if (total > 0 && done < total && !finished) return fmt::format("{} left, {}", duration(left()), rate_text(rate()));
    return fmt::format("in {}, {}", duration(elapsed),
                       rate_text(elapsed > 0 ? static_cast<double>(done - options.start) / elapsed : 0));
  }
  double left() const { return done >= total ? 0 : static_cast<double>(total - done) / rate(); }
  double share() const {
    return std::clamp(static_cast<double>(done) / static_cast<double>(std::max<int64_t>(total, 1)), 0.0, 1.0);
  }
  static std::string value_text(const std::pair<std::string, double>& value) {
    return fmt::format(", {} {}", value.first, number_text(value.second));
  }

  void draw() {
    std::string head = options.label.empty() ? "" : options.label + " ", tail;
    if (total > 0) {
      head += fmt::format("{:3.0f}%|", std::floor(share() * 100));
      tail = fmt::format("| {}/{}", done, total);
    } else {
      tail = fmt::format("{}", done);
    }
    if (rate() > 0 || finished) tail += ", " + timing_text(options.clock());
    int width = options.width.value_or(terminal_width()) - 1;  // the last column may wrap
    auto room = [&] { return width - static_cast<int>(columns_of(head) + columns_of(tail)); };
    // Values that would not fit beside the shortest bar are left out.
    for (const auto& value : values)
      if (std::string text = value_text(value);
          static_cast<int>(columns_of(text)) + (total > 0 ? kShortest : 0) <= room())
        tail += text;
      else
        break;
    std::string bar;
    if (total > 0) bar = bar_text(share(), std::clamp(room(), kShortest, kLongest), unicode);
    std::string_view fits =
        cut(tail, static_cast<size_t>(std::max(0, width - static_cast<int>(columns_of(head) + columns_of(bar)))));
    const char *on = color && !bar.empty() ? "\x1b[32m" : "", *off = *on ? "\x1b[0m" : "";
    options.write(fmt::format("\r{}{}{}{}{}\x1b[K", head, on, bar, off, fits));
  }

  void log_line(double now) {
    std::string text = options.label.empty() ? "" : options.label + ": ";
    if (total > 0)
      text += fmt::format("{}/{} ({:.0f}%), ", done, total, std::floor(share() * 100));
    else
      text += fmt::format("{}, ", done);
    text += timing_text(now);
    for (const auto& value : values) text += value_text(value);
    options.write(text + "\n");
  }

  void print(std::string_view text) {
    std::lock_guard lock(mutex);
    if (!options.enabled) return;
    options.write(terminal && !finished ? fmt::format("\r{}\x1b[K\n", text) : fmt::format("{}\n", text));
    if (terminal && !finished) draw();
  }

  void finish() {
    std::lock_guard lock(mutex);
    if (finished || !options.enabled) return;
    finished = true;
    if (terminal) {
      draw();
      options.write("\n");
    } else {
      log_line(options.clock());
    }
  }

  int64_t total;
  ProgressOptions options;
  int64_t done;
  bool terminal, color, unicode, finished = false;
  double begun, last_step, last_shown, recent_steps = 0, recent_seconds = 0;
  std::vector<std::pair<std::string, double>> values;
  std::mutex mutex;
};

Progress::Progress(int64_t total, ProgressOptions options) : impl_(std::make_unique<Impl>(total, std::move(options))) {}
Progress::~Progress() { impl_->finish(); }
void Progress::step(Values values, int64_t count) { impl_->step(values, count); }
void Progress::print(std::string_view text) { impl_->print(text); }
void Progress::finish() { impl_->finish(); }

}  // namespace tutti
