// Processes that live and die together: started, listened to, told to end, and never left behind.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/tutti/output.h"
#include "tools/tutti/signals.h"

namespace tutti::tool {

struct Process {
  std::string name;    // "rank 3", for messages
  int rank = -1;       // 3; -1: it is none
  std::string prefix;  // of its lines
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> environment;  // beyond this process's
  std::vector<int> cores;                                        // empty: all
  std::string file;  // what it prints goes to file.out and file.err too; "": nowhere
  /// Instead of signals (which do not reach another host): its standard input is told first this line, then
  /// "signal <n>", and is closed when it is to end. Without it the input is empty.
  std::optional<std::string> control;
};

struct Ending {
  int code = 0;            // 0: all ended well
  int first = -1;          // which failed first; -1: none of these
  std::string text;        // "exit code 3", "killed by signal 9 (Killed)"
  bool secondary = false;  // it only said that another rank had failed
  int signal = 0;          // that told us to end
  bool by_signal = false;  // the failure came after that
  bool hopeless = false;   // it would be the same another time
};

struct SuperviseOptions {
  bool print = true;
  bool explain = true;  // which failed, its last lines, and how all ended
  bool redraw = true;   // where ours is a terminal, theirs is one too, whose lines may be redrawn
  // How long others may go on when one has failed, or when told to end, before they are told again, and then killed.
  std::chrono::milliseconds grace{5000};
  /// Asked several times a second; a text says why all are to end.
  std::function<std::optional<std::string>()> interrupted = {};
  /// Told of the first failure as soon as it happens; and once more, if that turns out to follow from another's.
  std::function<void(const Ending&)> failed = {};
};

/// Runs them until all have ended.
Ending supervise(const std::vector<Process>& processes, const SuperviseOptions& options, Signals& signals,
                 Printer& printer);

}  // namespace tutti::tool
