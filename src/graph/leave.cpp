#include "graph/leave.h"

#include <unistd.h>

#include <atomic>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/check.h"

namespace tutti::graph {
namespace {

// Whoever looks meanwhile sees the old file or the new one.
bool write_file(const std::string& path, const std::string& text) {
  std::string aside = path + ".part";
  std::ofstream file(aside, std::ios::binary);
  file << text;
  file.close();
  return file.good() && std::rename(aside.c_str(), path.c_str()) == 0;
}

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
  failed_ = !write_file(path_ + ".txt", shown.text() + about()) || !write_file(path_ + ".html", shown.page(name_));
  if (failed_) std::fprintf(stderr, "tutti: cannot write %s.txt (TUTTI_GRAPH): %s\n", path_.c_str(), strerror(errno));
}

}  // namespace tutti::graph
