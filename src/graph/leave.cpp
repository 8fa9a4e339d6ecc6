#include "graph/leave.h"

#include <unistd.h>

#include <atomic>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "tutti/io/file.h"

namespace tutti::graph {
namespace {

PrintOptions wanted_code() {
  const char* wish = std::getenv("TUTTI_GRAPH_CODE");
  std::string text = wish ? wish : "";
  check<ValueError>(text.empty() || text == "llvm" || text == "assembly" || text == "none", "compile",
                    "TUTTI_GRAPH_CODE is '{}'; it can be llvm, assembly or none", text);
  return {.code = text != "none", .assembly = text == "assembly"};
}

}  // namespace

void Shown::add(const Program& program, const PrintOptions& options) {
  graphs.push_back(program.graph);
  code.push_back(options.code || options.assembly ? program.run->code(options.assembly) : "");
}

std::string Shown::text() const {
  std::string text;
  for (size_t i = 0; i < graphs.size(); ++i) text += to_string(*graphs[i]) + (code[i].empty() ? "" : "\n" + code[i]);
  return text;
}

Leaver::Leaver(const std::string& name) : name_(name) {
  const char* folder = std::getenv("TUTTI_GRAPH");
  if (!folder || !*folder) return;
  static std::atomic<int> next = 0;
  std::string file;
  for (char c : name) file += std::isalnum(static_cast<unsigned char>(c)) || std::strchr("-_", c) ? c : '_';
  options_ = wanted_code();
  path_ = fmt::format("{}/{}.{}.{:03}", folder, file, ::getpid(), next++);
}

void Leaver::leave(const std::function<Shown(const PrintOptions&)>& show, const std::function<std::string()>& about,
                   bool last) {
  if (!wanted()) return;
  std::lock_guard lock(mutex_);
  if (failed_ || (!last && show({.code = false}).graphs == left_)) return;
  Shown shown = show(options_);
  if (shown.graphs.empty()) return;
  left_ = shown.graphs;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
  try {
    io::write_atomically(path_ + ".txt", [&](io::Output& out) { out.write(shown.text() + about()); });
    io::write_atomically(path_ + ".html", [&](io::Output& out) { out.write(shown.page(name_)); });
  } catch (const FileError& e) {
    failed_ = true;
    std::fprintf(stderr, "tutti: cannot write %s.txt (TUTTI_GRAPH): %s\n", path_.c_str(), e.what());
  }
}

}  // namespace tutti::graph
