// A progress bar. On a terminal it is one line, drawn again and again; in a log it is a line every few seconds.
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

struct ProgressOptions {
  std::string label = {};
  int64_t start = 0;                                 // steps that were done before, in a run that is resumed
  bool enabled = true;                               // false: prints nothing, e.g. {.enabled = rank == 0}
  double seconds = 10;                               // between lines in a log
  std::optional<bool> terminal = {};                 // default: whether standard error is one that can redraw a line
  std::optional<bool> color = {};                    // default: unless the environment has NO_COLOR
  std::optional<int> width = {};                     // default: the terminal's
  std::function<void(std::string_view)> write = {};  // default: to standard error
  std::function<double()> clock = {};                // in seconds; default: a steady clock
};

/// May be used from several threads. The last state is printed by finish(), at the latest when the bar goes.
class Progress {
 public:
  using Values = std::initializer_list<std::pair<std::string_view, double>>;

  /// `total` steps; 0 where nobody knows how many.
  explicit Progress(int64_t total, ProgressOptions options = {});
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `count` steps more. Values are shown behind the bar; one that is not given keeps its last.
  void step(Values values = {}, int64_t count = 1);
  /// A line of text above the bar.
  void print(std::string_view text);
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
