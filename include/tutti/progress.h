// A progress bar. On a terminal it redraws one line; in a log it prints a line every few seconds.
//
//   Progress bar(steps, {.label = "epoch 1"});
//   for (...) bar.step({{"loss", loss}});
//
//   epoch 1  42%|████████▍           | 420/1000, 00:16 left, 35.1/s, loss 0.1234
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tutti {

/// Options of a Progress.
struct ProgressOptions {
  std::string label = {};
  int64_t start = 0;                                 // steps done before, if the run was resumed
  bool enabled = true;                               // false: prints nothing, e.g. {.enabled = rank == 0}
  double seconds = 10;                               // time between lines in a log
  std::optional<bool> terminal = {};                 // default: whether standard error is such a terminal
  std::optional<bool> color = {};                    // default: true unless the environment has NO_COLOR
  std::optional<int> width = {};                     // default: the terminal's
  std::function<void(std::string_view)> write = {};  // default: to standard error
  std::function<double()> clock = {};                // in seconds; default: a steady clock
};

/// A progress bar. Several threads may use it. finish(), which the destructor calls, prints the last state.
class Progress {
 public:
  using Values = std::initializer_list<std::pair<std::string_view, double>>;

  /// Makes a bar of `total` steps; 0 if their number is unknown.
  explicit Progress(int64_t total, ProgressOptions options = {});
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Adds `count` steps. Shows the values behind the bar; a value that is not passed again stays as it was.
  void step(Values values = {}, int64_t count = 1);
  /// Prints a line of text above the bar.
  void print(std::string_view text);
  /// Prints the last state and ends the line. Further calls do nothing.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
