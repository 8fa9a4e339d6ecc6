// What compiled functions leave for people to look at, where $TUTTI_GRAPH names a folder.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "graph/function.h"

namespace tutti::graph {

/// Graphs as they are shown, with what was generated for each.
struct Shown {
  std::vector<std::shared_ptr<const Graph>> graphs;
  std::vector<std::string> code;

  void add(const Program& program, const PrintOptions& options);
  std::string text() const;
  std::string page(const std::string& title) const { return to_html(graphs, title, code); }
};

/// The files of one compiled function: <name>.<process>.<number>.txt and .html. Written again when there are other
/// graphs than before, so that a program that is killed has left what it had.
class Leaver {
 public:
  explicit Leaver(const std::string& name);
  bool wanted() const { return !path_.empty(); }
  /// `about`: what the text says after the graphs. `last`: whether or not there are other graphs. A folder that cannot
  /// be written is a note on standard error, once.
  void leave(const std::function<Shown(const PrintOptions&)>& show, const std::function<std::string()>& about,
             bool last = false);

 private:
  std::string name_, path_;  // without the ending; empty: nobody asked
  PrintOptions options_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const Graph>> left_;
  bool failed_ = false;
};

}  // namespace tutti::graph
