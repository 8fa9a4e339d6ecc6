// The flight record: every rank keeps what it called lately, in fixed memory, always. Put together over ranks it says
// who is slow, and shows all ranks beside each other: as a picture, or in Perfetto (https://ui.perfetto.dev).
//
//   Trace trace = gather_trace();                    // a collective
//   if (rank() == 0) {
//     trace.save("trace.svg", {.last = 50ms});       // a picture
//     trace.save("trace.json");                      // for Perfetto
//     std::cout << trace.summary();                  // a table: which rank the others wait for
//   }
//
// With TUTTI_TRACE=folder (or SpawnOptions::trace) every rank leaves its record there, as rank-<n>.json, when one of
// its collectives fails and when it ends; `tutti trace folder` puts them together. TUTTI_RECORD is the number of calls
// that are kept (512).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/collectives.h"

namespace tutti {

/// The calling rank's record as JSON, oldest call first (docs/run.md has the fields).
std::string flight_record();

/// How a rank comes to the collectives it shares with others.
struct Lateness {
  int rank = 0;
  int64_t calls = 0;  // that could be compared
  int64_t last = 0;   // at which it was the last to come
  double mean = 0;    // seconds after the first to come
  double worst = 0;
  double waited = 0;  // seconds that others waited for it, when it was the last
  std::string call;   // the one at which it was latest
};

/// A moment to mark in the picture of a trace, by the clock of the first rank's host.
struct TraceMark {
  std::chrono::steady_clock::time_point time;
  std::string text;
};

struct TracePicture {
  std::string title = {};     // default: how many ranks, and how long
  std::string subtitle = {};  // default: how long collectives took, and how long programs waited for them
  std::chrono::steady_clock::time_point begin{};  // shows nothing before, by the same clock
  std::chrono::nanoseconds last{};                // shows only so much of the end; 0: all that the records hold
  std::vector<TraceMark> marks = {};              // vertical lines with a text above
};

/// The records of several ranks on one time scale. Ranks of one host share a clock; those of other hosts are moved so
/// that collectives, which all ranks leave together, end at the same time.
class Trace {
 public:
  /// Of texts as flight_record() gives them. FileError where one is not such.
  static Trace merge(const std::vector<std::string>& records);
  /// Where the newest records of a folder are: there, or in one of its folders epoch-<n>, which ranks that were started
  /// again (`tutti run --max-restarts`) leave them in. FileError if there are none.
  static std::string find(const std::string& folder);
  /// Of the files rank-*.json in find(folder).
  static Trace load(const std::string& folder);

  /// In the format of Chrome's trace events: a process for each rank, a row for each of its groups. Each collective
  /// knows its skew and who came last.
  std::string json() const;
  /// As an SVG: for each rank when its program ran and when it waited, and the calls that were in flight meanwhile. Of
  /// more than 64 ranks it shows those that failed, and those that others waited for longest.
  std::string svg(const TracePicture& picture = {}) const;
  /// Writes svg(picture) where the path ends in ".svg", else json(). Throws FileError where the file cannot be written.
  void save(const std::string& path, const TracePicture& picture = {}) const;
  /// By rank.
  std::vector<Lateness> lateness() const;
  /// The same as a table, and the collectives with the largest skew; where a rank failed, waits or left no record, what
  /// each was doing, and since when.
  std::string summary() const;

  struct Call {
    std::string name, text, group,
        status;                  // all_reduce; with arguments and line; a number; "done", "waiting", "failed"
    int64_t number = 0;          // of the collective in its group; -1: a message
    int64_t begin = 0, end = 0;  // nanoseconds
    std::optional<int64_t> wait_begin = {};  // since when the program waited for it, until the end; none: it never did
    int64_t bytes = 0;
    int64_t peer = -1, tag = 0;  // of a message
  };
  struct Rank {
    int rank = 0, world_size = 0;
    std::string host, error;
    int64_t now = 0;        // when the record was taken
    int64_t forgotten = 0;  // older calls
    std::vector<Call> calls;
  };
  const std::vector<Rank>& ranks() const { return ranks_; }

 private:
  void align();
  std::vector<Rank> ranks_;
};

/// A collective: the records of a group's ranks (the world's by default), on all of them.
Trace gather_trace(const CollectiveOptions& options = {});

}  // namespace tutti
